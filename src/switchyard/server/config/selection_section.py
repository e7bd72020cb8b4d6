"""The `selection` section of the config file: the algorithm that chooses where a job does not say, and its options."""

from __future__ import annotations

from switchyard.errors import YardError
from switchyard.server.config.config import SelectionSection
from switchyard.service.core.snapshots.selection_settings import SelectionSettings, selection_settings_of


def read_selection(section: SelectionSection) -> tuple[SelectionSettings, list[str]]:
    """Return the settings of the section, and the mistakes in it."""
    settings = selection_settings_of(
        section.name,
        section.options,
        is_stale_used=section.stale == "use",
        stale_after_us=section.stale_after_us,
        quote_wait_us=section.quote_wait_us,
    )
    try:
        settings.check()
    except YardError as exc:
        return settings, [f"selection: {exc.detail} {exc.next_step}".rstrip()]
    return settings, []
