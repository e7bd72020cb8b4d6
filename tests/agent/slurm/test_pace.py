"""How soon an agent looks at Slurm's queue again."""

from __future__ import annotations

import pytest

from switchyard.features.slurm.agent.commands.poll_pace import CPU_CREDIT_S_MAX, CPU_SHARE, PollCost, SqueuePace


class Looks:
    """Looks one after the other, each as soon as the last one lets it."""

    def __init__(self, poll_s: float = 1.0) -> None:
        self.now_s = 100.0
        self.pace = SqueuePace(poll_s, at_s=self.now_s)

    def look(
        self, cpu_s: float = 0.01, *, is_new: bool = False, is_waiting: bool = False, took_s: float = 0.0
    ) -> float:
        took_s = took_s or cpu_s
        self.now_s += took_s
        pause_s = self.pace.after(
            PollCost(took_s, cpu_s), cpu_s=cpu_s, now_s=self.now_s, is_new=is_new, is_waiting=is_waiting
        )
        self.now_s += pause_s
        return pause_s


def test_news_is_followed_closely_and_quiet_less_and_less() -> None:
    looks = Looks()
    assert [looks.look(is_new=True) for _ in range(3)] == [0.25] * 3
    assert [looks.look() for _ in range(4)] == [0.5, 1.0, 1.0, 1.0]
    assert looks.look(is_new=True) == 0.25


@pytest.mark.parametrize(
    ("cpu_s", "is_waiting", "pause_s"), [(0.04, True, 0.8), (0.04, False, 0.25), (0.2, False, 0.8)]
)
def test_a_look_that_costs_more_is_made_less_often(cpu_s: float, is_waiting: bool, pause_s: float) -> None:
    assert Looks().look(cpu_s, is_new=True, is_waiting=is_waiting) == pytest.approx(pause_s)


def test_in_the_long_run_it_keeps_to_its_share_of_a_core() -> None:
    looks, begun_s, count = Looks(), 100.0, 500
    for _ in range(count):
        looks.look(0.1, is_new=True)
    allowed_s = (looks.now_s - begun_s) / CPU_SHARE + CPU_CREDIT_S_MAX
    assert count * 0.1 <= allowed_s + 0.1
    assert count * 0.1 >= allowed_s * 0.9, "and uses it"


def test_what_was_spared_in_quiet_hours_is_bounded() -> None:
    looks = Looks()
    looks.now_s += 3600.0
    assert looks.look(CPU_CREDIT_S_MAX, is_new=True) == 1.0
    assert looks.look(1.0, is_new=True) > 10.0


def test_a_controller_that_is_slow_each_time_is_asked_for_half_of_the_time_at_most() -> None:
    looks = Looks()
    assert looks.look(0.01, took_s=9.0) == 0.25, "once is a controller that hung"
    assert looks.look(0.01, took_s=5.0) == 5.0
