"""What an agent does while the batch system behind its backend does not answer.

at once                    nothing is submitted: what is submitted now would be in doubt
after `silent_after_s`     the agent takes nothing new and says so: the server sends jobs to other clusters
after `give_back_after_s`  the agent gives back what has not begun, but nothing that may begin
"""

from __future__ import annotations

from collections.abc import Callable

from switchyard.agent.backends import Trouble
from switchyard.agent.site.site import OutageSite


class BatchSilence:
    """Called from several threads; `trouble` is the backend's."""

    def __init__(self, trouble: Callable[[], Trouble | None], site: OutageSite) -> None:
        self._trouble = trouble
        self._site = site

    def now(self) -> Trouble | None:
        """The silence, however short; None: the batch system answers, or there is none."""
        trouble = self._trouble()
        return trouble if trouble is not None and trouble.silent_s is not None else None

    def long(self) -> Trouble | None:
        """The silence, if it is so long that the server must know it. A controller that restarts is silent, too."""
        return self._longer_than(self._site.silent_after_s)

    def give_back_reason(self) -> str:
        """Why jobs that have not begun go back to the server; empty: they wait here."""
        silence = self._longer_than(self._site.give_back_after_s)
        return f"{silence.text} (for {int(silence.silent_s or 0)} s)" if silence is not None else ""

    def other_trouble(self) -> str:
        """Why the backend takes nothing new, if it is no silence; empty: there is no such trouble."""
        trouble = self._trouble()
        return trouble.text if trouble is not None and trouble.silent_s is None else ""

    def _longer_than(self, bound_s: float) -> Trouble | None:
        silence = self.now()
        return silence if silence is not None and (silence.silent_s or 0.0) >= bound_s else None
