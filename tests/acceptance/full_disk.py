"""A disk without room."""

from __future__ import annotations

from pathlib import Path


def fill(file: Path) -> None:
    """Write until there is no room left."""
    with file.open("wb", buffering=0) as out:
        for size in (2**20, 2**12, 1):
            try:
                while True:
                    out.write(b"\0" * size)
            except OSError:
                continue
