"""A server with Flyte's doors and a cluster that runs every image on this machine, for tests of executions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.processes import PATIENCE_S, free_port
from tests.programs import Agent, Server, isolated_env, start_agent, start_server
from tests.server.flyte_doors import Doors
from tests.soak import SOAKED
from tests.warm_programs import FLYTEKIT_MODULES, flytekit_folder, run_script

USER_ERROR = 1  # Flyte's number of the kind of an error
# Slurm's own default of memory is too little for flytekit. Two cores each: not all tasks begin at once.
SLURM_DEFAULTS = {"task_resources": {"defaults": {"cpu": "2", "memory": "700Mi"}}}

PYFLYTE = Path(sys.executable).with_name("pyflyte")
RUNS = Path(__file__).with_name("flytekit_runs.py")
PROJECT, DEV = "kit", "development"
NODES = {"nodes": 1, "each": {"core": 3, "memory": "16GiB"}}  # more tasks at once only wait for each other
RUNS_S = 10 * PATIENCE_S  # dozens of tasks, of which each starts two interpreters
# Servers that are killed on PostgreSQL are in test_flyte_two_servers.py and test_two_servers.py.
sqlite_first = pytest.mark.parametrize("database_url", ["sqlite", SOAKED("postgresql")], indirect=True)


@dataclass(frozen=True)
class FlyteSite:
    folder: Path
    server: Server
    agent: Agent
    doors: Doors

    @property
    def config(self) -> str:
        return json.dumps({"endpoint": self.doors.grpc, "insecure": True})

    def pyflyte(self, *words: str, within: str = "", timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        file = self.folder / "flyte.yaml"
        admin = {"endpoint": f"dns:///{self.doors.grpc}", "insecure": True}
        file.write_text(yaml.safe_dump({"admin": admin, "console": {"endpoint": self.doors.url}}))
        return run_script(
            [str(PYFLYTE), "--config", str(file), *words],
            env=isolated_env(self.folder),
            cwd=self.folder / within,
            timeout_s=timeout_s,
            modules=FLYTEKIT_MODULES,
        )

    def register(
        self, version: str = "v1", *, image: str = "team/flows:1", bundle: bool = True, modules: Sequence[str] = ()
    ) -> None:
        """Register modules of the folder `flows`, with a bundle of their code or as code that each node has.

        `modules`: none are all. A task with a bundle starts flytekit twice: to unpack it, and to run.
        """
        flows = self.folder / "flows"
        code = ["--copy", "all"] if bundle else ["--copy", "none", "--env", f"PYTHONPATH={flows}"]
        where = ["-p", PROJECT, "-d", DEV, "--version", version, "--image", image]
        files = [f"{name}.py" for name in modules] or sorted(file.name for file in flows.glob("*.py"))
        done = self.pyflyte("register", *where, *code, *files, within="flows", timeout_s=RUNS_S)
        assert done.returncode == 0, done.stdout + done.stderr

    def run(
        self, *modules: str, version: str = "v1", environment: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Run the cases of these modules by flytekit, all at once. `environment`: what the client needs, too."""
        done = run_script(
            [str(RUNS), self.config, PROJECT, version, *modules],
            env={**isolated_env(self.folder), **(environment or {})},
            cwd=self.folder / "flows",
            timeout_s=RUNS_S,
            modules=FLYTEKIT_MODULES,
        )
        assert done.returncode == 0, done.stderr[-4000:] + self.server.tail() + self.agent.tail()
        # The last line: flytekit writes into the same stream when it imports a shell task.
        results: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
        return results


def host_rule() -> dict[str, str]:
    """The site's rule for images: tasks run on this machine, with flytekit's programs that start fast."""
    return {"match": "team/*", "run": "host", "path": str(flytekit_folder())}


@contextmanager
def flyte_site(
    folder: Path,
    *,
    database: str | None = None,
    cluster: str = "c1",
    backend: str = "local",
    site: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    server_environment: Mapping[str, str] | None = None,
) -> Iterator[FlyteSite]:
    """`site`: further sections of the agent's site file; `config`: of the server's config;
    `environment`: of the agent."""
    (folder / "flows").mkdir()
    site_file = folder / "site.yaml"
    site_file.write_text(yaml.safe_dump({"images": [host_rule()], **(site or {})}))
    port, config_file = free_port(), folder / "server.yaml"
    config_file.write_text(yaml.safe_dump(dict(config or {})))
    extra = ["--grpc", f"127.0.0.1:{port}", "--config", str(config_file)]
    with (
        start_server(folder, database=database, extra=extra, env=server_environment) as server,
        start_agent(
            folder,
            server.url,
            cluster,
            backend=backend,
            graph=NODES if backend == "local" else None,
            extra=["--config", str(site_file)],
            env=environment,
        ) as agent,
    ):
        made = FlyteSite(folder, server, agent, Doors(server.url, f"127.0.0.1:{port}"))
        made.doors.v1("POST", "/v1/projects", {"name": PROJECT})
        yield made
        wrong = [line for line in server.log.splitlines() if "level=error" in line or "Traceback" in line]
        assert wrong == [], "a defect behind a refusal shows only in the log"


def expected_outputs(outputs: dict[str, Any]) -> dict[str, Any]:
    """PROJECT and DOMAIN stand for those of the execution."""
    plain = json.dumps(outputs).replace("PROJECT", PROJECT).replace("DOMAIN", DEV)
    filled: dict[str, Any] = json.loads(plain)
    return filled


def difference(found: dict[str, Any]) -> str:
    """What is not as the case says; empty: nothing."""
    case, name = found["case"], f"{found['module']}.{found['case']['run']}"
    by_task = {task: (phase, attempts) for phase, task, attempts in found.get("nodes", {}).values() if task}
    if found["phase"] != case["phase"]:
        return f"{name}: {found['phase']} {found['error'][-500:]}"
    if case.get("outputs") is not None and found["outputs"] != expected_outputs(case["outputs"]):
        return f"{name}: {found['outputs']}"
    if case.get("error", "") not in found["error"]:
        return f"{name}: {found['error']}"
    for word in ("children", "again", "kind"):
        wanted = USER_ERROR if case.get(word) == "USER" else case.get(word)
        if wanted is not None and found[word] != wanted:
            return f"{name}: {word} {found[word]}"
    if "nodes" in case and len(found["nodes"]) != case["nodes"]:
        return f"{name}: {found['nodes']}"
    if "attempts" in case and [attempts for _, attempts in by_task.values()] != [case["attempts"]]:
        return f"{name}: {found['nodes']}"
    if "node_ids" in case and not set(case["node_ids"]) <= set(found["nodes"]):
        return f"{name}: {found['nodes']}"
    for task, phase in case.get("node_phases", {}).items():
        if phase != by_task.get(task, (None,))[0]:
            return f"{name}: {task} is {by_task.get(task)}"
    return ""
