"""Takes a secret out of the words of this process, which every user of the machine sees in `ps`."""

from __future__ import annotations

from pathlib import Path

ARG_START_FIELD, ARG_END_FIELD = 45, 46  # of /proc/PID/stat behind the name: where the kernel finds the words
ARGUMENTS_BYTES_MAX = 2**21


def hide_argument(secret: str) -> bool:
    """Overwrite a secret among the words by asterisks; false where the system does not let us."""
    wanted = secret.encode()
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        start, end = int(fields[ARG_START_FIELD]), int(fields[ARG_END_FIELD])
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            words = memory.read(min(end - start, ARGUMENTS_BYTES_MAX)) or b""
            if not wanted or wanted not in words:
                return False
            memory.seek(start)
            memory.write(words.replace(wanted, b"*" * len(wanted)))
    except (OSError, ValueError, IndexError):
        return False
    return True
