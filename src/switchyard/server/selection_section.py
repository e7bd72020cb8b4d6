"""The `selection` section of the config file: the algorithm that chooses where a job does not say, and its options."""

from __future__ import annotations

from switchyard.errors import YardError
from switchyard.server.config import Selection
from switchyard.service.submit.selections import Selections, selections_of


def read_selection(section: Selection) -> tuple[Selections, list[str]]:
    """What the section says, and all that is wrong with it."""
    found = selections_of(
        section.name,
        section.options,
        is_stale_used=section.stale == "use",
        stale_after_us=section.stale_after_us,
        quote_wait_us=section.quote_wait_us,
    )
    try:
        found.check()
    except YardError as exc:
        return found, [f"selection: {exc.detail} {exc.next_step}".rstrip()]
    return found, []
