"""Parses the output of squeue, sacct, sbatch and scontrol. Pure. Unreadable values are left out, never guessed.

One form serves Slurm 22.05 to 26.05: `-O` with `:|` after each field, times in seconds since 1970 (SLURM_TIME_FORMAT).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

from switchyard.features.slurm.agent.commands.states import SlurmJobFacts
from switchyard.features.slurm.agent.commands.tres import read_tres

SQUEUE_FIELDS = (
    *("JobArrayID", "State", "exit_code", "Name", "StartTime", "EndTime", "NodeList"),
    *("RestartCnt", "tres-alloc", "UserName", "Reason"),
)
SACCT_FIELDS = ("jobid", "jobname", "state", "exitcode", "start", "end", "nodelist", "alloctres", "maxrss")
JOB_NAME_PREFIX = "yard-"  # of the names of all our jobs
TASKS_MAX = 100_000  # of one array in one row; Slurm itself allows four million

_JOB_ID = re.compile(r"([0-9]+)(?:_(?:([0-9]+)|\[([0-9,\-:]+)(?:%[0-9]+)?\]))?(?:\+[0-9]+)?\Z")
_SUBMITTED = re.compile(r"([0-9]+)(?:;[^\s;]+)?\Z")
_SIZE = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_BACKLOG = re.compile(r"^DBD Agent queue size:\s*([0-9]+)\s*$", re.M)
_PAIR = re.compile(r"(?:^|\s)([A-Za-z_][A-Za-z0-9_:]*)=")


@dataclass(frozen=True, slots=True)
class SlurmJobRow:
    """A native job, or a task of one, under the name it was submitted with."""

    native: str  # 1234 or 1234_7
    name: str
    facts: SlurmJobFacts

    @property
    def handle(self) -> str:
        return handle_of(self.native, self.name)


def handle_of(native: str, name: str) -> str:
    """Identifies a native job: number and name, since a controller that lost its state reuses numbers."""
    return f"{native}/{name}"


def split_handle(handle: str) -> tuple[str, str]:
    native, _, name = handle.partition("/")
    return native, name


def array_job_of(native: str) -> str:
    """The number of the array of a task."""
    return native.partition("_")[0]


def read_sbatch(text: str) -> str | None:
    """The job's number from `sbatch --parsable`: the last line that is a number, since sites add banners."""
    numbers = [match[1] for line in text.splitlines() if (match := _SUBMITTED.match(line.strip()))]
    return numbers[-1] if numbers else None


def read_squeue(text: str, names: Container[str], *, mark: str) -> Iterator[SlurmJobRow]:
    """Rows of squeue with our mark and one of these names; one row per queued task of an array."""
    for line in text.split("\n"):
        number, _, fields = line.partition(f"|{mark}|")
        parts = [number, *fields.split("|")]
        if len(parts) < len(SQUEUE_FIELDS) or parts[3] not in names:
            continue
        number, state, ending, name, started, ended, nodes, restarts, tres, _user = parts[:10]
        code, signal = read_wait_status(ending)
        reason = "|".join(parts[10:]).removesuffix("|")
        facts = SlurmJobFacts(
            state=_state_word(state),
            exit_code=code,
            signal=signal,
            started_s=read_time(started),
            ended_s=read_time(ended),
            nodes=_nodes(nodes),
            reason=reason,
            restarts=int(restarts) if restarts.isdigit() else 0,
            allocated=read_tres(tres),
        )
        for native in read_ids(number):
            yield SlurmJobRow(native, name, facts)


def read_sacct(text: str, *, prefix: str) -> list[SlurmJobRow]:
    """Rows of sacct; the usage of steps is added to their job."""
    rows: list[SlurmJobRow] = []
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) < len(SACCT_FIELDS):
            continue
        state, ending, started, ended, nodes, tres, memory = parts[-7:]
        name = "|".join(parts[1:-7])
        job_id, dot, _ = parts[0].partition(".")
        if dot:  # a step follows its job
            if rows and rows[-1].native == job_id and (size := read_size(memory)) is not None:
                rows[-1] = _with_memory(rows[-1], size)
            continue
        if not name.startswith(prefix):
            rows.append(
                SlurmJobRow("", "", SlurmJobFacts(state=""))
            )  # a placeholder: its steps must not count for another job
            continue
        code, signal = read_wait_status(ending)
        word, _, by = state.partition(" ")
        facts = SlurmJobFacts(
            state=_state_word(word),
            exit_code=code,
            signal=signal,
            started_s=read_time(started),
            ended_s=read_time(ended),
            nodes=_nodes(nodes),
            reason=by,
            memory_bytes_max=read_size(memory),
            allocated=read_tres(tres),
        )
        rows += [SlurmJobRow(native, name, facts) for native in read_ids(job_id)]
    return [row for row in rows if row.native]


def read_ids(text: str) -> list[str]:
    """`7` → 7; `7_3` → 7_3; `7_[1-3,9%2]` → 7_1, 7_2, 7_3, 7_9; of a heterogeneous job the first part."""
    match = _JOB_ID.match(text.strip())
    if match is None:
        return []
    job, task, tasks = match.groups()
    if task is not None:
        return [f"{job}_{task}"]
    if tasks is None:
        return [job]
    indexes = [index for part in tasks.split(",") for index in _indexes(part)]
    return [f"{job}_{index}" for index in indexes[:TASKS_MAX]]


def read_wait_status(text: str) -> tuple[int, int]:
    """Exit code and signal: `7:0` in most places, the wait status `1792` in squeue of 22.05."""
    code, colon, signal = text.strip().partition(":")
    if not code.isdigit() or (colon and not signal.isdigit()):
        return 0, 0
    if colon:
        return int(code), int(signal)
    return int(code) >> 8 & 0xFF, int(code) & 0x7F


def read_time(text: str) -> int | None:
    """Seconds since 1970; None for N/A, None, NONE and Unknown."""
    return int(text) if text.strip().isdigit() and int(text) > 0 else None


def read_size(text: str) -> int | None:
    """Bytes of `3224K`, `1.50G`, `0`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMGTP]?)", text.strip())
    return int(float(match[1]) * _SIZE[match[2]]) if match else None


def read_pairs(line: str) -> dict[str, str]:
    """`A=1 B=two words C=3` of scontrol -o: a value ends at the next name."""
    marks = list(_PAIR.finditer(line))
    ends = [mark.start() for mark in marks[1:]] + [len(line)]
    return {mark[1]: line[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)}


def read_config(text: str) -> dict[str, str]:
    """`scontrol show config`: one name and value per line."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def read_backlog(text: str) -> int | None:
    """How many messages slurmctld has for slurmdbd, from sdiag. None: it does not say."""
    match = _BACKLOG.search(text)
    return int(match[1]) if match else None


def _indexes(part: str) -> range | list[int]:
    span, _, step = part.partition(":")
    first, dash, last = span.partition("-")
    if not first.isdigit() or (dash and not last.isdigit()):
        return []
    stop = int(last) if dash else int(first)
    return range(int(first), min(stop, int(first) + TASKS_MAX) + 1, int(step) if step.isdigit() and int(step) else 1)


def _with_memory(row: SlurmJobRow, size: int) -> SlurmJobRow:
    most = max(size, row.facts.memory_bytes_max or 0)
    return replace(row, facts=replace(row.facts, memory_bytes_max=most))


def _state_word(text: str) -> str:
    return text.strip().rstrip("+").upper()


def _nodes(text: str) -> str:
    text = text.strip()
    return "" if text in ("None assigned", "(null)", "N/A", "None") else text
