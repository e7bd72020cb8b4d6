"""An engine that somebody else installed answers where the operator allows it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.match.third_engine import install_third_engine
from tests.processes import PATIENCE_S
from tests.programs import call, free_port, isolated_env, start_agent, start_server, until, yard

THREE = {"nodes": 3, "each": {"core": 4}}
FOUR = {"nodes": 4, "each": {"core": 4}}
JOB = {"spec": {"command": ["true"]}}


def test_a_third_engine_is_installed_allowed_and_asked(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"match": {"engine": "shapes", "allowed": ["shapes", "third"]}}))
    env = {"PYTHONPATH": str(install_third_engine(tmp_path))}
    with (
        start_server(tmp_path, extra=["--config", str(config)], env=env) as server,
        start_agent(tmp_path, server.url, "three", graph=THREE),
        start_agent(tmp_path, server.url, "four", graph=FOUR),
    ):
        clusters = f"{server.url}/v1/clusters"
        until(
            lambda: [each["health"] for each in call("GET", clusters).json["items"]] == ["up"] * 2,
            PATIENCE_S,
            "both up",
        )
        said = call("POST", f"{server.url}/v1/clusters/fit", {"job": JOB, "match_engine": "third"}).json
        assert {each["cluster"]: each["ever"] for each in said["items"]} == {"three": True, "four": False}
        assert said["engine"] == "third"
        assert call("POST", f"{server.url}/v1/jobs", {**JOB, "match_engine": "third"}).json["cluster"] == "three"
        ours = call("POST", f"{server.url}/v1/clusters/fit", {"job": JOB}).json
        assert [each["ever"] for each in ours["items"]] == [True, True]
        refused = call("POST", f"{server.url}/v1/jobs", {**JOB, "match_engine": "walk"})
        assert refused.status == 400
        assert b"shapes, third" in refused.body


def test_a_server_with_an_engine_that_is_not_there_does_not_start(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("match: {engine: psychic}\n")
    options = ("--data", str(tmp_path / "data"), "--http", f"127.0.0.1:{free_port()}", "--config", str(config))
    done = yard("server", *options, env=isolated_env(tmp_path))
    assert done.returncode != 0
    assert "psychic" in done.stderr
