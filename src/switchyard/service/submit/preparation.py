"""What features do to a request before it is admitted, such as to look up an image. May wait, so never on the loop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from switchyard.errors import BadRequest
from switchyard.model.job.job import JobRequest
from switchyard.model.rules.access import Role
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor

PREPARED_MAX = 200  # jobs of one bulk request, each of which may wait


class RequestPreparer(Protocol):
    """The same request must give the same result within one submit: it is prepared again if it is decided again."""

    def concerns(self, request: JobRequest) -> bool:
        """Whether there is something to do. Asked of every submit, on the event loop."""

    def prepare(self, request: JobRequest) -> JobRequest:
        """Return the request to admit, within seconds. Raises YardError."""


@dataclass(frozen=True, slots=True)
class RequestPreparers:
    """Those of all features; a setting of the context."""

    items: tuple[RequestPreparer, ...] = ()

    def concerns(self, request: JobRequest) -> bool:
        return any(item.concerns(request) for item in self.items)


def needs_preparation(context: Context, request: JobRequest) -> bool:
    return context.setting(RequestPreparers).concerns(request)


def prepare_request(context: Context, actor: Actor, request: JobRequest) -> JobRequest:
    """Prepare a request of an actor who may submit: others must not make the server ask anybody."""
    preparers = context.setting(RequestPreparers).items
    for item in preparers:
        if item.concerns(request):
            actor.need_project(Role.SUBMIT, request.project)
            request = item.prepare(request)
    return request


def refuse_many_preparations(context: Context, requests: Iterable[JobRequest]) -> None:
    """Refuse a bulk request that would wait for too long."""
    preparers = context.setting(RequestPreparers)
    if preparers.items and sum(map(preparers.concerns, requests)) > PREPARED_MAX:
        raise BadRequest(
            f"Over {PREPARED_MAX} jobs of this request name an image whose registry the server asks.",
            next_step="Name the images by their digests (HOST/NAME@sha256:…) in several requests.",
        )
