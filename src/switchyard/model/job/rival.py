"""The other process that asked for an agent's place: what the operator is shown of it, and how far the question is."""

from __future__ import annotations

from msgspec import Struct


class Rival(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process that shows an agent's credential while another one has the agent's place."""

    incarnation: str
    place: str = ""  # host, folder and process, as it says itself
    asked_us: int
    answered_us: int | None = None  # when the process that has the place showed that it lives
    refused_us: int | None = None
    why: str = ""  # it was refused
