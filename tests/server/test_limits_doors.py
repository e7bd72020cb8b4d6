"""The doors on the gRPC port count a user's requests in the same bucket as HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.processes import free_port
from tests.programs import call, start_server
from tests.server.flyte_doors import Doors
from tests.server.rainbow_clusters import registered, submitted
from tests.server.rainbow_door import rainbow

pytestmark = pytest.mark.acceptance


def test_flytes_doors_and_our_own_have_one_bucket(tmp_path: Path) -> None:
    config, port = tmp_path / "server.yaml", free_port()
    config.write_text(yaml.safe_dump({"limits": {"users": {"ann": {"requests": 1, "burst": 6}}}}), encoding="utf-8")
    extra = ("--config", str(config), "--grpc", f"127.0.0.1:{port}")
    with start_server(tmp_path, auth=True, extra=extra) as server:
        tokens = {}
        for name in ("ann", "bob"):
            call("POST", f"{server.url}/v1/users", {"name": name}, token=server.admin_token)
            made = call("POST", f"{server.url}/v1/tokens", {"user": name}, token=server.admin_token)
            tokens[name] = made.json["token"]
        ann = Doors(server.url, f"127.0.0.1:{port}", token=tokens["ann"])
        said = [ann.by_grpc("ListProjects", {}) for _ in range(20)]
        assert said[0].code == "OK"
        assert said[-1].code == "RESOURCE_EXHAUSTED"
        assert "`requests`" in said[-1].message
        refused = [
            call("GET", f"{server.url}{path}", token=tokens["ann"]).status
            for path in ("/v1/whoami", "/api/v1/projects")
        ]
        assert 429 in refused
        bob = Doors(server.url, f"127.0.0.1:{port}", token=tokens["bob"])
        assert bob.by_grpc("ListProjects", {}).code == "OK"


def test_rainbows_clients_count_as_the_owner_of_their_token(tmp_path: Path) -> None:
    with rainbow(tmp_path, requests=5) as (_, door):
        mine = registered(door, "mine")
        said = [submitted(door, mine) for _ in range(40)]
        assert said[0].code == "OK"
        refused = [answer for answer in said if answer.code != "OK"]
        assert {answer.code for answer in refused} == {"RESOURCE_EXHAUSTED"}
        assert "`requests`" in refused[0].words
