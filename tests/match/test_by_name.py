"""Engines by name: ours, and one that somebody else installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from switchyard.errors import UnknownName
from switchyard.match.engine import engine
from tests.match.third_engine import install_third_engine

ASK = """
from switchyard.match.engine import ENGINES, engine
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.match.demand import Demand
print(ENGINES.names())
for nodes in (3, 4):
    print(engine("third").satisfy(Demand(), compile_graph({"nodes": nodes}, where="graph")))
"""


def test_an_engine_that_is_installed_is_found_by_its_name(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(install_third_engine(tmp_path))}
    said = subprocess.run([sys.executable, "-c", ASK], env=env, capture_output=True, text=True, check=True).stdout
    names, three, four = said.splitlines()
    assert names == "['shapes', 'walk', 'fluxion', 'third']"
    assert three == "Match(slots=3, undecided='')"
    assert "three nodes or none" in four


def test_an_engine_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(UnknownName, match=r"no match engine 'nonsense'. Installed are: shapes, walk"):
        engine("nonsense")
