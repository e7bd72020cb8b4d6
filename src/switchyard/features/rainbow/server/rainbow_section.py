"""The section `rainbow` of the server's config. Rainbow's services are served only with it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from switchyard.model.jobspec.quantity import DURATION_S_MAX, parse_duration_s
from switchyard.server.config.config import SECRET_CHARS_MIN, Config, Section


class RainbowSection(Section, frozen=True):
    """The Rainbow API on the gRPC port. `handover_ttl`: how long a job without a reported end counts as running."""

    registration_secret: Annotated[str, Meta(min_length=SECRET_CHARS_MIN, max_length=512)]
    anonymous_match: bool = False
    receive_lease: Annotated[int, Meta(ge=1, le=DURATION_S_MAX)] | Annotated[str, Meta(max_length=40)] = "60s"
    handover_ttl: Annotated[int, Meta(ge=1, le=DURATION_S_MAX)] | Annotated[str, Meta(max_length=40)] = "24h"

    def __post_init__(self) -> None:
        if len(self.registration_secret.strip()) < SECRET_CHARS_MIN:
            raise ValueError(f"the registration_secret has under {SECRET_CHARS_MIN} characters: it could be guessed")
        parse_duration_s(self.receive_lease)
        parse_duration_s(self.handover_ttl)

    @property
    def receive_lease_us(self) -> int:
        return parse_duration_s(self.receive_lease) * 1_000_000

    @property
    def handover_ttl_us(self) -> int:
        return parse_duration_s(self.handover_ttl) * 1_000_000


def rainbow_section(config: Config) -> RainbowSection | None:
    section: RainbowSection | None = getattr(config, "rainbow", None)  # not there: a config without features
    return section
