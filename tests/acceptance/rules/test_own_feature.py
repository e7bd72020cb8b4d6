"""A feature from a package of its own: its command, endpoints, page, config, table, chore and metric are there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import free_port
from tests.programs import Server, call, isolated_env, start_server, yard

PACKAGE = Path(__file__).resolve().parents[3] / "examples" / "announcements"
TEXT = "epsilon is down on Friday"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    asked = [*pip, "--no-build-isolation", "--target", str(folder / "features"), str(PACKAGE)]
    done = subprocess.run(asked, env=isolated_env(folder), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder / "features"


@pytest.fixture(scope="module")
def server(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("stage")
    config = folder / "config.yaml"
    config.write_text("announcements: {days: 3}\n")
    # Not prepared: the server makes the feature's table with all others. Not warm: that has imported other features.
    with start_server(
        folder,
        extra=["--config", str(config)],
        env={"PYTHONPATH": str(installed)},
        is_prepared=False,
        is_warm=False,
    ) as made:
        yield made


def test_a_feature_of_somebody_else_has_its_place_in_every_room(
    server: Server, installed: Path, tmp_path: Path
) -> None:
    env = {**isolated_env(tmp_path, url=server.url), "PYTHONPATH": str(installed)}

    def announce(*words: str) -> str:
        return yard(*words, env=env, check=True).stdout

    assert "announce" in announce("--help")
    assert TEXT in announce("announce", TEXT)
    assert TEXT in announce("announce")
    paths = call("GET", f"{server.url}/v1/openapi.json").json["paths"]
    assert {"get", "post"} <= paths["/v1/announcements"].keys()
    assert "\nannouncements 1.0\n" in call("GET", f"{server.url}/metrics").body.decode()
    page = call("GET", f"{server.url}/announcements").body.decode()
    assert TEXT in page
    assert '<a href="/announcements"' in call("GET", f"{server.url}/jobs").body.decode()
    for path, body in (("", {"text": ""}), ("", {"txet": "?"}), ("?x=1", {"text": "?"})):
        assert call("POST", f"{server.url}/v1/announcements{path}", body).status == 400, body


def test_without_it_its_section_of_the_config_is_a_mistake(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("announcements: {days: 3}\n")
    options = ("--data", str(tmp_path / "data"), "--http", f"127.0.0.1:{free_port()}", "--config", str(config))
    done = yard("server", *options, env=isolated_env(tmp_path))
    assert done.returncode != 0
    assert "announcements: unknown key" in done.stderr


def test_a_broken_feature_is_named_with_its_reason(tmp_path: Path) -> None:
    info = tmp_path / "broken-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[switchyard.features]\nbroken = no_such_module:FEATURE\n")
    done = yard("--help", env={**isolated_env(tmp_path), "PYTHONPATH": str(tmp_path)})
    assert done.returncode != 0
    assert "The feature 'broken' (no_such_module:FEATURE) cannot be loaded: No module named" in done.stderr
    assert "uninstall the package" in done.stderr
