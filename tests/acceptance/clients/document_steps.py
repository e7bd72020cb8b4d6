"""The commands of a document."""

from __future__ import annotations

import re
from dataclasses import dataclass

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Step:
    """A command of a document, with the line it stands on."""

    line: int
    text: str


def steps(document: str) -> list[Step]:
    """Commands begin with `$ `; lines after them that begin with `>` go on with them; all else is what they print."""
    found: list[Step] = []
    for block in BLOCK.finditer(document):
        first = document.count("\n", 0, block.start()) + 2
        is_open = False
        for number, line in enumerate(block[1].splitlines(), start=first):
            if line.startswith("$ "):
                found.append(Step(number, line[2:]))
                is_open = True
            elif is_open and (line == ">" or line.startswith("> ")):
                found[-1] = Step(found[-1].line, f"{found[-1].text}\n{line[2:]}")
            else:
                is_open = False
    return found
