"""One journal, one agent: which process has an agent's place, and when another process may take it.

A process asks for the place with its first sync. The rules, in order:

1. Its journal must be the one that the agent joined with. A new journal needs a new join token.
2. Its number of the journal's starts must be above the last one that was accepted. A copy of the data folder has the
   number of the original's next start, so of the two one is refused, and whoever lost the place never gets it back:
   an agent counts a start only when it was accepted, so a refused copy shows the same number for ever.
   An agent that is killed after this commit and before it has counted the start shows the same number again. It is
   let in, for its incarnation begins with the same word, which it wrote to its journal before it asked
   (agent/start_counter.py). A copy has that word only if it was made in this moment; rules 3 and 4 hold for it.
3. The journal must have had, when it was opened, every write that the server was told of. An older copy would take
   leases that the original has as lost on their way, and start them again. An agent counts no write that it makes
   before it was accepted, so a refused copy does not catch up.
4. If the process that has the place was heard a moment ago, it is asked first: its parked poll comes back, and if it
   polls again within ANSWER_US it keeps the place. So a restart is let in, and a copy beside a living agent is not.

An agent of a version that sends no origin is held to rule 4 alone, unless an earlier process has sent one.

Whatever else a process says with the agent's credential (reports, output, a rotation) counts only if the process has
the place (`refuse_foreign_process`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import msgspec
import structlog

from switchyard.errors import Gone, JournalRefused, PlaceAsked, Resync, YardError
from switchyard.model.ids import RANDOM_BITS, make_id
from switchyard.model.names import printable_line
from switchyard.model.poll import Origin
from switchyard.model.rival import Rival
from switchyard.service.committer import Batch
from switchyard.service.context import bump_version
from switchyard.store import access, clusters

RIVAL_ANSWER_US = 5_000_000  # a hundred times what an agent needs to poll again
FOREIGN_NOTED_EVERY_US = 60_000_000  # a foreign process may ask often, each time under another name
FOREIGN_REASON = "it spoke for the agent without having its place"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LastHeardProcess:
    """The process of an agent that this server heard last."""

    incarnation: str
    writes: int = 0  # of its journal, as far as it said
    is_gone: bool = False  # its connection ended and it has not come back


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """An agent says which attempts it holds; begins a session."""

    agent_id: str
    cluster: str
    incarnation: str
    inventory: frozenset[tuple[str, int]]
    origin: Origin | None = None
    is_live: bool = False  # some process of this agent was heard a moment ago
    voice: LastHeardProcess | None = None

    def job_ids(self) -> Iterable[str]:
        return ()


def begin_session(batch: Batch, ask: SyncRequest) -> int | YardError:
    """The number of the new session; or why this process gets none."""
    row = clusters.agent_lock(batch.tx, ask.agent_id)
    if row is None:
        return Gone("This agent was removed.")
    columns: dict[str, object] = {"incarnation": ask.incarnation}
    if row.incarnation == ask.incarnation:
        columns |= rival_answer_columns(row, batch.now_us)
        return clusters.agent_begin_session(batch.tx, ask.agent_id, columns, at_us=batch.now_us)
    why = _refusal(row, ask)
    rival = read_rival(row.rival)
    rival = rival if rival is not None and rival.incarnation == ask.incarnation else None
    is_asked = _is_to_be_asked(row, ask)
    if not why and is_asked and rival is not None and rival.answered_us is not None:
        why = "the process that has its place is alive"
    if why:
        return _refuse(batch, row, ask, why, rival)
    if is_asked and (rival is None or batch.now_us - rival.asked_us < RIVAL_ANSWER_US):
        if rival is None:
            asked = Rival(incarnation=ask.incarnation, place=_place(ask), asked_us=batch.now_us)
            clusters.agent_change(batch.tx, ask.agent_id, {"rival": _text(asked)})
            batch.clusters.add(row.cluster_id)  # the parked poll of the process that has the place comes back
        return PlaceAsked()
    columns |= {"rival": None, "place": _place(ask), "writes": None}
    if ask.origin is not None:
        columns |= {"starts": ask.origin.start, "writes": ask.origin.found}
    return clusters.agent_begin_session(batch.tx, ask.agent_id, columns, at_us=batch.now_us)


def rival_answer_columns(row: clusters.Row, now_us: int) -> dict[str, object]:
    """The process that has the place polls: the columns that say so to the process that asked for the place."""
    rival = read_rival(row.rival)
    if rival is None or rival.answered_us is not None or rival.refused_us is not None:
        return {}
    return {"rival": _text(msgspec.structs.replace(rival, answered_us=now_us))}


def refuse_foreign_process(batch: Batch, agent_id: str, cluster: str, incarnation: str | None) -> Resync | Gone | None:
    """Why this process may not speak for an agent, if so. Operators are shown a process that tries."""
    row = clusters.agent_lock(batch.tx, agent_id)
    if row is None:
        return Gone("This agent was removed.")
    if row.incarnation and row.incarnation == incarnation:
        return None
    if row.incarnation and not _is_noted(read_rival(row.rival), batch.now_us):
        now_us = batch.now_us
        foreign = Rival(incarnation=incarnation or "", asked_us=now_us, refused_us=now_us, why=FOREIGN_REASON)
        _show_refused(batch, row, cluster, foreign)
    return Resync("This process has not begun the agent's session.")


def _is_noted(rival: Rival | None, now_us: int) -> bool:
    """Whether a foreign process was noted lately, or a process waits for the answer to its question."""
    if rival is None:
        return False
    if rival.refused_us is None:
        return now_us - rival.asked_us < RIVAL_ANSWER_US
    return rival.why == FOREIGN_REASON and now_us - rival.refused_us < FOREIGN_NOTED_EVERY_US


def read_rival(text: str | None) -> Rival | None:
    return None if text is None else msgspec.json.decode(text, type=Rival)


def _refusal(row: clusters.Row, ask: SyncRequest) -> str:
    origin = ask.origin
    if origin is None:
        return "" if row.starts is None else "it does not say which journal it has"
    if origin.journal != row.journal:
        return "its journal is not the one that this agent joined with"
    is_same_start = origin.start == row.starts and _is_same_claim(row.incarnation, ask.incarnation)
    if row.starts is not None and origin.start <= row.starts and not is_same_start:
        return (
            f"its journal says start {origin.start}, and start {row.starts} was here already: "
            "the data folder is a copy, or comes from a backup"
        )
    known = row.writes or 0
    if ask.voice is not None and ask.voice.incarnation == row.incarnation:
        known = max(known, ask.voice.writes)
    if origin.found < known and not origin.is_rebuilt:
        return (
            f"its journal had {origin.found} writes when it was opened, and {known} were known here: "
            "the data folder is a copy, or comes from a backup"
        )
    return ""


def _is_same_claim(accepted: str, asking: str) -> bool:
    """Whether two incarnations begin with the same claim."""
    claim, dash, _ = accepted.partition("-")
    return bool(claim and dash) and asking.startswith(f"{claim}-")


def _is_to_be_asked(row: clusters.Row, ask: SyncRequest) -> bool:
    """Whether the process that has the place may still be alive."""
    is_gone = ask.voice is not None and ask.voice.is_gone and ask.voice.incarnation == row.incarnation
    return bool(row.incarnation) and ask.is_live and not is_gone


def _refuse(batch: Batch, row: clusters.Row, ask: SyncRequest, why: str, rival: Rival | None) -> JournalRefused:
    """Refuse a process, and show it to the operator: once, however often the process asks."""
    before = read_rival(row.rival)
    if before is None or (before.incarnation, before.why) != (ask.incarnation, why):
        refused = Rival(
            incarnation=ask.incarnation,
            place=_place(ask),
            asked_us=rival.asked_us if rival is not None else batch.now_us,
            answered_us=rival.answered_us if rival is not None else None,
            refused_us=batch.now_us,
            why=why,
        )
        _show_refused(batch, row, ask.cluster, refused)
    held_by = f" The place belongs to {row.place}." if row.place else ""
    return JournalRefused(f"The agent {row.name} of cluster {ask.cluster} is refused: {why}.{held_by}")


def _show_refused(batch: Batch, row: clusters.Row, cluster: str, refused: Rival) -> None:
    """Show a refused process in `yard agent`, in the audit log and in the server's log."""
    clusters.agent_change(batch.tx, row.id, {"rival": _text(refused)})
    bump_version(batch, "clusters")
    holder = {"incarnation": row.incarnation, "place": row.place or ""}
    access.audit_insert(
        batch.tx,
        {
            "id": make_id(batch.now_us, secrets.randbits(RANDOM_BITS)),
            "at_us": batch.now_us,
            "actor": f"agent:{row.name}",
            "action": "agent.refuse",
            "object": f"{cluster}/{row.name}",
            "before": msgspec.json.encode(holder).decode(),
            "after": _text(refused),
        },
    )
    batch.settled.append(partial(_warn, cluster, row, refused))


def _warn(cluster: str, row: clusters.Row, refused: Rival) -> None:
    log.warning(
        "agent refused: another process has its place",
        agent=row.name,
        cluster=cluster,
        why=refused.why,
        refused=refused.incarnation,
        refused_place=refused.place,
        holder=row.incarnation,
        holder_place=row.place or "",
    )


def _place(ask: SyncRequest) -> str:
    return printable_line(ask.origin.place) if ask.origin is not None else ""


def _text(rival: Rival) -> str:
    return msgspec.json.encode(rival).decode()
