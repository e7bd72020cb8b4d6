"""Machines with Rainbow's own Python client, for tests: its file, its calls, and the polling loop of our documents."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.match.known_cases import forms_of
from tests.processes import PATIENCE_S
from tests.programs import Server, call, isolated_env
from tests.server.rainbow_door import SECRET, Door

CLIENT = Path(__file__).with_name("rainbow_client.py")
CLIENT_S = PATIENCE_S
LOOP = Path(__file__).parents[3] / "docs" / "how-to" / "use-rainbow-clients.md"
GRAPH, SUBSYSTEMS = forms_of({"graph": "keebler-3x12", "subsystems": {"io": "io-shm-all"}})


class Client:
    """One machine with the client and its file."""

    def __init__(self, folder: Path, door: Door) -> None:
        folder.mkdir()
        self.folder = folder
        self.known = {"host": door.address, "file": str(folder / "rainbow.yaml"), "secret": SECRET}

    def argv(self, story: str, **config: Any) -> list[str]:
        """The words of one call: for a job of a batch system, too."""
        return [sys.executable, str(CLIENT), story, json.dumps({**self.known, **config})]

    def __call__(self, story: str, **config: Any) -> Any:
        done = subprocess.run(
            self.argv(story, **config),
            env=isolated_env(self.folder),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=CLIENT_S,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)

    def file(self, name: str, body: Any) -> str:
        path = self.folder / name
        path.write_text(json.dumps(body), encoding="utf-8")
        return str(path)

    def register(self, name: str) -> Any:
        return self("register", cluster=name, nodes=self.file("nodes.json", GRAPH))


def job(server: Server, cluster: str) -> Any:
    """The newest job of a cluster, as everybody else sees it."""
    return call("GET", f"{server.url}/v1/jobs?cluster={cluster}&spec=true").json["items"][0]


def submit_token(server: Server, cluster: str) -> str:
    return str(call("POST", f"{server.url}/v1/clusters/{cluster}/submit-token").json["token"])


def write_config(client: Client, clusters: dict[str, str]) -> None:
    """As the client's own file has it; a cluster keeps what it knows of itself."""
    path = Path(client.known["file"])
    known = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
    host = client.known["host"]
    known |= {
        "scheduler": {"secret": "", "name": "rainbow", "algorithms": {}},
        "graphdatabase": {"name": "memory", "host": host, "options": {"host": host}},
        "clusters": [{"name": name, "token": token} for name, token in clusters.items()],
    }
    path.write_text(yaml.safe_dump(known), encoding="utf-8")


@contextmanager
def documented_loop(client: Client, env: Mapping[str, str]) -> Iterator[None]:
    """The loop as our documentation has it, faster. `env`: more of its environment, with the path of `flux`."""
    text = LOOP.read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (client.folder / "loop.py").write_text(code.replace("time.sleep(5)", "time.sleep(0.1)"), encoding="utf-8")
    with (client.folder / "loop.log").open("w") as log:
        argv = [sys.executable, "loop.py"]
        whole = {**isolated_env(client.folder), **env}
        loop = subprocess.Popen(argv, cwd=client.folder, env=whole, stdout=log, stderr=log)
    try:
        yield
    finally:
        loop.kill()
        loop.wait()
