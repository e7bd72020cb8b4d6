"""Decides whether an end that Slurm reports belongs to this attempt: one table. Pure.

A controller that lost its state reuses numbers, and applies a node's report about a number to the job that has it now.
A node may also fail to run a script although it has opened the job's output: Slurm took the script away. Slurm reports
that as FAILED with an exit code (2 if the script is gone), as if the command had ended so. If a prolog fails, or a node
cannot launch a job for another reason, Slurm cancels the job, as if somebody had asked for that.

So an end of the command is believed only if the attempt's folder has a sign that the script began. The script makes
its first note before the command, and does not run the command if it cannot make the note.

| Slurm says | the script left | it is |
|---|---|---|
| no end, or one without a node | anything | as Slurm says |
| a fault of the cluster's (preempted, not launched, …) | anything | as Slurm says |
| node failure | no sign | UNBEGUN: a controller that died while it launched it says so later, too |
| node failure | an end that was not a kill | NOTED: a controller that forgot the end says so later, too |
| node failure | anything else | as Slurm says |
| an end of the command | no sign | UNBEGUN |
| out of memory | no sign, and its node opened its output | as Slurm says: no script fits into the job's memory |
| COMPLETED, FAILED | a start under another number | ANOTHER: what became of that one |
| FAILED, by a second start that Slurm knows to be one | a first start | RERUN, unless that began no script |
| FAILED, by a second start that Slurm takes for the first | a first start | NOTED, if it ended by itself, else RERUN |
| COMPLETED, FAILED | the same end | as Slurm says |
| COMPLETED, FAILED | another end, or why there was no command | NOTED: the script's own word |
| COMPLETED, FAILED by a code | a start that was to note its end, and none | UNENDED |
| CANCELLED on a node, and not by us | no sign | UNBEGUN |
| CANCELLED as soon as it had a node | a start before that, and its end | NOTED |
| CANCELLED as soon as it had a node | a start before that, and no end | UNENDED |

Files of a node may appear later than the controller's report, so UNBEGUN and UNENDED are WAIT at first. An UNBEGUN
job is returned to the queue; an UNENDED one is lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum

from switchyard.features.slurm.agent.commands.states import (
    FORGOTTEN_REASON,
    KILL_SIGNALS,
    LAUNCH_FAILURE_SIGNAL,
    NO_CWD_CODE,
    RERUN_REASON,
    UNENTERED_REASONS,
    SlurmJobFacts,
    split_shell_code,
)

SMALL_NUMBER = re.compile("[0-9]{1,3}")  # jobs can write into these files
JOB_NUMBER = re.compile(r"[0-9]{1,12}(_[0-9]{1,12})?")  # of a job or a task
WITHDRAWN_NOTE = "withdrawn"  # written by the agent instead of a start: a lost job must not begin later
EXIT_FOLLOWS_NOTE = "noted"  # last word of a start whose script also writes its end
AT_ONCE_S_MAX = 1  # a controller ends a start that it made again as soon as it sees that the node has the job
CLOCK_SKEW_S_MAX = 1  # between the clocks of controller and file system
NODE_FAIL, OUT_OF_MEMORY = "NODE_FAIL", "OUT_OF_MEMORY"
# States of jobs that began. The other states are about the cluster and need no start.
STATES_AFTER_START = frozenset({"COMPLETED", "DEADLINE", "FAILED", NODE_FAIL, OUT_OF_MEMORY, "TIMEOUT"})
STATES_BY_EXIT = frozenset(
    {"COMPLETED", "FAILED"}
)  # words that a script's end makes: an older one's of the same number, too


@dataclass(frozen=True, slots=True)
class ScriptStart:
    """What a script wrote about its start: its number, earlier starts by Slurm, and the node."""

    native: str
    restarts: int = 0
    node: str = field(default="", compare=False)
    is_noted: bool = field(default=False, compare=False)  # it also writes its end
    at_s: int | None = field(default=None, compare=False)

    @staticmethod
    def read(text: str, at_s: int | None = None) -> ScriptStart:
        """Parse the note. A job can write into it: an invalid number counts as no number."""
        native, restarts, node, last, *_ = [*text.split(" "), "", "", "", ""]
        native = native if JOB_NUMBER.fullmatch(native) else ""
        return ScriptStart(
            native,
            int(restarts) if SMALL_NUMBER.fullmatch(restarts) else 0,
            node=node,
            is_noted=last == EXIT_FOLLOWS_NOTE,
            at_s=at_s,
        )


@dataclass(frozen=True, slots=True)
class ScriptEvidence:
    """What an attempt left in its folder."""

    start: ScriptStart | None = None
    ended: str | None = None  # `code 5` or `signal 9`; empty: it could not be written
    ended_s: int | None = None
    refused: str = ""  # the number of a second start, which did not run
    has_output: bool = False  # the node opened its output files, which is before the script begins
    is_withdrawn: bool = False  # it never began and never can

    @property
    def has_begun(self) -> bool:
        """Whether the script has begun. If not, the command has not begun either."""
        return self.start is not None or self.ended is not None or bool(self.refused)

    @property
    def ending(self) -> tuple[int, int] | None:
        """Exit code and signal that the script wrote, if any."""
        if self.ended in UNENTERED_REASONS:
            return NO_CWD_CODE, 0
        word, _, number = (self.ended or "").rpartition(" ")
        if not SMALL_NUMBER.fullmatch(number):
            return None
        if word in ("code", "signal"):
            return (int(number), 0) if word == "code" else (0, int(number))
        return split_shell_code(int(number)) if not word else None  # an older script wrote only the shell's code

    @property
    def has_own_end(self) -> bool:
        """Whether it wrote an end that was not a kill."""
        return self.ending is not None and self.ending[1] not in KILL_SIGNALS


class EndVerdict(StrEnum):
    SLURM = "as Slurm says"
    NOTED = "as its script says"
    ANOTHER = "it ran under another number"
    RERUN = "a second start was refused"
    WAIT = "its signs may still come"
    UNBEGUN = "not its own end: it never began"
    UNENDED = "not its own end: it began"


def judge_end(
    native: str, facts: SlurmJobFacts, signs: ScriptEvidence, *, is_settled: bool, is_cancel_asked: bool = False
) -> EndVerdict:
    """Judge an end.

    `native`: Slurm's number; `is_settled`: the folder has not changed for long enough; `is_cancel_asked`: by us.
    """
    if is_cancel_asked and facts.state == "CANCELLED" and not signs.has_begun:
        return EndVerdict.SLURM
    verdict = _judge(native, facts, signs)
    return EndVerdict.WAIT if verdict in (EndVerdict.UNBEGUN, EndVerdict.UNENDED) and not is_settled else verdict


def judge_other_start(
    facts: SlurmJobFacts, other: SlurmJobFacts | None, signs: ScriptEvidence, *, is_settled: bool
) -> EndVerdict:
    """Judge an attempt that ran under another number. `other`: Slurm's facts of that number; None: not known."""
    if other is not None:
        return judge_end(signs.start.native if signs.start else "", other, signs, is_settled=is_settled)
    if signs.ending is not None:
        return EndVerdict.NOTED
    if not is_settled:
        return EndVerdict.WAIT
    return EndVerdict.RERUN if facts.state == "FAILED" and facts.is_second_start else EndVerdict.UNENDED


def needs_evidence(facts: SlurmJobFacts) -> bool:
    """Whether this end may belong to another attempt."""
    if facts.state == "FAILED":
        return bool(facts.nodes) and facts.signal != LAUNCH_FAILURE_SIGNAL and facts.reason != RERUN_REASON
    # A node that cannot launch a job has Slurm cancel it, once it reaches the controller: that may take minutes.
    return facts.state == "COMPLETED" or (facts.state in {"CANCELLED", *STATES_AFTER_START} and bool(facts.nodes))


def _judge(native: str, facts: SlurmJobFacts, signs: ScriptEvidence) -> EndVerdict:
    if not needs_evidence(facts):
        return EndVerdict.SLURM
    if not signs.has_begun:
        return EndVerdict.SLURM if facts.state == OUT_OF_MEMORY and signs.has_output else EndVerdict.UNBEGUN
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
            return EndVerdict.NOTED  # Slurm knows one start, so it did not end the first one for the second
        if not is_own:
            return EndVerdict.RERUN
    return _judge_exit(facts, signs)


def _judge_exit(facts: SlurmJobFacts, signs: ScriptEvidence) -> EndVerdict:
    """Judge COMPLETED or FAILED of a script that began under this number."""
    if signs.ended in UNENTERED_REASONS:
        return EndVerdict.NOTED
    if facts.state == "FAILED" and (facts.exit_code, facts.signal) == (0, 0):
        return EndVerdict.SLURM  # an unnamed fault of the cluster: no script ends like this
    if signs.ending is not None:
        return EndVerdict.SLURM if _ending(facts) == signs.ending else EndVerdict.NOTED
    is_missing = signs.ended is None and signs.start is not None and signs.start.is_noted
    return EndVerdict.UNENDED if is_missing and not facts.signal else EndVerdict.SLURM  # a killed script writes nothing


def _judge_cancelled(facts: SlurmJobFacts, signs: ScriptEvidence) -> EndVerdict:
    """Judge CANCELLED at the start: a controller that forgot a start makes another and ends what it finds there."""
    began_s = signs.start.at_s if signs.start else None
    is_known = facts.restarts > 0 or (facts.elapsed_s or 0) > AT_ONCE_S_MAX  # Slurm ended the first start itself
    if is_known or began_s is None or facts.started_s is None or began_s + CLOCK_SKEW_S_MAX >= facts.started_s:
        return EndVerdict.SLURM
    if signs.ended is None:
        return EndVerdict.UNENDED
    return EndVerdict.NOTED if signs.has_own_end else EndVerdict.SLURM


def facts_from_notes(facts: SlurmJobFacts, signs: ScriptEvidence) -> SlurmJobFacts | None:
    """The facts with the end that the script wrote; None: it wrote none."""
    if (ending := signs.ending) is None:
        return None
    code, number = ending
    start = signs.start or ScriptStart("")
    reason = facts.reason if facts.reason == FORGOTTEN_REASON else ""
    if signs.ended in UNENTERED_REASONS:
        reason = signs.ended or ""
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
