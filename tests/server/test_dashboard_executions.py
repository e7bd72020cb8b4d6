"""Executions and the history of clusters as drawings, from values alone."""

from __future__ import annotations

from switchyard.features.dashboard.server.history_drawing import draw_history
from switchyard.features.dashboard.server.pages.pools import set_card
from switchyard.features.flyte.model.workflow_execution import ExecutionNode, NodeAttempt, WorkflowNodeKind
from switchyard.features.flyte.server.pages.execution_page import (
    BOX_HEIGHT,
    BOXES_MAX,
    draw_gantt,
    draw_graph,
    phase_look,
    phase_words,
)
from switchyard.model.cluster.cluster import Health
from switchyard.model.rules.layout import ClusterSet, SetMember
from switchyard.store.clusters.cluster_samples import ClusterSample

S = 1_000_000


def a_node(node_id: str, *after: str, **fields: object) -> ExecutionNode:
    return ExecutionNode(node_id, WorkflowNodeKind.TASK, after=list(after), **fields)  # type: ignore[arg-type]


def test_a_graph_has_each_node_right_of_those_before_it() -> None:
    drawn = draw_graph(
        [a_node("a"), a_node("b", "a"), a_node("c", "a"), a_node("d", "b", "c"), a_node("x", parent="a")]
    )
    assert drawn is not None
    places = {box.id: (box.x, box.y) for box in drawn.boxes}
    assert list(places) == ["a", "b", "c", "d"], "what is inside a node is not drawn"
    assert places["a"][0] < places["b"][0] == places["c"][0] < places["d"][0]
    assert places["b"][1] + BOX_HEIGHT < places["c"][1]
    assert len(drawn.edges) == 4
    assert (drawn.width, drawn.height) == (places["d"][0] + 168, places["c"][1] + BOX_HEIGHT)


def test_a_graph_stands_nodes_in_any_order_and_is_left_out_if_nobody_could_read_it() -> None:
    drawn = draw_graph([a_node("late", "early"), a_node("early"), a_node("oops", is_failure_node=True)])
    assert drawn is not None
    places = {box.id: box.x for box in drawn.boxes}
    assert places["early"] < places["late"] < places["oops"]
    assert draw_graph([a_node("one")]) is None
    assert draw_graph([a_node(f"n{number}") for number in range(BOXES_MAX + 1)]) is None
    dense = [a_node(f"n{number}", *(f"n{before}" for before in range(number))) for number in range(65)]
    assert draw_graph(dense) is None, "2,080 edges"


def test_a_gantt_has_waiting_and_running_of_each_attempt_to_scale() -> None:
    attempts = [
        NodeAttempt(0, "FAILED", "J0", "alpha", created_us=0, started_us=2 * S, ended_us=4 * S),
        NodeAttempt(1, "RUNNING", "J1", "beta", created_us=4 * S, started_us=6 * S),
    ]
    nodes = [
        a_node("n0", phase="RUNNING", attempts=attempts, created_us=0),
        a_node("n1", parent="n0", phase="SUCCEEDED", created_us=0, ended_us=S),
        a_node("n2"),
    ]
    gantt = draw_gantt(nodes, begin_us=0, end_us=10 * S)
    assert [(bar.look, bar.x, bar.width) for bar in gantt.rows[0].bars] == [
        ("waiting", 0, 200),
        ("failed", 200, 200),
        ("waiting", 400, 200),
        ("running", 600, 400),
    ]
    assert gantt.rows[0].bars[1].text == "attempt 1 failed on alpha for 2.0s"
    assert [row.depth for row in gantt.rows] == [0, 1, 0]
    assert gantt.rows[2].bars == []
    assert gantt.total_s == 10


def test_every_phase_has_a_look() -> None:
    assert [phase_look(phase) for phase in ("", "QUEUED", "RUNNING", "SKIPPED")] == [
        "none",
        "pending",
        "running",
        "cancelled",
    ]
    assert (phase_words(""), phase_words("TIMED_OUT")) == ("not begun", "timed out")


def a_sample(at_s: int, health: str = "up", used: int | None = 4) -> ClusterSample:
    return ClusterSample("c", at_s * S, health, 8, used, 0, None, 1, 0)


def test_a_history_is_drawn_in_steps_and_leaves_out_what_nobody_knows() -> None:
    samples = [a_sample(0), a_sample(50, "down"), a_sample(75, used=8), a_sample(100, used=8)]
    drawn = draw_history(samples, begin_us=0, end_us=100 * S)
    (line,) = drawn.lines
    assert line.area == "M0.0 100V50H500.0V100ZM750.0 100V0H1000.0V100Z"
    assert (line.now, line.most) == (100, 100)
    assert [(span.health, span.x, span.width) for span in drawn.healths] == [
        ("up", 0, 500),
        ("down", 500, 250),
        ("up", 750, 250),
    ]
    assert drawn.text == "Cores: 100 % in use, at most 100 %. Up for 75 % of the time, down for 25 % of the time."


def test_a_history_of_a_new_cluster_and_of_an_old_sample_is_cut_at_the_edges() -> None:
    new = draw_history([a_sample(90), a_sample(100)], begin_us=0, end_us=100 * S)
    assert (new.healths[0].x, new.known_s) == (900, 10)
    old = draw_history([a_sample(-500), a_sample(100)], begin_us=0, end_us=100 * S)
    assert (old.healths[0].x, old.healths[0].width) == (0, 1000)
    silent = draw_history([a_sample(0, used=None), a_sample(100, used=None)], begin_us=0, end_us=100 * S)
    assert silent.lines == []
    assert draw_history([a_sample(100)], begin_us=0, end_us=100 * S).text.startswith("Nothing is recorded yet")


def test_a_pool_shows_shares_by_weight_and_the_jobs_that_went() -> None:
    one = ClusterSet("gpu", [SetMember("a", 1), SetMember("b", 3)], "set", "e")
    card = set_card("pool", one, {("pool gpu", "a"): 5, ("pool gpu", "x"): 2, ("label gpu", "a"): 9}, {"b": Health.UP})
    assert [(member.cluster, member.percent, member.jobs) for member in card.members] == [
        ("b", 75.0, 0),
        ("a", 25.0, 5),
    ]
    assert (card.members[0].health, card.members[1].health, card.jobs) == (Health.UP, None, 7)
    assert '"sticky":false' in card.body
