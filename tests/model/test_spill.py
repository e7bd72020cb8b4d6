"""Spill rules: two forms, every mistake said, and what they mean after some time."""

from __future__ import annotations

import pytest

from switchyard.model.job.spill import (
    SpillRule,
    opened_pools,
    parse_rule,
    parse_rules,
    pools_in_rules,
    reject_rule,
    spill_notes,
)

GOOD = [
    ("after 10m try pool burst", SpillRule(600, "burst", "after 10m try pool burst", "10m")),
    ("reject after 24h", SpillRule(86_400, None, "reject after 24h", "24h")),
    ("after 90 try pool b.2", SpillRule(90, "b.2", "after 90 try pool b.2", "90")),
    ("reject  after 1:30:00", SpillRule(5400, None, "reject  after 1:30:00", "1:30:00")),
]


@pytest.mark.parametrize(("text", "rule"), GOOD)
def test_a_rule_is_read(text: str, rule: SpillRule) -> None:
    assert parse_rule(text) == rule


BAD = [
    ([""], "is not a spill rule"),
    (["after 10m"], "is not a spill rule; write `after 10m try pool NAME` or `reject after 24h`"),
    (["After 10m try pool burst"], "is not a spill rule"),
    (["after 10m try pool burst\n"], "is not a spill rule"),
    (["after 10m try pool burst or so"], "is not a spill rule"),
    (["after 10m try queue burst"], "is not a spill rule"),
    (["after soon try pool burst"], "'soon' is not a duration"),
    (["after 0s try pool burst"], "'0s' is not a duration"),
    (["reject after -1h"], "'-1h' is not a duration"),
    (["reject after 99999d"], "is over ten years"),
    (["after 10m try pool -x"], "'-x' is not a valid name of a pool"),
    (["reject after 1h", "reject after 2h"], "more than one rule rejects"),
    (["after 1m try pool a", "after 2m try pool a"], "pool a is tried twice"),
    (
        ["reject after 1h", "after 1h try pool a"],
        "never comes about: 'reject after 1h' is sooner",
    ),
]


@pytest.mark.parametrize(("texts", "says"), BAD)
def test_a_mistake_is_said(texts: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        parse_rules(texts)
    assert says in str(raised.value)


def test_every_mistake_is_said_at_once() -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        parse_rules(["nonsense", "after x try pool a", "reject after 1h", "reject after 2h"])
    for mistake in ("'nonsense' is not", "'x' is not a duration", "more than one rule"):
        assert mistake in str(raised.value)


def test_what_rules_mean_after_some_time() -> None:
    rules = ["reject after 24h", "after 10m try pool burst", "after 1h try pool cloud"]
    assert [opened_pools(rules, waited) for waited in (0, 599.9, 600, 3600)] == [(), (), ("burst",), ("burst", "cloud")]
    assert pools_in_rules(rules) == ("burst", "cloud")
    ends = reject_rule(rules)
    assert ends is not None
    assert ends.after_s == 86_400
    assert spill_notes(rules, "project x", 700) == [
        "is rejected unless it has begun after 24h (rule at project x)",
        "may also run in pool burst, having waited 10m (rule at project x)",
        "after 1h may also run in pool cloud (rule at project x)",
    ]
