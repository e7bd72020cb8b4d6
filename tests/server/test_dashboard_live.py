"""Live blocks of the dashboard: who shares a rendering, and how often one stream renders."""

from __future__ import annotations

from typing import Any, cast

from switchyard.features.dashboard.server.app import all_pages
from switchyard.features.dashboard.server.live import PAUSE_MAX_S, pause_s, view_key
from switchyard.features.dashboard.server.pages import job, jobs, overview
from switchyard.model.rules.access import ROLE_RANK, Role
from switchyard.server.http.call import Call
from switchyard.server.pages.web_page import WebPage
from switchyard.service.core.rights import Actor, Rights

NOTHING = cast(Any, None)
VIEW, OPERATE, ADMIN = ROLE_RANK[Role.VIEW], ROLE_RANK[Role.OPERATE], ROLE_RANK[Role.ADMIN]


def key(page: WebPage, name: str, rights: Rights, **query: str) -> object:
    actor = Actor(name, rights, user_id=f"id-of-{name}")
    return view_key(page, Call(NOTHING, NOTHING, actor, {}, list(query.items())))


def test_only_readers_with_the_same_rights_share_the_overview() -> None:
    viewer = key(overview.PAGE, "ann", Rights(VIEW))
    assert viewer == key(overview.PAGE, "bob", Rights(VIEW))
    assert viewer == key(overview.PAGE, "bob", Rights(VIEW, projects={"web": OPERATE}))
    for others in (
        Rights(ADMIN),
        Rights(VIEW, clusters={"c1": OPERATE}),
        Rights(VIEW, cluster_groups={"gpu": OPERATE}),
        Rights(projects={"web": VIEW}),
    ):
        assert viewer != key(overview.PAGE, "bob", others)
    assert viewer != key(overview.PAGE, "ann", Rights(VIEW), span="day")


def test_other_pages_are_shared_by_streams_of_one_user_alone() -> None:
    assert key(jobs.PAGE, "ann", Rights(VIEW)) == key(jobs.PAGE, "ann", Rights(VIEW))
    assert key(jobs.PAGE, "ann", Rights(VIEW)) != key(jobs.PAGE, "bob", Rights(VIEW))
    assert key(jobs.PAGE, "ann", Rights(VIEW)) != key(jobs.PAGE, "ann", Rights(VIEW, projects={"web": ADMIN}))


def test_the_tasks_of_one_array_share_the_rendering_of_its_page() -> None:
    keys = {key(job.PAGE, "ann", Rights(VIEW), task=str(task), stream="stderr") for task in range(50)}
    assert len(keys) == 1


def test_a_stream_pauses_longer_the_more_it_costs() -> None:
    assert pause_s(jobs.PAGE, 0.001, 1) == jobs.PAGE.pause_s
    assert pause_s(jobs.PAGE, 0.5, 1) == 5.0
    assert pause_s(jobs.PAGE, 0.001, 100) == 10.0
    assert pause_s(jobs.PAGE, 100.0, 1) == PAUSE_MAX_S


def test_pages_that_read_many_rows_run_on_the_threads_for_heavy_reads() -> None:
    light = {page.path for page in all_pages() if not page.is_heavy}
    assert light == {"/rules", "/audit"}
