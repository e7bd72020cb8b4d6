"""The wheel, installed into new environments that hold what it declares and nothing else. No package index is asked:
what is declared is linked from the environment that runs the tests.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from switchyard.errors import EXIT_OK
from tests import programs
from tests.acceptance.clients.wheel_needs import BUILD_S, PIP, ROOT, needed
from tests.programs import NODES, PATH, call, isolated_env, start_agent, start_server, yard

RunFrom = Callable[[Path], dict[str, str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by the installed hatchling: an isolated build would fetch one."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, timeout=BUILD_S)
    (file,) = folder.glob("switchyard-*.whl")
    return file


@pytest.fixture(scope="module")
def light(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel alone: for users and agents."""
    return environment(wheel, tmp_path_factory.mktemp("light"), "switchyard")


@pytest.fixture(scope="module")
def full(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and its extra `server`."""
    return environment(wheel, tmp_path_factory.mktemp("full"), "switchyard[server]")


def environment(wheel: Path, folder: Path, requirement: str) -> Path:
    """A new environment with the wheel and the distributions that this requirement of it brings."""
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    names = needed(Requirement(requirement)) - {"switchyard"}
    for name in names:
        for file in importlib.metadata.files(name) or ():
            target = packages / file.parts[0]
            if file.parts[0] not in ("..", "__pycache__") and not target.is_symlink():
                target.symlink_to(Path(str(file.locate())).parents[len(file.parts) - 1] / file.parts[0])
    install = [*PIP, "--python", str(folder / "bin/python"), "install", "--no-deps", "--no-index"]
    subprocess.run([*install, "--no-compile", str(wheel)], check=True, timeout=BUILD_S)
    return folder


@pytest.fixture
def run_from(monkeypatch: pytest.MonkeyPatch) -> RunFrom:
    """Lets the programs that follow be those of one environment; what they need in theirs."""

    def choose(folder: Path) -> dict[str, str]:
        monkeypatch.setattr(programs, "YARD", [str(folder / "bin/yard")])
        return {"PATH": f"{folder / 'bin'}:{PATH}"}

    return choose


def test_the_wheel_holds_the_package_with_its_types_and_nothing_else(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    assert "switchyard/py.typed" in names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"switchyard"}


def test_a_job_runs_with_a_server_an_agent_and_a_command_of_the_wheel(
    light: Path, full: Path, run_from: RunFrom, tmp_path: Path
) -> None:
    with start_server(tmp_path, env=run_from(full)) as server:
        told = call("GET", server.url)  # the core runs without the extras of features, and says so at their doors
        assert (told.status, b"pip install 'switchyard[dashboard]'" in told.body) == (404, True)
        path = run_from(light)
        with start_agent(tmp_path, server.url, "alpha", graph=NODES, env=path):
            env = {**isolated_env(tmp_path, url=server.url), **path}
            script = f"{light}/bin/python -c 'import switchyard; print(switchyard.__file__)'"
            done = yard("submit", "--wait", "--", "sh", "-c", script, env=env, check=True)
            assert str(light) in done.stdout


def test_help_and_version_need_no_extra_and_the_server_names_its_own(
    light: Path, run_from: RunFrom, tmp_path: Path
) -> None:
    env = {**isolated_env(tmp_path), **run_from(light)}
    assert "submit" in yard("--help", env=env, check=True).stdout
    refused = yard("server", "--data", str(tmp_path / "data"), env=env)
    assert refused.returncode != EXIT_OK
    assert "switchyard[server]" in refused.stderr
    assert "Traceback" not in refused.stderr
