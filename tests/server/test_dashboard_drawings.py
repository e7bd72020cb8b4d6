"""What the dashboard draws and writes, from values alone."""

from __future__ import annotations

import pytest

from switchyard.features.dashboard.server.charts import CHART_HEIGHT, OTHER, draw_columns, draw_flows
from switchyard.features.dashboard.server.node_map import draw_nodes, draw_tree
from switchyard.features.dashboard.server.session import local_address
from switchyard.model.cluster.cluster import Load
from switchyard.model.graph.graph import FreeNodes
from switchyard.model.job.job import Job, State
from switchyard.model.wire.api import Event
from switchyard.server.pages import formats
from switchyard.server.pages.timeline import WIDTH, draw_timeline
from tests.builders import a_graph

SECOND_US = 1_000_000
BEGIN_US = 1_700_000_000 * SECOND_US


def a_job(**fields: object) -> Job:
    values = {"id": "J", "name": "j", "owner": "ann", "project": "p", "domain": "d", "state": State.RUNNING}
    return Job(**{**values, "created_us": BEGIN_US, **fields})  # type: ignore[arg-type]


def an_event(second: float, state: str, attempt: int = 1, cluster: str = "alpha") -> Event:
    return Event(1, BEGIN_US + int(second * SECOND_US), "J", state.lower(), state, attempt, cluster=cluster)


def test_a_timeline_has_each_state_to_scale_and_a_row_per_attempt() -> None:
    events = [
        an_event(1, "ASSIGNED"),
        an_event(2, "RUNNING"),
        an_event(5, "PENDING"),
        an_event(6, "ASSIGNED", 2, "beta"),
        an_event(8, "RUNNING", 2, "beta"),
    ]
    job = a_job(state=State.FAILED, attempt=2, ended_us=BEGIN_US + 10 * SECOND_US)
    drawn = draw_timeline(job, events, BEGIN_US + 99 * SECOND_US)
    assert [(row.attempt, row.cluster) for row in drawn.rows] == [(1, "alpha"), (2, "beta")]
    bars = [[(bar.word, bar.x, bar.width) for bar in row.bars] for row in drawn.rows]
    assert bars[0] == [("waiting", 0, 100), ("assigned", 100, 100), ("running", 200, 300), ("waiting", 500, 100)]
    assert bars[1] == [("assigned", 600, 200), ("running", 800, 200)]
    assert (drawn.total_s, drawn.is_over) == (10, True)
    assert drawn.rows[0].bars[2].text == "running on alpha for 3.0s"


def test_a_timeline_of_a_job_without_events_uses_its_times() -> None:
    job = a_job(attempt=1, cluster="alpha", assigned_us=BEGIN_US, started_us=BEGIN_US + SECOND_US)
    (row,) = draw_timeline(job, [], BEGIN_US + 2 * SECOND_US).rows
    assert [(bar.word, bar.width) for bar in row.bars] == [("assigned", WIDTH / 2), ("running", WIDTH / 2)]


def test_a_timeline_of_the_newest_events_draws_nothing_before_them() -> None:
    job = a_job(attempt=40, cluster="alpha")
    events = [an_event(60, "RUNNING", 39), an_event(70, "PENDING", 40), an_event(80, "RUNNING", 40)]
    drawn = draw_timeline(job, events, BEGIN_US + 100 * SECOND_US, is_whole=False)
    assert [row.attempt for row in drawn.rows] == [39, 40]
    assert (drawn.rows[0].bars[0].word, drawn.rows[0].bars[0].x) == ("running", 600)
    assert drawn.left_out == 38


def test_columns_stack_to_the_largest_and_few_names_get_a_colour() -> None:
    chart = draw_columns([(0, {"a": 3, "b": 1}), (1, {}), (2, {"a": 1})])
    assert chart.series == [("a", 4), ("b", 1)]
    assert [(part.name, part.y, part.height) for part in chart.columns[0].parts] == [("a", 25, 75), ("b", 0, 25)]
    assert chart.columns[2].parts[0].height == CHART_HEIGHT / 4
    many = draw_columns([(0, {f"c{number}": 1 for number in range(20)})])
    assert many.series[-1] == (OTHER, 14)
    assert sum(part.size for part in many.columns[0].parts) == 20
    assert draw_columns([]).most == 0


def test_flows_keep_every_job() -> None:
    drawn = draw_flows({(f"pool {number}", f"c{number % 9}"): number + 1 for number in range(30)})
    total = sum(range(1, 31))
    assert sum(band.size for band in drawn.bands) == total
    assert sum(end.size for end in drawn.sources) == sum(end.size for end in drawn.targets) == total
    assert "other clusters" in [end.name for end in drawn.targets]
    assert draw_flows({}).bands == []


def test_nodes_are_drawn_by_use() -> None:
    graph = a_graph(count=4, cores=8)
    free = [
        FreeNodes(graph.kinds[0].shape, 1, 8),
        FreeNodes(graph.kinds[0].shape, 2, 4),
        FreeNodes(graph.kinds[0].shape, 1),
    ]
    (kind,) = draw_nodes(graph, Load(free=free, signature=graph.signature))
    assert {level: path.count("M") for level, path in kind.paths.items()} == {"u4": 1, "u2": 2, "u0": 1}
    (unknown,) = draw_nodes(graph, None)
    assert {level: path.count("M") for level, path in unknown.paths.items()} == {"ux": 4}
    assert [(line.depth, line.count, line.type) for line in draw_tree(graph)][:2] == [(0, 1, "cluster"), (1, 4, "node")]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0s"), (9.96, "10.0s"), (41, "41s"), (3600, "1h"), (7500, "2h 5m"), (90_061, "1d 1h")],
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert formats.duration(seconds) == text


def test_foreign_text_shows_what_would_hide() -> None:
    assert formats.show_text("a\x00b\u202ec\x1b[31m\u200b") == "a\ufffdb\ufffdc\ufffd[31m\ufffd"
    assert formats.show_text("a\u00adb\U000e0041c\x85") == "a\ufffdb\ufffdc\ufffd"
    assert formats.show_text("two\nlines\t😀") == "two\nlines\t😀"


def test_a_long_text_keeps_its_end() -> None:
    assert formats.both_ends("first middle last", 6) == "fi\n…\nlast"
    assert formats.both_ends("short", 5) == "short"


@pytest.mark.parametrize("address", ["https://evil.example", "//evil.example", "/\\evil", "/a\r\nb", "", "jobs"])
def test_addresses_of_other_sites_are_not_followed(address: str) -> None:
    assert local_address(address) == "/"


def test_addresses_of_this_site_are_followed() -> None:
    assert local_address("/jobs?state=RUNNING") == "/jobs?state=RUNNING"
