"""How a phase of Flyte's looks on a page: of an execution, a node or an attempt."""

from __future__ import annotations

from markupsafe import Markup

_PHASE_LOOKS = {
    "SUCCEEDED": "succeeded",
    "RECOVERED": "succeeded",
    "RUNNING": "running",
    "DYNAMIC_RUNNING": "running",
    "SUCCEEDING": "running",
    "FAILING": "failed",
    "FAILED": "failed",
    "TIMED_OUT": "failed",
    "ABORTING": "cancelled",
    "ABORTED": "cancelled",
    "SKIPPED": "cancelled",
    "": "none",
}


def phase_look(phase: str) -> str:
    """The class of a phase of Flyte's, of an execution, a node or an attempt: our states have the same colours."""
    return _PHASE_LOOKS.get(phase, "pending")


def phase_words(phase: str) -> str:
    return phase.lower().replace("_", " ") if phase else "not begun"


def phase_badge(phase: str) -> Markup:
    return Markup('<span class="state s-{}">{}</span>').format(phase_look(phase), phase_words(phase))
