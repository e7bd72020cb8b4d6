"""Decide which process may act as an agent, so that a copy of an agent's data folder cannot run its jobs twice.

The accepted process is the holder. A process asks to become the holder with its first sync. The rules, in order:

1. The journal must be the journal that the agent joined with. A new journal needs a new join token.
2. The journal's start number must be above the last accepted number. A copied data folder has the number of the
   original's next start, so the server refuses one of the two. An agent counts a start only after acceptance, so a
   refused copy shows the same number for ever.
   Exception: an agent that is killed before it counts the start shows the accepted number again. It is accepted,
   because its incarnation begins with the accepted claim, which it wrote to its journal before it asked
   (agent/journal/journal.py). A copy made in between has the same claim; rules 3 and 4 still apply to the copy.
3. When the process opened the journal, the journal must have had every write that the server knows of. An older copy
   would treat the original's leases as lost in transit and start those jobs again. An agent counts no writes before
   it is accepted, so a refused copy does not catch up.
4. If the server heard the holder recently, it ends the holder's parked poll. The holder stays if it polls again within
   RIVAL_ANSWER_US. So a restarted agent is accepted, and a copy beside a live agent is refused.

Old agents send no origin. Only rule 4 applies to them, unless an earlier process of the agent sent an origin.

Reports, output, files and rotations count only if the holder sends them (`refuse_foreign_process`). Which call
needs the holder is in one table (`agent_calls.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import msgspec
import structlog

from switchyard.errors import Gone, JournalRefused, PlaceAsked, Resync, YardError
from switchyard.model.cluster.poll import Origin
from switchyard.model.job.rival import Rival
from switchyard.model.rules.names import printable_line
from switchyard.model.wire.ids import RANDOM_BITS, make_id
from switchyard.service.core.context import bump_version
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.store.access import access
from switchyard.store.clusters import clusters

RIVAL_ANSWER_US = 5_000_000  # a hundred times as long as an agent needs to poll again
FOREIGN_NOTED_EVERY_US = 60_000_000  # a foreign process may call often, with a new incarnation in every call
FOREIGN_REASON = "it spoke for the agent without having its place"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LastHeardProcess:
    """The agent process that this server heard last."""

    incarnation: str
    writes: int = 0  # writes of its journal, as last reported
    is_gone: bool = False  # its connection ended, and it has not reconnected


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """An agent process asks for a session and lists the attempts that it holds."""

    agent_id: str
    cluster: str
    incarnation: str
    inventory: frozenset[tuple[str, int]]
    origin: Origin | None = None
    is_live: bool = False  # the server heard some process of this agent recently
    last_heard: LastHeardProcess | None = None
    is_named: bool = False  # the process names itself in the header of each call

    def job_ids(self) -> Iterable[str]:
        return ()


def begin_session(batch: Batch, ask: SyncRequest) -> int | YardError:
    """Return the number of the new session, or the error for a process that gets no session."""
    row = clusters.agent_lock(batch.tx, ask.agent_id)
    if row is None:
        return Gone("This agent was removed.")
    update = clusters.AgentUpdate(incarnation=ask.incarnation, is_named=ask.is_named)
    if row.incarnation == ask.incarnation:
        if (answer := rival_answer(row, batch.now_us)) is not None:
            update = update.merged(answer)
        return clusters.agent_begin_session(batch.tx, ask.agent_id, update, at_us=batch.now_us)
    reason = _refusal_reason(row, ask)
    rival = read_rival(row.rival)
    rival = rival if rival is not None and rival.incarnation == ask.incarnation else None
    is_holder_asked = _may_holder_be_alive(row, ask)
    if not reason and is_holder_asked and rival is not None and rival.answered_us is not None:
        reason = "the process that has its place is alive"
    if reason:
        return _refuse(batch, row, ask, reason, rival)
    if is_holder_asked and (rival is None or batch.now_us - rival.asked_us < RIVAL_ANSWER_US):
        if rival is None:
            new_rival = Rival(incarnation=ask.incarnation, place=_place(ask), asked_us=batch.now_us)
            clusters.agent_change(batch.tx, ask.agent_id, clusters.AgentUpdate(rival=_rival_json(new_rival)))
            batch.clusters.add(row.cluster_id)  # ends the holder's parked poll
        return PlaceAsked()
    update = msgspec.structs.replace(update, rival=None, place=_place(ask), writes=None)
    if ask.origin is not None:
        update = msgspec.structs.replace(update, starts=ask.origin.start, writes=ask.origin.found)
    return clusters.agent_begin_session(batch.tx, ask.agent_id, update, at_us=batch.now_us)


def rival_answer(row: clusters.AgentRow | clusters.AgentSession, now_us: int) -> clusters.AgentUpdate | None:
    """Return the update that tells a waiting rival that the agent's process is alive. None: no rival waits."""
    rival = read_rival(row.rival)
    if rival is None or rival.answered_us is not None or rival.refused_us is not None:
        return None
    return clusters.AgentUpdate(rival=_rival_json(msgspec.structs.replace(rival, answered_us=now_us)))


def refuse_foreign_process(batch: Batch, agent_id: str, cluster: str, incarnation: str | None) -> Resync | Gone | None:
    """Return an error if this process is not the agent's holder. Operators are shown the foreign process."""
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
    """Whether a foreign process was noted recently, or a rival still waits for the holder's answer."""
    if rival is None:
        return False
    if rival.refused_us is None:
        return now_us - rival.asked_us < RIVAL_ANSWER_US
    return rival.why == FOREIGN_REASON and now_us - rival.refused_us < FOREIGN_NOTED_EVERY_US


def read_rival(text: str | None) -> Rival | None:
    return None if text is None else msgspec.json.decode(text, type=Rival)


def _refusal_reason(row: clusters.AgentRow, ask: SyncRequest) -> str:
    """Return why rules 1 to 3 refuse this process; empty if they accept it."""
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
    known_writes = row.writes or 0
    if ask.last_heard is not None and ask.last_heard.incarnation == row.incarnation:
        known_writes = max(known_writes, ask.last_heard.writes)
    if origin.found < known_writes and not origin.is_rebuilt:
        return (
            f"its journal had {origin.found} writes when it was opened, and {known_writes} were known here: "
            "the data folder is a copy, or comes from a backup"
        )
    return ""


def _is_same_claim(accepted: str, requesting: str) -> bool:
    """Whether two incarnations begin with the same claim."""
    claim, dash, _ = accepted.partition("-")
    return bool(claim and dash) and requesting.startswith(f"{claim}-")


def _may_holder_be_alive(row: clusters.AgentRow, ask: SyncRequest) -> bool:
    is_gone = ask.last_heard is not None and ask.last_heard.is_gone and ask.last_heard.incarnation == row.incarnation
    return bool(row.incarnation) and ask.is_live and not is_gone


def _refuse(batch: Batch, row: clusters.AgentRow, ask: SyncRequest, reason: str, rival: Rival | None) -> JournalRefused:
    """Refuse a process and show it to operators: once, however often the process asks."""
    shown = read_rival(row.rival)
    if shown is None or (shown.incarnation, shown.why) != (ask.incarnation, reason):
        refused = Rival(
            incarnation=ask.incarnation,
            place=_place(ask),
            asked_us=rival.asked_us if rival is not None else batch.now_us,
            answered_us=rival.answered_us if rival is not None else None,
            refused_us=batch.now_us,
            why=reason,
        )
        _show_refused(batch, row, ask.cluster, refused)
    held_by = f" The place belongs to {row.place}." if row.place else ""
    return JournalRefused(f"The agent {row.name} of cluster {ask.cluster} is refused: {reason}.{held_by}")


def _show_refused(batch: Batch, row: clusters.AgentRow, cluster: str, refused: Rival) -> None:
    """Show a refused process in `yard agent`, in the audit log and in the server's log."""
    clusters.agent_change(batch.tx, row.id, clusters.AgentUpdate(rival=_rival_json(refused)))
    bump_version(batch, Topic.CLUSTERS)
    holder = {"incarnation": row.incarnation, "place": row.place or ""}
    access.audit_insert(
        batch.tx,
        access.AuditRow(
            id=make_id(batch.now_us, secrets.randbits(RANDOM_BITS)),
            at_us=batch.now_us,
            actor=f"agent:{row.name}",
            action="agent.refuse",
            object=f"{cluster}/{row.name}",
            before=msgspec.json.encode(holder).decode(),
            after=_rival_json(refused),
        ),
    )
    batch.settled.append(partial(_warn, cluster, row, refused))


def _warn(cluster: str, row: clusters.AgentRow, refused: Rival) -> None:
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


def _rival_json(rival: Rival) -> str:
    return msgspec.json.encode(rival).decode()
