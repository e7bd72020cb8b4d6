"""`make demo` without a terminal: it shows what it promises, ends by itself, and leaves nothing behind."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from switchyard.errors import EXIT_OK
from tests.acceptance.stage import SOON_S
from tests.processes import PATIENCE_S, children_of, until
from tests.programs import YARD, Program, isolated_env

DEMO_S_MAX = PATIENCE_S  # about ten seconds on a quiet machine


def demo(folder: Path) -> Program:
    """The demo, with a folder for temporary files that is its own."""
    (folder / "tmp").mkdir()
    return Program([*YARD, "demo"], folder, name="demo", env={**isolated_env(folder), "TMPDIR": str(folder / "tmp")})


def test_the_demo_explains_two_jobs_names_its_address_and_cleans_up(tmp_path: Path) -> None:
    with demo(tmp_path) as program:
        assert program.wait(DEMO_S_MAX) == EXIT_OK, program.tail()
    said = program.log
    assert said.count("$ yard explain 01") == 2
    assert re.search(r"The dashboard was at http://127\.0\.0\.1:\d+/;", said)
    assert re.search(r"All \d+ jobs ended as they must\.", said)
    assert "\x1b" not in said
    for word in ("SUCCEEDED", "FAILED", "CANCELLED", "REJECTED"):
        assert word in said
    assert leftovers(tmp_path) == []
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_demo_that_is_interrupted_takes_everything_along(tmp_path: Path) -> None:
    with demo(tmp_path) as program:
        program.wait_for(lambda: "RUNNING" in program.log, DEMO_S_MAX, "jobs run")
        children = children_of(program.pid)
        assert len(children) >= 4, "a server and three agents"
        program.signal(signal.SIGINT)
        assert program.wait(PATIENCE_S) == 128 + signal.SIGINT
    until(lambda: leftovers(tmp_path) == [], SOON_S, "nothing is left")
    assert not any(child.is_alive for child in children)


def leftovers(folder: Path) -> list[str]:
    """Processes that were started from this folder and still run: what each was started with."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(folder).encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it ended while we looked
    return found
