"""Quantities of Kubernetes as whole numbers: fractions, units, huge ones, garbage."""

from __future__ import annotations

import pytest

from switchyard.features.kubernetes.agent.namespaces.resource_amounts import (
    NODE_AMOUNT_MAX,
    NODE_MILLICORES_MAX,
    add_amounts,
    allocatable_amounts,
    asked_amounts,
    largest_amounts,
    remaining_amounts,
    short_resources,
    show_amount,
)

INT_MAX = 2**63 - 1


@pytest.mark.parametrize(
    ("name", "text", "has", "asked"),
    [
        ("cpu", "1930m", 1930, 1930),
        ("cpu", "4", 4000, 4000),
        ("cpu", 4, 4000, 4000),
        ("cpu", "0.5", 500, 500),
        ("cpu", "0.0001", 0, 1),
        ("cpu", "1500u", 1, 2),
        ("cpu", "1e3", 1_000_000, 1_000_000),
        ("memory", "128Ki", 131_072, 131_072),
        ("memory", "500M", 500_000_000, 500_000_000),
        ("memory", "1e3", 1000, 1000),
        ("memory", "128974848", 128_974_848, 128_974_848),
        ("memory", "12884901888m", 12_884_901, 12_884_902),
        ("memory", "1.5Gi", 1_610_612_736, 1_610_612_736),
        ("nvidia.com/gpu", "8", 8, 8),
        ("pods", "110", 110, 110),
        ("memory", "10E", NODE_AMOUNT_MAX, INT_MAX),
        ("memory", "1e30", NODE_AMOUNT_MAX, INT_MAX),
        ("memory", "9" * 40, NODE_AMOUNT_MAX, INT_MAX),
        ("memory", 10**30, NODE_AMOUNT_MAX, INT_MAX),
        ("cpu", "9223372036854775807", NODE_MILLICORES_MAX, INT_MAX),
    ],
)
def test_a_quantity(name: str, text: str | int, has: int, asked: int) -> None:
    assert allocatable_amounts({name: text}) == ({name: has} if has else {})
    assert asked_amounts({name: text}) == {name: asked}


@pytest.mark.parametrize(
    "text",
    ["", " ", "-1", "-4Gi", "four", "4 Gi", "16GB", "1K", "0x10", "1e3Gi", "NaN", "inf", "1\n", "٣", "1.2.3", True],
)
def test_garbage_counts_as_none(text: str) -> None:
    assert allocatable_amounts({"cpu": text, "memory": "1Gi"}) == {"memory": 2**30}
    assert asked_amounts({"cpu": text}) == {}


def test_sums_and_what_is_left() -> None:
    assert add_amounts({"cpu": 1}, {"cpu": 2, "pods": 1}) == {"cpu": 3, "pods": 1}
    assert largest_amounts([{"cpu": 1}, {"cpu": 2, "pods": 1}]) == {"cpu": 2, "pods": 1}
    assert remaining_amounts({"cpu": 5, "memory": 7}, {"cpu": 9, "x": 1}) == {"cpu": 0, "memory": 7}
    assert short_resources({"cpu": 5, "a/b": 1, "memory": 1}, {"cpu": 5, "memory": 0}) == ["a/b", "memory"]


def test_amounts_in_words() -> None:
    assert show_amount("cpu", 1930) == "1.93 cpu"
    assert show_amount("memory", 2**34) == "16GiB memory"
    assert show_amount("hugepages-2Mi", 2**21) == "2MiB hugepages-2Mi"
    assert show_amount("nvidia.com/gpu", 2) == "2 nvidia.com/gpu"
