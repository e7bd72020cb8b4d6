"""What features do to a request before it is admitted, such as to look up an image. May wait, so never on the loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from switchyard.errors import Unavailable
from switchyard.model.job.job import JobRequest
from switchyard.model.rules.access import Role
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor

BULK_US_MAX = 60_000_000  # for all jobs of one bulk request, which holds one of few threads


class RequestPreparer(Protocol):
    """What a feature does to requests."""

    def concerns(self, request: JobRequest) -> bool:
        """Whether there is something to do. Asked of every submit, on the event loop."""

    def prepare(self, request: JobRequest) -> JobRequest:
        """Return the request to admit, within seconds. Raises YardError."""


@dataclass(frozen=True, slots=True)
class RequestPreparers:
    """Those of all features; a setting of the context."""

    items: tuple[RequestPreparer, ...] = ()

    def concerns(self, request: JobRequest) -> bool:
        return bool(self.items) and any(item.concerns(request) for item in self.items)


def needs_preparation(context: Context, request: JobRequest) -> bool:
    return context.setting(RequestPreparers).concerns(request)


def prepare_request(context: Context, actor: Actor, request: JobRequest, *, until_us: int | None = None) -> JobRequest:
    """Prepare a request of an actor who may submit: others must not make the server ask anybody.

    `until_us`: by the steady clock, when the jobs of a bulk request have waited for long enough.
    """
    for item in context.setting(RequestPreparers).items:
        if not item.concerns(request):
            continue
        actor.need_project(Role.SUBMIT, request.project)
        if until_us is not None and context.steady_us() > until_us:
            raise Unavailable(
                f"The images of this request took over {BULK_US_MAX // 1_000_000} s to look up.",
                next_step="Send the other jobs in another request, or name their images by digest.",
            )
        request = item.prepare(request)
    return request
