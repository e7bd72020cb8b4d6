"""`yard` that starts fast, for shells and for commands whose bytes or pipes a test needs.

A test that only needs a command's text takes `tests.programs.yard`.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from tests.warm_programs import BIN, CALLER, YARD_MODULES, starter


@cache
def yard_folder() -> Path:
    """A folder with this `yard`, for the PATH of a shell. The program ends if its caller is killed."""
    if os.environ.get("SOAK"):
        return BIN
    process = starter(YARD_MODULES)
    process.wait_up()
    folder = process.folder / "yard-bin"
    folder.mkdir()
    program = folder / "yard"
    program.write_text(CALLER.format(python=sys.executable, bin=str(BIN), place=str(process.place)))
    program.chmod(0o755)
    return folder


def warm_yard() -> str:
    return str(yard_folder() / "yard")
