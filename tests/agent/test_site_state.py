"""The site's own values: a file that is read as it changes, and never makes the agent say nonsense."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from switchyard.agent.site.site_state import STATE_FILE_BYTES_MAX, SiteState
from switchyard.errors import Malformed


def write(file: Path, text: str) -> None:
    """Replaced as a careful site does it: another file, so that the change is seen whatever the clock's grain."""
    new = file.with_suffix(".new")
    new.write_text(text)
    os.replace(new, file)  # noqa: PTH105


def test_values_follow_the_file(tmp_path: Path) -> None:
    file = tmp_path / "state.yaml"
    write(file, "cost: 3\nsite: north\nopen: true\nshare: 0.5\n")
    state = SiteState(file)
    assert state.values() == {"cost": 3, "site": "north", "open": True, "share": 0.5}
    write(file, '{"cost": 4}')
    assert state.values() == {"cost": 4}
    write(file, "")  # the first half of a write in place
    assert state.values() == {"cost": 4}
    write(file, "cost: [")
    assert state.values() == {"cost": 4}
    file.unlink()
    assert state.values() == {"cost": 4}
    write(file, "{}")
    assert state.values() == {}
    write(file, "cost: 5")
    assert state.values() == {"cost": 5}


def test_no_file_no_values() -> None:
    assert SiteState(None).values() == {}


BAD = ["[1]", "just text", "a: [1]", "a: {b: 1}", "'a b': 1", "a: .inf", "a: 1\na: 2", "a: null", "a: *b"]
BAD += ["a: " + "x" * STATE_FILE_BYTES_MAX, "\n".join(f"v{number}: 1" for number in range(65)), f"a: {2**70}"]


@pytest.mark.parametrize("text", BAD, ids=[text[:12] for text in BAD])
def test_a_wrong_file_stops_the_start(tmp_path: Path, text: str) -> None:
    file = tmp_path / "state.yaml"
    file.write_text(text)
    with pytest.raises(Malformed):
        SiteState(file)


def test_a_missing_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="Cannot read"):
        SiteState(tmp_path / "missing.yaml")
