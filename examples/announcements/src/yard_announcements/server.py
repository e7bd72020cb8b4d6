"""The server's part: a section of the config, endpoints, a page, a chore of the leader, a metric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta, Struct
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from switchyard.errors import Denied
from switchyard.model.wire.api import Page
from switchyard.server.feature import ServerFeature
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.server.pages.web_page import PageValues, WebPage
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.upkeep.leadership import Leadership
from switchyard.service.upkeep.round import Chore
from yard_announcements import store
from yard_announcements.messages import Announcement, NewAnnouncement

SHOWN_MAX = 20
DAY_US = 86_400_000_000
CLEAN_S = 60.0  # between two looks for old ones


class AnnouncementsSection(Struct, frozen=True, forbid_unknown_fields=True):
    """The section `announcements` of the server's config."""

    days: Annotated[int, Meta(ge=1, le=3650)] = 30  # how long one is shown


def say(call: Call) -> Announcement:
    if not call.actor.is_platform_admin:
        raise Denied("Only administrators of the platform announce something.", next_step="Ask one of them.")
    context = call.context
    row = store.AnnouncementRow(context.new_id(), call.body.text, call.actor.name, context.now_us())
    context.committer.call(lambda batch: store.put(batch.tx, row))
    return Announcement(row.text, row.author, row.said_us)


def show(call: Call) -> Page[Announcement]:
    return Page([Announcement(row.text, row.author, row.said_us) for row in _newest(call.context)])


def _newest(context: Context) -> list[store.AnnouncementRow]:
    with context.database.read() as tx:
        return store.newest(tx, limit=SHOWN_MAX)


def load_page(call: Call) -> PageValues:
    return {"announcements": _newest(call.context)}


class AnnouncementFeature(ServerFeature):
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("GET", "/v1/announcements", "What operators said to all users", Page[Announcement], show),
            Endpoint("POST", "/v1/announcements", "Say something to all users", Announcement, say, NewAnnouncement),
        )

    def pages(self) -> Sequence[WebPage]:
        return (
            WebPage(
                "/announcements",
                "announcements.html",
                "Announcements",
                load_page,
                is_heavy=True,
                menu="Announcements",
                templates="yard_announcements",
            ),
        )

    def chores(self, server: ServerRuntime, leadership: Leadership) -> Sequence[Chore]:
        section = getattr(server.settings.config, "announcements")  # noqa: B009 - a section that the core does not know

        def delete_old(batch: Batch) -> int:
            return store.delete_older(batch.tx, before_us=batch.now_us - section.days * DAY_US)

        return (
            Chore(
                "remove old announcements",
                lambda: leadership.commit(server.context, delete_old),
                lambda _: CLEAN_S,
                is_clean_up=True,
            ),
        )

    def collectors(self, server: ServerRuntime) -> Sequence[Collector]:
        return (_Counted(server.context),)


class _Counted(Collector):
    def __init__(self, context: Context) -> None:
        self._context = context

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("announcements", "What is shown to all users.", len(_newest(self._context)))
