"""The known cases of another scheduler's matching, with the right answers. Several are wrong there; here none is."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.match.engine import Match, engine
from tests.match.known_cases import DATA, demand_of_case, graph_of


@pytest.mark.parametrize("name", ["shapes", "walk"])
@pytest.mark.parametrize("case", DATA["cases"], ids=lambda case: f"{case['id']} {case['title']}")
def test_the_answer_is_the_right_one(case: dict[str, Any], name: str) -> None:
    found = engine(name).satisfy(demand_of_case(case), graph_of(case))
    assert isinstance(found, Match) == case["satisfied"]
    assert found.slots == case["slots"]
    assert isinstance(found, Match) or found.reason
