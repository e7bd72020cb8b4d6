"""An engine that somebody else wrote and installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "third-engine"
version = "1.0"
[project.entry-points."switchyard.engines"]
third = "third_engine:Third"
"""
ENGINE = """
from switchyard.match.engine import Match, Misfit

class Third:
    def satisfy(self, demand, graph):
        return Match(3) if graph.nodes == 3 else Misfit("node", "three nodes or none")
"""


def install_third_engine(folder: Path) -> Path:
    """A real package, built and installed by pip; what to add to the path of a process that is to have it."""
    source = folder / "third"
    (source / "third_engine").mkdir(parents=True)
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "third_engine/__init__.py").write_text(ENGINE)
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(folder / "site"), str(source)], check=True
    )
    return folder / "site"
