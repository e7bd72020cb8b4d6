"""The use cases of one server, and what they work on. Sync: nothing here knows the event loop."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.server.config.settings import Settings
from switchyard.service.cluster.fit import FitChecker
from switchyard.service.core.context import Context
from switchyard.service.core.writes.clock import Clock
from switchyard.service.run.lease import Leasing
from switchyard.service.submit.bulk import BulkSubmit
from switchyard.service.submit.submit import Submit


@dataclass(frozen=True)
class Services:
    """Made once, in `app.py`."""

    settings: Settings
    context: Context
    clock: Clock
    submit: Submit
    bulk: BulkSubmit
    leasing: Leasing
    fit: FitChecker
