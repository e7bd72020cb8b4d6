"""Types of values that several sections of the site file share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

ShortSeconds = Annotated[float, Meta(gt=0, le=3600)]
LongSeconds = Annotated[float, Meta(gt=0, le=30 * 86_400)]
Amount = str | int | float  # `20GiB`, `30m`; a number has no unit
AbsolutePath = Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^/[^\u0000-\u001f]*(?!\n)$")]


class ImagePull(StrEnum):
    """When a container runtime pulls an image."""

    ALWAYS = "always"
    MISSING = "missing"
    NEVER = "never"
