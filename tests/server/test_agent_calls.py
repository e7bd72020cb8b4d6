"""What an agent's credential opens: the process that holds the agent's session, for its attempts, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.model.files.file_frames import MEDIA, FrameKind, encode_frame
from switchyard.model.files.file_tree import hash_of
from switchyard.server.http.endpoint import Caller
from switchyard.server.http.endpoints import ENDPOINTS
from switchyard.service.core.agents.agent_calls import AGENT_CALLS, AttemptNeed, CallingProcess
from switchyard.service.core.file_storage import ROOM_STEPS
from tests.processes import PATIENCE_S, until
from tests.programs import Answer
from tests.server.town import GRAPH, Town
from tests.service.files.trees import Tree, a_tree

pytestmark = pytest.mark.xdist_group("agent-calls")
HEADER = "Yard-Incarnation"
HELD = sorted(name for name, rule in AGENT_CALLS.items() if rule.process is CallingProcess.HOLDER)
BODIES: dict[str, Any] = {
    "missing": {"objects": ["0" * 64]},
    "trees": {"root": "0" * 64},
    "read": {"root": "0" * 64, "objects": ["0" * 64]},
    "views": {"id": "a-1", "state": "absent"},
    "status": {"namespaces": []},
}


class NamedAgent:
    """An agent with one job, whose process names itself in each call, as new agents do."""

    def __init__(self, town: Town, tree: Tree) -> None:
        self.town, self.tree, self.cluster = town, tree, town.cluster("called")
        self.id, self.credential = town.agent(self.cluster)
        self.incarnation = f"claim-{self.id.lower()}"
        self.session = self.poll(inventory=[], graph=GRAPH)["session"]
        until(lambda: town.must("GET", f"/v1/clusters/{self.cluster}")["health"] == "up", PATIENCE_S, "it is up")
        self.send("/v1/files/objects", tree, token=town.root)
        town.must("POST", "/v1/files/trees", {"root": tree.name})
        files = {"tree": tree.name, "out": ["*"]}
        self.job = town.job("own", cluster=self.cluster, spec={"command": ["true"], "files": files})
        (self.lease,) = until(lambda: self.poll(want=1).get("leases"), PATIENCE_S, "the job is leased")
        self.attempt = {"job": self.job, "fence": self.lease["fence"]}
        self.query = f"job={self.job}&fence={self.lease['fence']}"

    def ask(self, method: str, path: str, body: Any = None, *, incarnation: str | None) -> Answer:
        headers = {} if incarnation is None else {HEADER: incarnation}
        return self.town.ask(method, path, body, token=self.credential, headers=headers)

    def own(self, method: str, path: str, body: Any = None) -> Answer:
        return self.ask(method, path, body, incarnation=self.incarnation)

    def must(self, path: str, body: Any) -> Any:
        answer = self.own("POST", path, body)
        assert answer.status == 200, (path, answer)
        return answer.json

    def poll(self, **fields: Any) -> Any:
        session = {} if "inventory" in fields else {"session": self.session}
        return self.must("/v1/agents/poll", {"incarnation": self.incarnation, **session, **fields})

    def send(self, path: str, tree: Tree, *, token: str = "", only: bytes | None = None) -> None:
        headers = {"Content-Type": MEDIA} | ({} if token else {HEADER: self.incarnation})
        body = tree.frames() if only is None else tree.frames(only)
        answer = self.town.ask("POST", path, body, token=token or self.credential, headers=headers)
        assert answer.status == 200, answer

    def uploaded(self, digest: str) -> Answer:
        """Say that an object is at the address of the object store."""
        frame = encode_frame(FrameKind.UPLOADED, bytes.fromhex(digest), b"")
        headers = {"Content-Type": MEDIA, HEADER: self.incarnation}
        path = f"/v1/agents/files/objects?{self.query}"
        return self.town.ask("POST", path, frame, token=self.credential, headers=headers)

    def leave_outputs(self, tree: Tree) -> None:
        self.send(f"/v1/agents/files/objects?{self.query}", tree)
        assert self.must(f"/v1/agents/files/trees?{self.query}", {"root": tree.name}).get("missing", []) == []
        self.must("/v1/agents/outputs", {**self.attempt, "state": "ready", "root": tree.name})

    def end(self) -> None:
        self.poll(reports=[{**self.attempt, "seen": "SUCCEEDED", "exit_code": 0}])

    def call(self, name: str, *, incarnation: str | None) -> Answer:
        """A call of the table, with a body that the endpoint understands."""
        method, path = name.split()
        body = BODIES.get(path.rpartition("/")[2])
        if path == "/v1/agents/outputs":
            body = {**self.attempt, "state": "uploading"}
        elif AGENT_CALLS[name].attempt is not AttemptNeed.NONE:
            path += f"?{self.query}"
        elif path.endswith("/objects"):
            path += "?namespace=default-development"
        return self.ask(method, path, body, incarnation=incarnation)


@pytest.fixture(scope="module")
def agent(town: Town) -> NamedAgent:
    return NamedAgent(town, a_tree({"secret.txt": b"of the owner"}))


def test_every_endpoint_for_agents_has_a_row_in_the_table_of_calls() -> None:
    served = {f"{end.method} {end.path}" for end in ENDPOINTS if end.caller in (Caller.AGENT, Caller.USER_OR_AGENT)}
    assert served == AGENT_CALLS.keys()


@pytest.mark.parametrize("name", HELD)
def test_a_copied_credential_is_refused_while_the_agent_lives(agent: NamedAgent, name: str) -> None:
    for incarnation in (None, "claim-of-a-copy"):
        refused = agent.call(name, incarnation=incarnation)
        assert (refused.status, refused.json["code"]) == (409, "resync"), refused
    answer = agent.call(name, incarnation=agent.incarnation)
    assert answer.json.get("code") != "resync", "the agent itself is let in"


def test_a_copied_credential_is_shown_to_operators(town: Town, agent: NamedAgent) -> None:
    agent.call("POST /v1/agents/outputs", incarnation="claim-of-a-copy")
    (shown,) = town.must("GET", f"/v1/agents?cluster={agent.cluster}")["items"]
    assert "without having its place" in shown["rival"]["why"]


def test_an_agent_of_before_the_header_goes_on_until_it_is_upgraded(town: Town) -> None:
    cluster = town.cluster("older")
    _, credential = town.agent(cluster)
    town.must("POST", "/v1/agents/poll", {"incarnation": "i1", "inventory": []}, token=credential)
    view = {"id": "a-1", "state": "absent"}
    town.must("POST", "/v1/agents/files/views", view, token=credential)
    answer = town.ask(
        "POST", "/v1/agents/poll", {"incarnation": "i1", "inventory": []}, token=credential, headers={HEADER: "i1"}
    )
    assert answer.status == 200, answer
    assert town.ask("POST", "/v1/agents/files/views", view, token=credential).status == 409


def test_an_ended_attempt_reads_no_inputs_and_its_stored_outputs_stay(town: Town) -> None:
    agent = NamedAgent(town, a_tree({"input.txt": b"input"}))
    query = {"root": agent.tree.name, "objects": [agent.tree.name]}
    assert agent.own("POST", f"/v1/agents/files/read?{agent.query}", query).status == 200
    true, forged = a_tree({"result": b"42"}), a_tree({"result": b"43"})
    agent.end()
    refused = agent.own("POST", f"/v1/agents/files/read?{agent.query}", query)
    assert (refused.status, refused.json["code"]) == (409, "conflict"), refused
    agent.leave_outputs(true)
    agent.must("/v1/agents/outputs", {**agent.attempt, "state": "failed", "error": "late"})
    for name in ("missing", "trees"):
        assert agent.call(f"POST /v1/agents/files/{name}", incarnation=agent.incarnation).status == 409
    refused = agent.own("POST", "/v1/agents/outputs", {**agent.attempt, "state": "ready", "root": forged.name})
    assert refused.status == 409, refused
    (output,) = town.must("GET", f"/v1/jobs/{agent.job}/files")["outputs"]
    assert (output["state"], output["root"]) == ("ready", true.name)


def test_an_attempt_names_its_inputs_and_what_its_agent_sends_and_nothing_else_of_its_owner(town: Town) -> None:
    agent = NamedAgent(town, a_tree({"input.txt": b"input"}))
    elsewhere = a_tree({"salary.txt": b"of the owner, in another job"})
    agent.send("/v1/files/objects", elsewhere, token=town.root)
    town.must("POST", "/v1/files/trees", {"root": elsewhere.name})

    # Whether the owner has a content is not told, in any way.
    held, unknown = [digest.hex() for digest in elsewhere.objects], hash_of(b"nobody has this").hex()
    asked = {"objects": [*held, unknown]}
    assert agent.must(f"/v1/agents/files/missing?{agent.query}", asked)["missing"] == [*held, unknown]
    answers = [agent.uploaded(digest) for digest in (*held, unknown)]
    assert {(answer.status, answer.json["code"]) for answer in answers} == {(400, "malformed")}
    assert agent.must(f"/v1/agents/files/trees?{agent.query}", {"root": elsewhere.name})["missing"] == [elsewhere.name]

    # A folder that the agent sends opens no file in it.
    root = bytes.fromhex(elsewhere.name)
    (chunk,) = (digest for digest in elsewhere.objects if digest != root)
    agent.send(f"/v1/agents/files/objects?{agent.query}", elsewhere, only=root)
    assert agent.must(f"/v1/agents/files/trees?{agent.query}", {"root": elsewhere.name})["missing"] == [chunk.hex()]
    refused = agent.own("POST", "/v1/agents/outputs", {**agent.attempt, "state": "ready", "root": elsewhere.name})
    assert (refused.status, refused.json["code"]) == (400, "unknown-name"), refused

    # Inputs need not be sent.
    inputs = {"objects": [digest.hex() for digest in agent.tree.objects]}
    assert agent.must(f"/v1/agents/files/missing?{agent.query}", inputs)["missing"] == []
    assert agent.must(f"/v1/agents/files/trees?{agent.query}", {"root": agent.tree.name})["files"] == 1
    agent.must("/v1/agents/outputs", {**agent.attempt, "state": "ready", "root": agent.tree.name})
    (output,) = town.must("GET", f"/v1/jobs/{agent.job}/files")["outputs"]
    assert (output["state"], output["root"]) == ("ready", agent.tree.name)


def test_the_room_for_outputs_does_not_tell_what_the_owner_holds(town: Town) -> None:
    """An agent sends a content that it guesses, and asks for the room before and after."""
    agent = NamedAgent(town, a_tree({"input.txt": b"input"}))
    guesses = [a_tree({"salary.txt": f"salary {number}".encode()}) for number in range(2)]
    agent.send("/v1/files/objects", guesses[0], token=town.root)
    rooms = [agent.own("GET", f"/v1/agents/files/room?{agent.query}").json]
    answers = []
    for guess in guesses:
        headers = {"Content-Type": MEDIA, HEADER: agent.incarnation}
        path = f"/v1/agents/files/objects?{agent.query}"
        answers.append(town.ask("POST", path, guess.frames(), token=agent.credential, headers=headers))
        rooms.append(agent.own("GET", f"/v1/agents/files/room?{agent.query}").json)
    assert rooms[0] == rooms[1] == rooms[2]
    assert answers[0].json == answers[1].json
    limit = town.must("GET", "/v1/files/usage")["user"]["bytes_max"]
    assert rooms[0]["user"]["left"] % (limit // ROOM_STEPS) == 0
    assert "used" not in rooms[0]["user"]["text"]
