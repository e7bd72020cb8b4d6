"""How a waiting job stands in its queue, and how queues are set: the mistakes of a file, and changes at run time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import UnknownName, YardError
from switchyard.model.rules.layout import LayoutPart
from switchyard.model.rules.queue import Queue, QueueLimits
from switchyard.server.config.config import read_config
from switchyard.service.cluster import layout, queue_settings
from switchyard.service.core.writes.write_condition import WriteCondition
from switchyard.service.reserve.queue_usage import queue_position
from tests.builders import a_request
from tests.service.queued import ANY, FIRST, WIDE, a_job, promote, queued_rig
from tests.service.rig import ADMIN, Rig


@pytest.fixture
def rig(store_url: str, tmp_path: Path) -> Iterator[Rig]:
    with queued_rig(store_url, tmp_path) as rig:
        yield rig


# --- how a job stands


def stand(rig: Rig, job_id: str) -> Any:
    with rig.context.database.read() as tx:
        return queue_position(rig.context, tx, rig.row(job_id))


def test_a_waiting_job_knows_its_position_and_the_shares(rig: Rig) -> None:
    agent = rig.cluster("alpha", graph=WIDE)
    ids = [rig.submit(a_job("shared", project=name, cores=2)).id for name in "aaaaabbbbb"]
    promote(rig)
    agent.lease(50)
    waiting = [job_id for job_id in ids if rig.row(job_id).state == "PENDING"]
    found = {job_id: stand(rig, job_id) for job_id in waiting}
    assert sorted(each.ahead for each in found.values()) == list(range(6))
    one = found[waiting[0]]
    assert (one.queue, one.running, one.limit, one.is_more, one.position) == ("fair", 4, 4, False, str(one.ahead + 1))
    assert [(each.project, each.cores, each.weight) for each in one.shares] == [("a", 2, 1.0), ("b", 6, 3.0)]
    order = sorted(waiting, key=lambda job_id: found[job_id].ahead)
    fair = Queue(attributes=["shared"], limits=QueueLimits(running=5), weights={"b": 3.0})
    queue_settings.queue_put(rig.context, ADMIN, "fair", fair, condition=ANY)
    promote(rig)
    assert [job_id for job_id in waiting if rig.row(job_id).state == "ASSIGNED"] == order[:1], "as foretold"


def test_a_job_in_line_for_its_lease_stands_too_and_a_running_one_does_not(rig: Rig) -> None:
    agent = rig.cluster("alpha", graph=WIDE)
    ids = [rig.submit(a_request(priority=priority)).id for priority in (0, 0, 7)]
    assert [stand(rig, job_id).ahead for job_id in ids] == [1, 2, 0]
    assert stand(rig, ids[0]).limit is None
    agent.lease(1)
    assert stand(rig, ids[2]) is None


def test_a_position_far_behind_is_not_counted_to_the_end(lite: Rig) -> None:
    lite.cluster("alpha", graph=WIDE)
    last = lite.together(*(lite.decided() for _ in range(1003)))[-1].created.id
    found = stand(lite, last)
    assert (found.ahead, found.is_more, found.position) == (1000, True, "1000+")


# --- settings


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("queues: [{name: q, limits: {running: -1}}]", "queues[0].limits.running"),
        ("queues: [{name: q, limits: {running: many}}]", "queues[0].limits.running"),
        ("queues: [{name: q, limits: {projects: {p: -1}}}]", "queues[0].limits.projects.p"),
        ("queues: [{name: q, limits: {waiting: 1}}]", "queues[0].limits.waiting: unknown key"),
        ("queues: [{attributes: [a]}]", "queues[0].name: missing"),
        ("queues: [{name: 'no name'}]", "queues[0].name"),
        ("queues: [{name: q, attributes: ['a b']}]", "queues[0].attributes[0]"),
        ("queues: [{name: q, priority: high}]", "queues[0].priority"),
        ("queues: [{name: q, native: {alpha: 'two words'}}]", "queues[0].native.alpha"),
        ("queues: [{name: q, native: [alpha]}]", "queues[0].native"),
        ("queues: [{name: q, weights: {p: 0}}]", "queues[0].weights.p: Expected `float` >= "),
        ("queues: [{name: q, weights: {p: .inf}}]", "queues[0].weights.p: Expected `float` <= "),
        ("queues: [{name: q, weights: {p: heavy}}]", "queues[0].weights.p"),
        ("queues: [{name: q, ageing: soon}]", "'soon' is not a duration"),
        ("queues: [{name: q, colour: red}]", "queues[0].colour: unknown key"),
    ],
)
def test_every_mistake_in_a_queue_is_said_with_its_place(text: str, says: str) -> None:
    with pytest.raises(YardError) as refused:
        read_config(text, where="config")
    assert says in refused.value.detail


def test_settings_at_run_time_are_checked_audited_and_taken_back(rig: Rig) -> None:
    seen = queue_settings.queue_get(rig.context, ADMIN, "two")
    assert (seen.source, seen.queue.limits.running) == ("file", 2)
    with pytest.raises(YardError) as stale:
        queue_settings.queue_put(rig.context, ADMIN, "two", Queue(), condition=WriteCondition(if_match="file-other"))
    assert stale.value.status == 412
    with pytest.raises(YardError, match="given twice"):
        queue_settings.queue_put(rig.context, ADMIN, "new", Queue(attributes=["x", "x"]), condition=FIRST)
    put = queue_settings.queue_put(rig.context, ADMIN, "new", Queue(attributes=["x"]), condition=FIRST)
    assert (put.source, put.changed_by) == ("set", ADMIN.name)
    assert [each.name for each in queue_settings.queue_list(rig.context, ADMIN)][:3] == ["default", "each", "fair"]
    layout.remove_part(rig.context, ADMIN, LayoutPart.QUEUE, "new", condition=WriteCondition(if_match=put.etag))
    with pytest.raises(UnknownName):
        rig.submit(a_job("x"))
    tags = queue_settings.domain_tags_put(rig.context, ADMIN, "development", ["fast"], condition=FIRST)
    assert rig.job(rig.submit(a_job()).id).queue == "urgent"
    with pytest.raises(UnknownName, match="No queue has the tags nowhere"):
        queue_settings.domain_tags_put(rig.context, ADMIN, "development", ["nowhere"], condition=ANY)
    with pytest.raises(UnknownName, match="no domain 'mars'"):
        queue_settings.domain_tags_put(rig.context, ADMIN, "mars", ["fast"], condition=FIRST)
    layout.remove_part(
        rig.context, ADMIN, LayoutPart.DOMAIN_TAGS, "development", condition=WriteCondition(if_match=tags.etag)
    )
    assert rig.job(rig.submit(a_job()).id).queue == "default"


def test_others_see_of_a_queue_only_what_they_may(rig: Rig) -> None:
    rig.cluster("hidden", graph=WIDE, is_private=True)
    queue = Queue(native={"hidden": "x"}, weights={"a": 2.0, "b": 3.0}, limits=QueueLimits(projects={"b": 9}))
    queue_settings.queue_put(rig.context, ADMIN, "new", queue, condition=FIRST)
    assert queue_settings.queue_get(rig.context, ADMIN, "new").queue == queue
    seen = queue_settings.queue_get(rig.context, rig.user("eve"), "new").queue
    assert (seen.native, seen.weights, seen.limits.projects) == ({}, {}, {})
