"""`yard explain` and `yard stats` on screens: nothing is wider than the terminal, and no reason is cut."""

from __future__ import annotations

import os
from typing import Any

import pytest

from switchyard.cli import stats
from switchyard.cli.jobs import verdicts
from switchyard.cli.jobs.explain import print_decisions, print_queue_position
from switchyard.cli.jobs.verdicts import print_explanation, print_plan
from switchyard.cli.stats import BarSegment, format_bars
from switchyard.cli.terminal import table
from switchyard.model.cluster.quote import Quote, QuoteOutcome
from switchyard.model.cluster.verdict import Answer, Decision, Explanation, Plan, Verdict
from switchyard.model.rules.queue import QueuePosition, Share

AGO_US = table.now_us() - 130_000_000
LONG = "needs 64 core per task; best node has 32; 4 nodes have at least 32; needs 8 gpu per task; best node has 4"
VERDICTS = [
    Verdict("a-cluster-with-a-name", Answer.NO, "match", LONG, since_us=AGO_US),
    Verdict("b", Answer.YES, "match", "fits; holds 4 such tasks at once"),
    Verdict("c", Answer.WAIT, "health", "down: its agent is silent", since_us=AGO_US),
]
QUOTES = [
    Quote(cluster="b", said=QuoteOutcome.YES, eta_s=754.0, cost=1.25),
    Quote(cluster="c", said=QuoteOutcome.NONE),
    Quote(cluster="a-cluster-with-a-name", said=QuoteOutcome.NO),
]


@pytest.fixture(params=[80, 120])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    width: int = request.param
    for module in (table, verdicts, stats):
        monkeypatch.setattr(module, "screen_width", lambda: width)
    return width


def shown(capsys: pytest.CaptureFixture[str], screen: int) -> str:
    out = capsys.readouterr().out
    assert max(len(line) for line in out.splitlines()) <= screen, out
    return out


def test_a_reason_is_told_whole_on_every_screen(screen: int, capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan("b", VERDICTS, "soonest", "s", "assign", at_us=AGO_US)
    print_explanation(Explanation("j", "RUNNING", plan, VERDICTS, [], quotes=QUOTES, notes=[f"note: {LONG}"]))
    words = shown(capsys, screen).split()
    assert [word for word in LONG.split() if word not in words] == []
    assert {"ETA", "COST", "12m34s", "1.25", "silent", "✔"} <= set(words)
    assert ("SINCE" in words) == (screen == 120)


def test_a_table_with_tasks_fits_on_every_screen(screen: int, capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan("b", VERDICTS, "soonest", "s", "assign", at_us=AGO_US)
    print_explanation(Explanation("j", "RUNNING", plan, VERDICTS, [], quotes=QUOTES), tasks={"b": 1_000_000})
    words = shown(capsys, screen).split()
    assert {"TASKS", "1000000"} <= set(words)
    assert [word for word in LONG.split() if word not in words] == []


def test_a_plan_says_what_would_help(screen: int, capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(
        Plan(None, VERDICTS[:1], "weighted", "s", "reject", LONG, hints=["--gpus 4 instead of 8 (b)", "pool burst (c)"])
    )
    out = shown(capsys, screen)
    assert "Would run if:     --gpus 4 instead of 8 (b)\n               or pool burst (c)\n" in out
    assert "REJECTED" in out
    assert "SINCE" in out


def test_a_place_in_line_is_told_with_its_numbers(screen: int, capsys: pytest.CaptureFixture[str]) -> None:
    shares = [Share("web", 12, 1.0), Share("ml", 40, 4.0)]
    print_queue_position(
        QueuePosition("gpu", 5, 2, limit=40, running=40, project_limit=8, project_running=3, shares=shares)
    )
    print_queue_position(QueuePosition("gpu", 5, 1000, is_more=True))
    out = shown(capsys, screen)
    assert "Queue gpu: number 3 (2 ahead of it), priority 5" in out
    assert "40 of at most 40 run in gpu" in out
    assert "3 of at most 8 of its project run there" in out
    assert "ml: 40 cores at weight 4, share 10" in out
    assert "number 1000+ (1000+ ahead of it)" in out


def test_history_shows_the_newest_and_says_so(screen: int, capsys: pytest.CaptureFixture[str]) -> None:
    many = [Decision(1, "waits", "PENDING", None, f"reason {number}") for number in range(30)]
    print_decisions(many)
    out = shown(capsys, screen)
    assert "the last 20 of 30" in out
    assert "reason 29" in out
    assert "reason 9\n" not in out
    print_decisions(many[:1])
    assert capsys.readouterr().out == ""


def test_bars_have_one_scale_and_show_what_is_there_at_all() -> None:
    rows = [
        ("big", [BarSegment(1000, "green", "#"), BarSegment(1000, "red", "x")]),
        ("small", [BarSegment(1, "green", "#")]),
        ("none", []),
    ]
    lines = format_bars(rows, width=60, coloured=False)
    assert len({line.index(number) + len(number) for line, number in zip(lines, ("2,000", "1", "0"), strict=True)}) == 1
    assert lines[0].count("#") == lines[0].count("x") > 15
    assert lines[1].count("#") == 1
    assert lines[0].endswith(" 100%")
    assert all(len(line) <= 60 for line in lines)


def test_a_name_from_elsewhere_cannot_move_the_cursor() -> None:
    (line,) = format_bars([("\x1b[2Jx" * 20, [BarSegment(1, "green", "#")])], width=60, coloured=False)
    assert "\x1b" not in line


def test_colour_is_only_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "paint", lambda text, style: f"<{style}>{text}")
    parts: list[Any] = [("a", [BarSegment(1, "green", "#")])]
    assert "<green>" in format_bars(parts, width=40, coloured=True)[0]
    assert "<" not in format_bars(parts, width=40, coloured=False)[0]
    assert os.linesep not in format_bars(parts, width=40, coloured=False)[0]
