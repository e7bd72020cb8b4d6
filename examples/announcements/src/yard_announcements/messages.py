"""Messages of the feature's endpoints."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class NewAnnouncement(Struct, frozen=True, forbid_unknown_fields=True):
    text: Annotated[str, Meta(min_length=1, max_length=500)]


class Announcement(Struct, frozen=True):
    text: str
    author: str
    said_us: int
