"""Hides a secret in the arguments of this process, which every user of the machine can see in `ps`."""

from __future__ import annotations

from pathlib import Path

ARG_START_FIELD, ARG_END_FIELD = 45, 46  # in /proc/PID/stat, counted after the name
ARGUMENTS_BYTES_MAX = 2**21


def hide_argument(secret: str) -> bool:
    """Overwrite a secret in the arguments with asterisks. Return False if the system does not allow it."""
    secret_bytes = secret.encode()
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        start, end = int(fields[ARG_START_FIELD]), int(fields[ARG_END_FIELD])
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            words = memory.read(min(end - start, ARGUMENTS_BYTES_MAX)) or b""
            if not secret_bytes or secret_bytes not in words:
                return False
            memory.seek(start)
            memory.write(words.replace(secret_bytes, b"*" * len(secret_bytes)))
    except (OSError, ValueError, IndexError):
        return False
    return True
