"""A server with people of every role, seen over HTTP: two private clusters and two projects, one of them theirs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from tests.processes import PATIENCE_S, until
from tests.programs import NODES, Answer, call

ROLES = ("nobody", "bad", "agent", "stranger", "view", "submit", "operate", "admin", "root")
MEMBERS = ("view", "submit", "operate", "admin")  # those with this role on the project and the cluster group `own`
GRAPH = {
    "shapes": [
        {"type": "core"},
        {"type": "memory", "size": 2**33, "unit": "B"},
        {"type": "node", "children": [[0, 4], [1, 1]]},
        {"type": "cluster", "children": [[2, NODES["nodes"]]]},
    ]
}


@dataclass
class Town:
    """`tokens`: a credential per role. Everything else is made fresh where a test would use it up."""

    url: str
    root: str
    tokens: dict[str, str | None] = field(default_factory=dict)
    _number: Any = field(default_factory=itertools.count)

    def ask(self, method: str, path: str, body: Any = None, *, token: str | None = None, **more: Any) -> Answer:
        return call(method, self.url + path, body, token=token, **more)

    def must(self, method: str, path: str, body: Any = None, *, token: str | None = None) -> Any:
        """As the administrator, unless told otherwise; it has to work."""
        answer = self.ask(method, path, body, token=self.root if token is None else token)
        assert answer.status in (200, 201), f"{method} {path}: {answer.status} {answer.body!r}"
        return answer.json

    def name(self, kind: str) -> str:
        return f"{kind}-{next(self._number)}"

    # --- fresh things

    def cluster(self, group: str) -> str:
        name = self.name("cluster")
        self.must("POST", "/v1/clusters", {"name": name, "is_private": True, "groups": [group]})
        return name

    def agent(self, cluster: str) -> tuple[str, str]:
        """The id and the credential of a new agent of a cluster."""
        token = self.must("POST", f"/v1/clusters/{cluster}/invites", {})["token"]
        asked = {"cluster": cluster, "name": self.name("agent"), "journal": "j1", "backend": "fake"}
        joined = self.must("POST", "/v1/agents/join", asked, token=token)
        return joined["agent"], joined["credential"]

    def up(self, cluster: str) -> str:
        """Bring a cluster up; its agent's credential."""
        _, credential = self.agent(cluster)
        poll = {"incarnation": "i1", "inventory": [], "graph": GRAPH}
        self.must("POST", "/v1/agents/poll", poll, token=credential)
        until(lambda: self.must("GET", f"/v1/clusters/{cluster}")["health"] == "up", PATIENCE_S, f"{cluster} is up")
        return credential

    def invite(self, cluster: str) -> str:
        return str(self.must("POST", f"/v1/clusters/{cluster}/invites", {})["info"]["id"])

    def group_invite(self, group: str) -> str:
        return str(self.must("POST", f"/v1/cluster-groups/{group}/invites", {})["info"]["id"])

    def job(self, project: str, **fields: Any) -> str:
        """A job of the administrator's."""
        body = {"spec": {"command": ["true"]}, "project": project, **fields}
        return str(self.must("POST", "/v1/jobs", body)["id"])

    def user(self, *grants: tuple[str, str, str]) -> tuple[str, str]:
        """The name and a token of a new user with these grants."""
        name = self.name("user")
        self.must("POST", "/v1/users", {"name": name})
        for role, on, what in grants:
            self.grant(name, role, on, what)
        return name, str(self.must("POST", "/v1/tokens", {"user": name})["token"])

    def grant(self, user: str, role: str, on: str, what: str) -> str:
        body = {"role": role, "to": "user", "subject": user, "on": on, "object": what}
        return str(self.must("POST", "/v1/grants", body)["id"])

    def rule(self, scope: str) -> None:
        """Set the queue tags at a scope, whatever was there."""
        path = f"/v1/attributes/execution-queue-attribute?{scope}"
        seen = self.ask("GET", path, token=self.root)
        headers = {"If-Match": seen.headers["etag"]} if seen.status == 200 else {"If-None-Match": "*"}
        answer = self.ask("PUT", path, {"tags": ["default"]}, token=self.root, headers=headers)
        assert answer.status == 200, answer.body

    def cluster_set(self, kind: str) -> str:
        """A new pool or cluster label."""
        name = self.name("set")
        members = {"members": [{"id": "own", "weight": 2}, {"id": "foreign"}]}
        answer = self.ask("PUT", f"/v1/{kind}/{name}", members, token=self.root, headers={"If-None-Match": "*"})
        assert answer.status == 200, answer.body
        return name

    def queue(self) -> str:
        """A new queue, with its name as its only tag."""
        name = self.name("queue")
        answer = self.ask("PUT", f"/v1/queues/{name}", {}, token=self.root, headers={"If-None-Match": "*"})
        assert answer.status == 200, answer.body
        return name

    def token_pool(self) -> str:
        name = self.name("pool")
        self.must("PUT", f"/v1/token-pools/{name}", {"quota": 5})
        return name

    def token_of(self, user: str) -> str:
        return str(self.must("POST", "/v1/tokens", {"user": user})["info"]["id"])

    def jobs(self) -> int:
        """How many jobs there are."""
        seen, cursor = 0, ""
        while True:
            page = self.must("GET", f"/v1/jobs?limit=500{cursor}")
            seen += len(page["items"])
            if page["next"] is None:
                return seen
            cursor = f"&cursor={page['next']}"

    def is_healthy(self) -> bool:
        return all(self.ask("GET", path).status == 200 for path in ("/healthz", "/readyz", "/v1/version"))


def settle(url: str, root: str) -> Town:
    """Make the projects, the clusters and the people."""
    town = Town(url, root)
    for name in ("own", "foreign"):
        town.must("POST", "/v1/projects", {"name": name})
        town.must("POST", "/v1/clusters", {"name": name, "is_private": True, "groups": [f"group-{name}"]})
    town.up("foreign")
    town.tokens = {"nobody": None, "bad": f"yard_{'0' * 26}_wrong", "agent": town.up("own"), "root": root}
    town.tokens["stranger"] = town.user()[1]
    for role in MEMBERS:
        town.must("POST", "/v1/users", {"name": f"the-{role}"})
        town.grant(f"the-{role}", role, "project", "own")
        town.grant(f"the-{role}", role, "cluster-group", "group-own")
        town.tokens[role] = town.must("POST", "/v1/tokens", {"user": f"the-{role}"})["token"]
    return town
