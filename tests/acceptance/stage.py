"""A server that the tests of one file share, and the ways of speaking to it. Knows programs and HTTP, no insides."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES
from tests.processes import PATIENCE_S, Process, end_strays, started_of, until
from tests.programs import COMMAND_S, Agent, Answer, Server, call, isolated_env, start_agent, start_server, yard
from tests.warm_programs import warm_yard

END_S = PATIENCE_S  # for a job of a fraction of a second
SOON_S = PATIENCE_S / 2  # for what follows within a second

Fields = dict[str, Any]


class Secret(str):
    """A token that shows itself only by its id: what a failing test prints is kept by whoever ran it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{'_'.join(self.split('_', 2)[:2])}_…>"


def graph(cores: int, *, nodes: int = 1, memory: str = "8GiB") -> Mapping[str, Any]:
    return {"nodes": nodes, "each": {"core": cores, "memory": memory}}


@dataclass(frozen=True)
class Stage:
    """`token`: the administrator's; none on a server without authentication."""

    folder: Path
    server: Server
    token: Secret | None

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def env(self) -> dict[str, str]:
        """The environment of the administrator."""
        return isolated_env(self.folder, url=self.url, token=self.token)

    def call(self, method: str, path: str, body: Any = None, *, token: str | None = None, **rest: Any) -> Answer:
        """One HTTP call, by the administrator unless another token is given."""
        return call(method, self.url + path, body, token=token or self.token, **rest)

    def get(self, path: str, *, token: str | None = None) -> Any:
        answer = self.call("GET", path, token=token)
        assert answer.status == 200, f"GET {path}: {answer.status} {answer.body!r}"
        return answer.json

    def post(self, path: str, body: Any, *, token: str | None = None) -> Any:
        answer = self.call("POST", path, body, token=token)
        assert answer.status in (200, 201), f"POST {path}: {answer.status} {answer.body!r}"
        return answer.json

    def yard(self, *args: str, **rest: Any) -> subprocess.CompletedProcess[str]:
        """One command of the administrator's."""
        return yard(*args, env=self.env, **rest)

    def read(self, *args: str) -> Any:
        """What a command prints with `-o json`."""
        at = args.index("--") if "--" in args else len(args)
        return json.loads(self.yard(*args[:at], "-o", "json", *args[at:], check=True).stdout)

    def raw(self, *args: str) -> tuple[bytes, str]:
        """What a command writes to stdout, byte for byte, and to stderr."""
        done = subprocess.run([warm_yard(), *args], env=self.env, capture_output=True, timeout=COMMAND_S, check=False)
        assert done.returncode == 0, f"yard {' '.join(args)}: exit {done.returncode}\n{done.stderr.decode()}"
        return done.stdout, done.stderr.decode()

    def agent(self, cluster: str, *, cores: int = 4, nodes: int = 1, **rest: Any) -> Agent:
        """An agent that is up, joined with a token where tokens are asked for."""
        if self.token is not None and "token" not in rest:
            rest |= {"token": self.invite(cluster, is_reusable=True), "reader": self.token}
        return start_agent(self.folder, self.url, cluster, graph=graph(cores, nodes=nodes), **rest)

    @contextmanager
    def brief_agent(self, cluster: str, **rest: Any) -> Iterator[Agent]:
        """An agent whose cluster is removed with it.

        An agent that has ended looks alive for some seconds more, and jobs without a cluster are sent to it.
        """
        with self.agent(cluster, **rest) as agent:
            yield agent
        self.yard("cluster", "rm", cluster, "--force", check=True)

    def site(self, name: str, text: str) -> list[str]:
        """Options of an agent whose site file has this text."""
        file = self.folder / f"{name}-site.yaml"
        file.write_text(text)
        return ["--config", str(file)]

    def invite(self, cluster: str, **fields: Any) -> Secret:
        return Secret(self.post(f"/v1/clusters/{cluster}/invites", fields)["token"])

    def submit(self, *command: str, **fields: Any) -> str:
        """A job by HTTP; its id."""
        return str(self.submitted(*command, **fields)["id"])

    def submitted(self, *command: str, spec: Fields | None = None, token: str | None = None, **fields: Any) -> Fields:
        """A job by HTTP, as the server answered. `spec`: further fields of the spec."""
        made: Fields = self.post(
            "/v1/jobs", {"spec": {"command": list(command), **(spec or {})}, **fields}, token=token
        )
        return made

    def job(self, job: str) -> Fields:
        found: Fields = self.get(f"/v1/jobs/{job}")
        return found

    def until_state(self, job: str, *states: State, timeout_s: float = END_S) -> Fields:
        """The job once it is in one of these states; fails at once if it ends in another."""

        def look() -> Fields | None:
            seen = self.job(job)
            if seen["state"] in states:
                return seen
            assert seen["state"] not in FINAL_STATES, f"{job} ended as {seen['state']}: {seen.get('reason')}"
            return None

        found = until(look, timeout_s, f"job {job} is {' or '.join(states)}")
        assert found is not None
        return found

    def ended(self, job: str, *, timeout_s: float = END_S) -> Fields:
        """The job once it is final."""
        return self.until_state(job, *FINAL_STATES, timeout_s=timeout_s)

    def health(self, cluster: str) -> str:
        return str(self.get(f"/v1/clusters/{cluster}")["health"])

    def walk(self, path: str, *, limit: int, token: str | None = None) -> list[Any]:
        """Every item of a list, page by page."""
        items: list[Any] = []
        cursor = ""
        sign = "&" if "?" in path else "?"
        while True:
            page = self.get(f"{path}{sign}limit={limit}{cursor}", token=token)
            assert len(page["items"]) <= limit
            items += page["items"]
            if page.get("next") is None:
                return items
            cursor = f"&cursor={page['next']}"


def waiting_for(gate: Path) -> str:
    """Shell words that end once a file is there: the test decides when a job ends."""
    return f"until [ -e {gate} ]; do sleep 0.05; done"


def submitters(stage: Stage, *names: str) -> dict[str, str]:
    """New users who may submit to the default project, and a token of each."""
    found: dict[str, str] = {}
    for name in names:
        stage.yard("user", "add", name, check=True)
        stage.yard("grant", "add", "submit", "--to", f"user:{name}", "--on", "project:default", check=True)
        found[name] = Secret(stage.yard("token", "create", "--user", name, check=True).stdout.split()[-1])
    return found


@contextmanager
def staged(
    folder: Path, *, auth: bool = False, extra: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> Iterator[Stage]:
    """A running server of its own; at the end nothing of it is left, jobs neither."""
    server = start_server(folder, auth=auth, extra=extra, env=env)
    try:
        yield Stage(folder, server, Secret(server.admin_token) if auth else None)
    finally:
        server.close()
        end_strays(folder)


def processes_in(file: Path, count: int, *, timeout_s: float = SOON_S) -> list[Process]:
    """The living processes whose pids a job wrote to a file, once there are so many."""

    def look() -> list[Process]:
        pids = [int(word) for word in file.read_text().split()] if file.exists() else []
        seen = [Process(pid, started) for pid in pids if (started := started_of(pid)) is not None]
        return seen if len(seen) == count else []

    return until(look, timeout_s, f"{count} living pids are in {file}")
