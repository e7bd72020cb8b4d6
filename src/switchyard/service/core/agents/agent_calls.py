"""Which calls an agent may make: by which process of the agent, for which attempt, and in which state of the attempt.

`AGENT_CALLS` has a row for each endpoint that takes an agent's credential; an endpoint without a row is not served.
`admit_call` is the one check by that row. The credential alone proves little: a copy of its file has it, too. Only the
process that holds the agent's session knows the session's incarnation, which it sends in the header `INCARNATION`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from switchyard.errors import Conflict, NoSuchJob, NotFound
from switchyard.model.files.files import OutputState
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.job.task_states import read_task
from switchyard.model.wire.ids import is_id
from switchyard.service.core.agents.agent_sessions import refuse_foreign_process
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.context import Context
from switchyard.store.clusters import clusters
from switchyard.store.engine.database import Tx
from switchyard.store.files import file_outputs
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import JobDetails


class CallingProcess(Enum):
    """Which process of an agent may call."""

    ANY = auto()  # the credential is enough: nothing of a job, of a user or of another cluster is read or changed
    HOLDER = auto()  # the process that holds the agent's session, by the header
    HOLDER_BY_BODY = auto()  # the same, by the `incarnation` in the body; the use case checks it as it writes
    ASKS_FOR_SESSION = auto()  # a poll: with an inventory it may become the holder, else it must be the holder


class AttemptNeed(Enum):
    """For which attempts an agent may call. They are attempts of this agent, or of a removed one of its cluster."""

    NONE = auto()  # the call is about no attempt
    LIVE = auto()  # attempts that have not ended
    ANY = auto()  # also ended ones: a message may come twice, and stored output files stay (`files/outputs.py`)
    UNSETTLED = auto()  # attempts that have not ended, or whose output files are not all stored


@dataclass(frozen=True, slots=True)
class CallRule:
    process: CallingProcess
    attempt: AttemptNeed = AttemptNeed.NONE


_ANY = CallRule(CallingProcess.ANY)
_HOLDER = CallRule(CallingProcess.HOLDER)
_BY_BODY = CallRule(CallingProcess.HOLDER_BY_BODY)
READ_INPUTS = CallRule(CallingProcess.HOLDER, AttemptNeed.LIVE)
TELL_OUTPUTS = CallRule(CallingProcess.HOLDER, AttemptNeed.ANY)
SEND_OUTPUTS = CallRule(CallingProcess.HOLDER, AttemptNeed.UNSETTLED)

AGENT_CALLS: dict[str, CallRule] = {
    "POST /v1/agents/poll": CallRule(CallingProcess.ASKS_FOR_SESSION),
    "GET /v1/agents/self": _ANY,
    "POST /v1/agents/rotate": _BY_BODY,
    "POST /v1/agents/leave": _BY_BODY,
    "POST /v1/agents/files/read": READ_INPUTS,
    "GET /v1/agents/files/room": SEND_OUTPUTS,
    "POST /v1/agents/files/missing": SEND_OUTPUTS,
    "POST /v1/agents/files/objects": SEND_OUTPUTS,
    "POST /v1/agents/files/trees": SEND_OUTPUTS,
    "POST /v1/agents/outputs": TELL_OUTPUTS,
    "POST /v1/agents/files/views": _HOLDER,
    "GET /v1/agents/cluster-resources": _HOLDER,
    "GET /v1/agents/cluster-resources/objects": _HOLDER,
    "POST /v1/agents/cluster-resources/status": _HOLDER,
    # The graph of the agent's own cluster: scripts of the site set it with the agent's credential.
    "GET /v1/clusters/{cluster}/graph": _ANY,
    "PUT /v1/clusters/{cluster}/graph": _ANY,
    "DELETE /v1/clusters/{cluster}/graph": _ANY,
    "GET /v1/clusters/{cluster}/subsystems": _ANY,
    "GET /v1/clusters/{cluster}/subsystems/{subsystem}": _ANY,
    "PUT /v1/clusters/{cluster}/subsystems/{subsystem}": _ANY,
    "DELETE /v1/clusters/{cluster}/subsystems/{subsystem}": _ANY,
}


@dataclass(frozen=True, slots=True)
class AgentCaller:
    """The agent of a request, and the incarnation in its header; None: an agent of before this header sends none."""

    agent: AgentEntry
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class AgentAttempt:
    """An attempt with its job. `task`: of an array."""

    row: JobDetails
    fence: int
    task: int | None
    cluster_id: str | None
    is_live: bool

    @property
    def owner(self) -> str:
        """The user who holds what this attempt makes."""
        if self.row.owner_id is None:
            raise NotFound(f"The owner of job {self.row.id} was deleted, so nobody can have its files.")
        return self.row.owner_id


def admit_call(
    context: Context, caller: AgentCaller, rule: CallRule, job: str = "", fence: int = 0
) -> AgentAttempt | None:
    """Raise an error unless the rule lets this caller in. Returns the attempt, if the rule is about one."""
    attempt = None
    with context.database.read() as tx:
        is_admitted = rule.process is not CallingProcess.HOLDER or _is_holder(tx, caller)
        if is_admitted and rule.attempt is not AttemptNeed.NONE:
            attempt = find_attempt(tx, caller.agent, job, fence)
            _refuse_ended(tx, attempt, rule.attempt, now_us=context.now_us())
    if not is_admitted:
        _refuse_foreign(context, caller)
    return attempt


def find_attempt(tx: Tx, agent: AgentEntry, job: str, fence: int) -> AgentAttempt:
    """Raises NotFound for a job or a fence that this agent never had, in the same words for all reasons."""
    row = jobs.job_get(tx, job) if is_id(job) else None
    place = file_outputs.attempt_place(tx, job, fence) if row is not None else None
    if row is None or place is None or not _is_place_of(tx, place, agent):
        raise NoSuchJob(f"This agent has had no attempt {fence} of job {job[:40]}.")
    if place.tasks is not None:
        is_live = read_task(place.tasks, place.position).is_live
    else:
        is_live = row.fence == fence and State(row.state) not in FINAL_STATES
    return AgentAttempt(row, fence, place.task, place.cluster_id, is_live)


def _is_place_of(tx: Tx, place: file_outputs.AttemptPlace, agent: AgentEntry) -> bool:
    if place.agent_id is None or place.cluster_id != agent.cluster_id:
        return False
    # An agent that joined anew sends what a removed one has left.
    return place.agent_id == agent.id or clusters.agent_cluster_id(tx, place.agent_id) is None


def are_outputs_settled(tx: Tx, attempt: AgentAttempt, *, now_us: int) -> bool:
    """Whether the attempt has ended and its output files are all stored: they do not change any more.

    Files that were over a limit may still be added, for as long as the agent said that it tries. So may those that
    were given up with a removed agent, which the row says by its error.
    """
    output = None if attempt.is_live else file_outputs.output_get(tx, attempt.row.id, attempt.fence)
    if output is None or output.state != OutputState.READY or output.error:
        return False
    return output.retry_until_us is None or output.retry_until_us <= now_us


def _is_holder(tx: Tx, caller: AgentCaller) -> bool:
    holder = clusters.agent_holder(tx, caller.agent.id)
    if holder is None or not holder.incarnation:
        return False
    if caller.incarnation is None:
        return not holder.is_named
    return caller.incarnation == holder.incarnation


def _refuse_ended(tx: Tx, attempt: AgentAttempt, need: AttemptNeed, *, now_us: int) -> None:
    shown = f"attempt {attempt.fence} of job {attempt.row.id}"
    if need is AttemptNeed.LIVE and not attempt.is_live:
        raise Conflict(f"The {shown} has ended: its input files are not read any more.", next_step="Stop the attempt.")
    if need is AttemptNeed.UNSETTLED and are_outputs_settled(tx, attempt, now_us=now_us):
        raise Conflict(
            f"The {shown} has ended and its output files are stored: they do not change any more.",
            next_step="Nothing is left to send.",
        )


def _refuse_foreign(context: Context, caller: AgentCaller) -> None:
    """Refuse a process that does not hold the agent's session, and show it to operators."""
    row = context.snapshots.fleet.rows.get(caller.agent.cluster_id)
    cluster = row.name if row else ""
    refusal = context.committer.call(
        lambda batch: refuse_foreign_process(batch, caller.agent.id, cluster, caller.incarnation)
    )
    if refusal is not None:
        raise refusal
