"""Print the requirements of pyproject.toml's dependency groups, one a line; knows nothing of pip."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def main(names: list[str]) -> int:
    groups = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["dependency-groups"]
    unknown = [name for name in names if name not in groups]
    if unknown or not names:
        print(
            f"No such group: {', '.join(unknown) or '(none given)'}. There are: {', '.join(groups)}.", file=sys.stderr
        )
        return 2
    for name in names:
        for requirement in requirements(groups, name):
            print(requirement)
    return 0


def requirements(groups: dict[str, list[Any]], name: str) -> list[str]:
    names: list[str] = []
    for entry in groups[name]:
        if isinstance(entry, str):
            names.append(entry)
        else:
            names += requirements(groups, entry["include-group"])
    return names


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
