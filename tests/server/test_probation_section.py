"""The config section `probation`: what it says, and every mistake in it."""

from __future__ import annotations

import pytest

from switchyard.errors import Malformed
from switchyard.route.probation import ProbationTerms
from switchyard.server.config.config import Config, read_config


def test_the_section_is_in_seconds_and_has_defaults() -> None:
    text = (
        "probation: {enabled: false, quick_s: 2.5, failures: 5, owners: 4, canaries: 2, successes: 3, pause_s: 1, "
        "pause_max_s: 60, forget_s: 600}"
    )
    terms = ProbationTerms(False, 2_500_000, 5, 4, 2, 3, 1_000_000, 60_000_000, 600_000_000)
    assert read_config(text, where="x").probation.terms == terms
    assert Config().probation.terms == ProbationTerms()


@pytest.mark.parametrize(
    "mistake",
    [
        "enabled: maybe",
        "quick_s: 0",
        "quick_s: 1e9",
        "failures: 0",
        "failures: 1.5",
        "owners: 1",
        "canaries: 11",
        "successes: 0",
        "pause_s: -1",
        "pause_max_s: soon",
        "forget_s: 0",
        "clusters: 3",
    ],
)
def test_a_mistake_names_its_key(mistake: str) -> None:
    with pytest.raises(Malformed) as refused:
        read_config(f"probation: {{{mistake}}}", where="x")
    assert mistake.partition(":")[0] in str(refused.value)
