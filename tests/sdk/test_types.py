"""The SDK's types as a user's type checker sees them: mypy and pyright, on a program outside the package.

The pyright is basedpyright: its wheel brings node, so that nothing is downloaded when it runs.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("typed_program.py")
TIMEOUT_S = 200
pytestmark = pytest.mark.long


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program in a folder of its own, where no settings of this project hold."""
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}), encoding="utf-8")
    return Path(shutil.copy(PROGRAM, tmp_path / "program.py"))


def test_mypy_takes_the_program_and_refuses_its_mistakes(program: Path) -> None:
    settings = ["--config-file=", "--strict", "--cache-dir=cache", "--no-error-summary"]
    done = run("mypy", *settings, program.name, folder=program.parent)
    assert refused_lines(program, [int(line) for line in re.findall(r"^program\.py:(\d+): error", done, re.M)]), done


def test_pyright_takes_the_program_and_refuses_its_mistakes(program: Path) -> None:
    done = run("basedpyright", "--outputjson", "--pythonpath", sys.executable, folder=program.parent)
    findings = [item for item in json.loads(done)["generalDiagnostics"] if item["severity"] == "error"]
    lines = [item["range"]["start"]["line"] + 1 for item in findings]
    assert refused_lines(program, lines), json.dumps(findings, indent=1)


def run(module: str, *arguments: str, folder: Path) -> str:
    argv = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 1, done.stdout + done.stderr  # there are mistakes, and it could look for them
    return done.stdout


def refused_lines(program: Path, lines: list[int]) -> bool:
    """Whether these are exactly the lines that are marked."""
    text = program.read_text(encoding="utf-8").splitlines()
    return set(lines) == {number for number, line in enumerate(text, start=1) if line.endswith("  # refused")}
