"""When a batch system counts as silent, why, and for how long."""

from __future__ import annotations

import pytest

from switchyard.agent.backends import Trouble
from switchyard.agent.backends.shared.contact import NO_ANSWER_YET, PENDING_S_MAX, Contact
from switchyard.agent.loop.batch_silence import BatchSilence
from switchyard.agent.site.site import OutageSite
from switchyard.errors import PolicyRefused, Unavailable


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.contact = Contact("Slurm", now_s=lambda: self.now_s)

    def fail(self, why: str) -> None:
        with pytest.raises(Unavailable), self.contact.asking():
            raise Unavailable(why)


def test_silence_begins_with_the_first_question_after_the_last_answer() -> None:
    clock = Clock()
    assert clock.contact.trouble() is None, "nobody has asked"
    clock.fail("squeue:\nno route")
    clock.now_s += 7
    clock.fail("timed out")
    assert clock.contact.trouble() == Trouble("Slurm does not answer: timed out", 7.0)
    with clock.contact.asking():
        pass
    assert clock.contact.trouble() is None
    clock.now_s += 100
    clock.fail("two\nlines")
    assert clock.contact.trouble() == Trouble("Slurm does not answer: two lines", 0.0), "nobody asked meanwhile"


def test_a_question_that_hangs_is_a_silence_before_it_fails() -> None:
    clock = Clock()
    clock.contact.note_asked()
    assert clock.contact.trouble() is None
    clock.now_s += PENDING_S_MAX
    assert clock.contact.trouble() == Trouble(f"Slurm does not answer: {NO_ANSWER_YET}", PENDING_S_MAX)


def test_a_refusal_is_an_answer() -> None:
    clock = Clock()
    clock.fail("timed out")
    with pytest.raises(PolicyRefused), clock.contact.asking():
        raise PolicyRefused("not you")
    assert clock.contact.trouble() is None


def test_the_steps_of_a_silence() -> None:
    clock = Clock()
    silence = BatchSilence(clock.contact.trouble, OutageSite(silent_after_s=30, give_back_after_s=60))
    assert (silence.now(), silence.long(), silence.give_back_reason()) == (None, None, "")
    clock.fail("gone")
    assert silence.now() is not None
    assert silence.long() is None, "a controller that restarts is silent, too"
    clock.now_s += 30
    assert silence.long() == silence.now()
    assert silence.give_back_reason() == ""
    clock.now_s += 30
    assert silence.give_back_reason() == "Slurm does not answer: gone (for 60 s)"


def test_another_trouble_is_no_silence() -> None:
    silence = BatchSilence(lambda: Trouble("no job can be started: no room"), OutageSite())
    assert silence.other_trouble() == "no job can be started: no room"
    assert (silence.now(), silence.give_back_reason()) == (None, "")
