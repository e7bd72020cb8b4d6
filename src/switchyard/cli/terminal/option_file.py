"""Reads the text file that an option names."""

from __future__ import annotations

from pathlib import Path

from switchyard.errors import Malformed, NotFound, YardError


def read_option_file(name: str, option: str, *, bytes_max: int) -> str:
    try:
        path = Path(name)
        if path.stat().st_size > bytes_max:
            raise Malformed(f"{name}: over {bytes_max} bytes.")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as exc:
        raise NotFound(f"There is no file {name}.", next_step=f"Check the name after {option}.") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise YardError(f"{name} cannot be read: {exc}", next_step=f"Check the file after {option}.") from exc
