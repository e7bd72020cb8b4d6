"""The result of one check of `yard agent doctor`."""

from __future__ import annotations

from msgspec import Struct


class Finding(Struct, frozen=True):
    """The result of one check. `is_ok`: None if there was nothing to check."""

    check: str
    is_ok: bool | None
    detail: str
    advice: str = ""
