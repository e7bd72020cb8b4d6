"""Whether an end that Slurm tells is this attempt's own: one table of what it says and what the script left. Pure.

A controller that lost its state gives numbers again, and takes a node's word about a number for whoever has it now. So
an end that speaks of the command is believed only with a sign, in the attempt's own folder, that it began.

| Slurm says | the script left | it is |
|---|---|---|
| no end, or one without a node | anything | as Slurm says |
| a fault of the cluster's (preempted, not launched, …) | anything | as Slurm says |
| node failure | nothing at all | UNBEGUN: a controller that died while it launched it says so later, too |
| node failure | an end that nobody made by force | NOTED: a controller that forgot the end says so later, too |
| node failure | anything else | as Slurm says |
| an end of the command | nothing at all | UNBEGUN |
| COMPLETED, FAILED | a start under another number | ANOTHER: what became of that one |
| FAILED, by a second start that Slurm knows to be one | a first start | RERUN, unless that began no script |
| FAILED, by a second start that Slurm takes for the first | a first start | NOTED, if it ended by itself, else RERUN |
| COMPLETED, FAILED | the same end | as Slurm says |
| COMPLETED, FAILED | another end, or why there was no command | NOTED: the script's own word |
| COMPLETED, FAILED by a code | a start that was to note its end, and none | UNENDED |
| CANCELLED as soon as it had a node | nothing at all | UNBEGUN |
| CANCELLED as soon as it had a node | a start before that, and its end | NOTED |
| CANCELLED as soon as it had a node | a start before that, and no end | UNENDED |

What a node has written may be seen here later than what the controller says: UNBEGUN and UNENDED are WAIT at first.
An UNBEGUN job is given back to the queue; an UNENDED one is lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum

from switchyard.agent.backends.slurm.states import (
    FORGOTTEN_REASON,
    KILL_SIGNALS,
    LAUNCH_FAILURE_SIGNAL,
    NO_CWD_CODE,
    NO_CWD_REASON,
    RERUN_REASON,
    SlurmJobFacts,
    split_shell_code,
)

SMALL_NUMBER = re.compile("[0-9]{1,3}")  # jobs can write into these files, too
JOB_NUMBER = re.compile(r"[0-9]{1,12}(_[0-9]{1,12})?")  # of a job, or of a task of an array
WITHDRAWN_NOTE = "withdrawn"  # in the place of a start, by the agent: what is told as lost must not begin after all
EXIT_FOLLOWS_NOTE = "noted"  # the last word of a start whose script writes down its end, too
CLOCK_SKEW_S_MAX = 1  # by which the clocks of controller and file system may differ
NODE_FAIL = "NODE_FAIL"
# Words about what had begun. The others are the cluster's about itself, and true of what never did.
STATES_AFTER_START = frozenset({"COMPLETED", "DEADLINE", "FAILED", NODE_FAIL, "OUT_OF_MEMORY", "TIMEOUT"})
STATES_BY_EXIT = frozenset(
    {"COMPLETED", "FAILED"}
)  # words that a script's end makes: an older one's of the same number, too


@dataclass(frozen=True, slots=True)
class ScriptStart:
    """What a script says of its start: under which number, after how many starts by Slurm, and where."""

    native: str
    restarts: int = 0
    node: str = field(default="", compare=False)
    is_noted: bool = field(default=False, compare=False)  # it writes down its end, too
    at_s: int | None = field(default=None, compare=False)

    @staticmethod
    def read(text: str, at_s: int | None = None) -> ScriptStart:
        """A job can write into its own note: what is no number is no number under which it began."""
        native, restarts, node, last, *_ = [*text.split(" "), "", "", "", ""]
        native = native if JOB_NUMBER.fullmatch(native) else ""
        return ScriptStart(
            native, int(restarts) if SMALL_NUMBER.fullmatch(restarts) else 0, node, last == EXIT_FOLLOWS_NOTE, at_s
        )


@dataclass(frozen=True, slots=True)
class ScriptEvidence:
    """What an attempt left in its folder."""

    start: ScriptStart | None = None
    ended: str | None = None  # `code 5` or `signal 9`: how the command ended; empty: it could not be written
    ended_s: int | None = None
    refused: str = ""  # the number under which it was started once more, and did not run
    has_output: bool = False  # its node opened the files for it
    is_withdrawn: bool = False  # it never began, and never will

    @property
    def is_any(self) -> bool:
        return self.start is not None or self.ended is not None or bool(self.refused) or self.has_output

    @property
    def ending(self) -> tuple[int, int] | None:
        """Exit code and signal, where it wrote them down."""
        if self.ended == NO_CWD_REASON:
            return NO_CWD_CODE, 0
        word, _, number = (self.ended or "").rpartition(" ")
        if not SMALL_NUMBER.fullmatch(number):
            return None
        if word in ("code", "signal"):
            return (int(number), 0) if word == "code" else (0, int(number))
        return split_shell_code(int(number)) if not word else None  # by a script that knew only the shell's word

    @property
    def has_own_end(self) -> bool:
        """Did it write down an end that nobody made by force?"""
        return self.ending is not None and self.ending[1] not in KILL_SIGNALS


class EndVerdict(StrEnum):
    SLURM = "as Slurm says"
    NOTED = "as its script says"
    ANOTHER = "it ran under another number"
    RERUN = "a second start was refused"
    WAIT = "its signs may still come"
    UNBEGUN = "not its own end: it never began"
    UNENDED = "not its own end: it began"


def judge_end(native: str, facts: SlurmJobFacts, signs: ScriptEvidence, *, is_settled: bool) -> EndVerdict:
    """`native`: what Slurm calls it; `is_settled`: its folder has looked like this for long enough."""
    found = _judge(native, facts, signs)
    return EndVerdict.WAIT if found in (EndVerdict.UNBEGUN, EndVerdict.UNENDED) and not is_settled else found


def judge_other_start(
    facts: SlurmJobFacts, other: SlurmJobFacts | None, signs: ScriptEvidence, *, is_settled: bool
) -> EndVerdict:
    """Of one that ran under another number: what Slurm says of that, if it knows it."""
    if other is not None:
        return judge_end(signs.start.native if signs.start else "", other, signs, is_settled=is_settled)
    if signs.ending is not None:
        return EndVerdict.NOTED
    if not is_settled:
        return EndVerdict.WAIT
    return EndVerdict.RERUN if facts.state == "FAILED" and facts.is_second_start else EndVerdict.UNENDED


def needs_evidence(facts: SlurmJobFacts) -> bool:
    """Is this an end that may be another's?"""
    if facts.state == "CANCELLED":
        return bool(facts.nodes) and facts.is_at_once
    if facts.state == "FAILED":
        return bool(facts.nodes) and facts.signal != LAUNCH_FAILURE_SIGNAL and facts.reason != RERUN_REASON
    return facts.state == "COMPLETED" or (facts.state in STATES_AFTER_START and bool(facts.nodes))


def _judge(native: str, facts: SlurmJobFacts, signs: ScriptEvidence) -> EndVerdict:
    if not needs_evidence(facts):
        return EndVerdict.SLURM
    if not signs.is_any:
        return EndVerdict.UNBEGUN
    if facts.state == "CANCELLED":
        return _judge_cancelled(facts, signs)
    if facts.state not in STATES_BY_EXIT:
        return EndVerdict.NOTED if facts.state == NODE_FAIL and signs.has_own_end else EndVerdict.SLURM
    start = signs.start
    if facts.state == "FAILED" and facts.is_second_start and start is None:
        return EndVerdict.RERUN
    if start is not None and start.native not in ("", native):
        return EndVerdict.ANOTHER
    if facts.state == "FAILED" and facts.is_second_start:
        is_own = start == ScriptStart(native, facts.restarts) and signs.refused != native
        if not is_own and facts.restarts == 0 and signs.has_own_end:
            return EndVerdict.NOTED  # Slurm knows of one start: it did not end the first in order to make the second
        if not is_own:
            return EndVerdict.RERUN
    return _judge_exit(facts, signs)


def _judge_exit(facts: SlurmJobFacts, signs: ScriptEvidence) -> EndVerdict:
    """Slurm says COMPLETED or FAILED, of a script that began under this number."""
    if signs.ended == NO_CWD_REASON:
        return EndVerdict.NOTED
    if facts.state == "FAILED" and (facts.exit_code, facts.signal) == (0, 0):
        return EndVerdict.SLURM  # a fault of the cluster's without a name: no script ends so
    if signs.ending is not None:
        return EndVerdict.SLURM if _ending(facts) == signs.ending else EndVerdict.NOTED
    is_missing = signs.ended is None and signs.start is not None and signs.start.is_noted
    return EndVerdict.UNENDED if is_missing and not facts.signal else EndVerdict.SLURM  # who was killed writes nothing


def _judge_cancelled(facts: SlurmJobFacts, signs: ScriptEvidence) -> EndVerdict:
    """As soon as it had a node: a controller that forgot a start makes another, and ends what it then finds there."""
    began_s = signs.start.at_s if signs.start else None
    is_known = facts.restarts > 0  # to Slurm, which ended the first itself
    if is_known or began_s is None or facts.started_s is None or began_s + CLOCK_SKEW_S_MAX >= facts.started_s:
        return EndVerdict.SLURM
    if signs.ended is None:
        return EndVerdict.UNENDED
    return EndVerdict.NOTED if signs.has_own_end else EndVerdict.SLURM


def facts_from_notes(facts: SlurmJobFacts, signs: ScriptEvidence) -> SlurmJobFacts | None:
    """The end that a script wrote down itself; what else Slurm said of it stays."""
    if (ending := signs.ending) is None:
        return None
    code, number = ending
    start = signs.start or ScriptStart("")
    reason = NO_CWD_REASON if signs.ended == NO_CWD_REASON else facts.reason if facts.reason == FORGOTTEN_REASON else ""
    return replace(
        facts,
        state="FAILED" if code or number else "COMPLETED",
        exit_code=code,
        signal=number,
        started_s=start.at_s,
        ended_s=signs.ended_s,
        nodes=start.node or facts.nodes or "unknown",
        reason=reason,
    )


def _ending(facts: SlurmJobFacts) -> tuple[int, int]:
    return (0, facts.signal) if facts.signal else (facts.exit_code, 0)
