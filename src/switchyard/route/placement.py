"""What happens to a PENDING job after the router's answer.

Submit, plan, the leader's rounds and the end of a wait for quotes all ask this one function. The caller gathers the
facts, writes the columns and words the reason.
"""

from __future__ import annotations

from enum import Enum


class NeedStatus(Enum):
    """Whether a job needs a place in its queue, or tokens, and has them."""

    NONE = "none"
    MET = "met"
    UNMET = "unmet"


class Placement(Enum):
    """The next step of a PENDING job."""

    REJECT = "reject"  # no cluster could ever run it
    BLOCK = "block"  # the user holds it, or it waits for other jobs
    WAIT = "wait"  # no eligible cluster now
    ASK_QUOTES = "ask_quotes"  # the selection needs quotes first
    QUEUE = "queue"  # a cluster would take it; its queue has no free place
    WAIT_TOKENS = "wait_tokens"  # a cluster would take it; the leader has not granted its tokens
    ASSIGN = "assign"


def decide_placement(
    outcome: str,
    *,
    asks: bool,
    is_blocked: bool,
    place: NeedStatus,
    tokens: NeedStatus,
    has_live_tasks: bool = False,
) -> Placement:
    """Return the next step. The first rule that applies wins.

    `outcome`: the router's answer. `asks`: the selection needs quotes before it can choose; the router holds such a
    job. A place comes before tokens: tokens are granted together with a place, so a job of a full queue takes none.
    The rest of an array is rejected only when its live tasks have ended.
    """
    if outcome == "reject":
        return Placement.WAIT if has_live_tasks else Placement.REJECT
    if is_blocked:
        return Placement.BLOCK
    if asks:
        return Placement.ASK_QUOTES
    if outcome == "hold":
        return Placement.WAIT
    if place is NeedStatus.UNMET:
        return Placement.QUEUE
    if tokens is NeedStatus.UNMET:
        return Placement.WAIT_TOKENS
    return Placement.ASSIGN
