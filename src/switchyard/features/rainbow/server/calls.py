"""The calls of Rainbow's services, by our use cases. Refusals are errors, which become gRPC codes."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from switchyard.errors import BadRequest, Denied, Malformed, MethodNotAllowed, NotFound
from switchyard.features.rainbow.server import jobspecs
from switchyard.features.rainbow.server.messages import (
    AcceptJobsResponse,
    DeleteResponse,
    ReceiveJobsResponse,
    RegisterResponse,
    ReportJobsResponse,
    SubmitJobResponse,
    UpdateStateResponse,
)
from switchyard.features.rainbow.server.rainbow_section import RainbowSection, rainbow_section
from switchyard.features.rainbow.server.secret_guesses import SecretGuessLimiter, caller_address
from switchyard.features.rainbow.service import rainbow
from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.cluster.poll import BATCH_MAX, Report
from switchyard.model.cluster.selection import Scalar
from switchyard.model.cluster.verdict import FitAnswer, FitRequest
from switchyard.model.job.job import ClusterToken
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.rules.names import NAME_HINT, is_name
from switchyard.model.wire.decode import JsonReader, convert
from switchyard.server.grpc.limiter import Limiter
from switchyard.server.services import Services
from switchyard.service.cluster import clusters, graphs, poller_access
from switchyard.service.core.agents.credential import split_credential
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor, rights_of
from switchyard.service.core.writes.committer import BatchCall
from switchyard.service.lifecycle.transitions import HANDED_OVER_REASON
from switchyard.service.placement.decision import TooSlowForLoop
from switchyard.service.run import pollers

MAIN_GRAPH_NAMES = ("", "cluster", "containment")  # subsystem names that mean the cluster itself
DEFAULT_MATCHER = "match"  # Rainbow's name for its only matcher
GRAPH_BYTES_MAX = 30 * 2**20  # of a message's bound, less its other fields
CLUSTERS_MAX = 10_000
QUICK_BYTES_MAX = 4096  # of a jobspec and the options beside it: read in less than a millisecond
QUICK_CLUSTERS_MAX = 100  # with a token each
SIGNAL_MAX = 64
_payload = JsonReader(dict[str, Any])
_jobspec = JsonReader(dict[str, Any])


@dataclass(frozen=True)
class RainbowServer:
    """What Rainbow's calls need of the server."""

    services: Services
    limiter: Limiter
    guesses: SecretGuessLimiter
    received: pollers.ReceivedJobs

    @property
    def context(self) -> Context:
        return self.services.context


def _section(server: RainbowServer) -> RainbowSection:
    section = rainbow_section(server.services.settings.config)
    assert section is not None  # without the section the services are not served
    return section


def register(server: RainbowServer, request: Any) -> Any:
    """Register a cluster with its graph, by the server's secret or by a join token of `yard cluster invite`.

    Rainbow lets a client name the subsystem of this graph. Whatever the name, it is the cluster's own graph.
    """
    invite = _admit_registration(server, request)
    if not is_name(request.name):
        raise Malformed(f"The cluster's name is not one: {NAME_HINT}.")
    if request.subsystem not in MAIN_GRAPH_NAMES and not is_name(request.subsystem):
        raise Malformed(f"{request.subsystem[:80]!r} cannot be the name of a subsystem: {NAME_HINT}.")
    source = _graph(request.nodes, "cluster")
    registered = poller_access.poller_register(server.context, request.name, source, invite=invite)
    if registered is None:
        return RegisterResponse(status="REGISTER_EXISTS")
    return RegisterResponse(status="REGISTER_SUCCESS", token=registered.token, secret=registered.secret)


def _admit_registration(server: RainbowServer, request: Any) -> tuple[str, str] | None:
    """Check the secret of a registration. Returns the invite; None if it was the server's secret.

    Wrong secrets are counted, so that nobody can guess the server's secret.
    """
    if split_credential(request.secret, "join"):  # too long to be guessed
        return poller_access.check_join_token(server.context, request.name, request.secret)
    address = caller_address.get()
    server.guesses.check(address)
    if hmac.compare_digest(request.secret.encode(), _section(server).registration_secret.encode()):
        return None
    server.guesses.note_wrong(address)
    return poller_access.check_join_token(server.context, request.name, request.secret)


def _graph(text: str, what: str) -> graphs.PackedGraph:
    if not text:
        raise Malformed(f"{what} nodes are required: the graph, as JSON.")
    body = text.encode()
    if len(body) > GRAPH_BYTES_MAX:
        raise Malformed(
            f"The graph is over {GRAPH_BYTES_MAX} bytes.", next_step="Send it with `yard cluster set-graph`."
        )
    return graphs.pack_graph(body)


def register_subsystem(server: RainbowServer, request: Any) -> Any:
    if not (request.name and request.secret and request.nodes and request.subsystem):
        raise Malformed("subsystem nodes, name, cluster name and secret are required.")
    caller = _caller(server, request.name, request.secret)
    if request.subsystem in MAIN_GRAPH_NAMES or not is_name(request.subsystem):
        raise Malformed(f"{request.subsystem[:80]!r} cannot be the name of a subsystem: {NAME_HINT}.")
    known = graphs.subsystem_list(server.context, caller, request.name)
    if any(subsystem.name == request.subsystem for subsystem in known):
        raise BadRequest(
            f"The subsystem {request.subsystem} already exists.", next_step="Delete it first: DeleteSubsystem."
        )
    source = _graph(request.nodes, "subsystem")
    graphs.subsystem_put(server.context, caller, request.name, request.subsystem, source)
    return RegisterResponse(status="REGISTER_SUCCESS")


def _caller(server: RainbowServer, name: str, secret: str) -> graphs.GraphCaller:
    entry = poller_access.authenticate_poller(server.context, name, secret)
    return graphs.GraphCaller(Actor(f"agent:{entry.name}", rights_of("", (), ())), entry)


def delete(server: RainbowServer, request: Any) -> Any:
    """Delete a cluster. Its waiting jobs are routed again; jobs that it had accepted are abandoned."""
    entry = poller_access.authenticate_poller(server.context, request.name, request.secret)
    member = server.context.snapshots.world.by_id.get(entry.cluster_id)
    if member is None:  # it has just been deleted by another call
        return DeleteResponse(status="DELETE_NO_EXISTS")
    clusters.end_registration(server.context, member, by=f"agent:{entry.name}", abandon=True)
    return DeleteResponse(status="DELETE_SUCCESS")


def delete_subsystem(server: RainbowServer, request: Any) -> Any:
    caller = _caller(server, request.name, request.secret)
    try:
        graphs.subsystem_delete(server.context, caller, request.name, request.subsytem)
    except NotFound:
        return DeleteResponse(status="DELETE_NO_EXISTS")
    return DeleteResponse(status="DELETE_SUCCESS")


def update_state(server: RainbowServer, request: Any) -> Any:
    entry = poller_access.authenticate_poller(server.context, request.cluster, request.secret)
    values = _payload.read(_unwrapped(request.payload))
    usable: dict[str, Scalar] = {
        name: value for name, value in values.items() if isinstance(value, bool | int | float | str)
    }
    change = convert({"state": usable}, ClusterChange, where="payload")
    clusters.set_polled_state(server.context, entry.cluster_id, change.state or {}, by=f"agent:{entry.name}")
    is_complete = len(usable) == len(values)
    return UpdateStateResponse(status="UPDATE_STATE_SUCCESS" if is_complete else "UPDATE_STATE_PARTIAL")


def _unwrapped(payload: str) -> bytes:
    """Remove a layer of JSON: Rainbow's Python client sends a file's text as a JSON string."""
    text = payload.strip()
    if text.startswith('"'):
        try:
            text = msgspec.json.decode(text, type=str)
        except msgspec.DecodeError as exc:
            raise Malformed(f"The payload is not JSON: {exc}.") from exc
    return text.encode()


def submit_decide(server: RainbowServer, request: Any, *, is_quick: bool = False, is_counted: bool = False) -> Any:
    """Return the write that makes the job; or the answer, if the request only asks which clusters fit.

    `is_quick`: raise TooSlowForLoop if it may take long. `is_counted`: the request has already been counted.
    """
    if is_quick and not _is_small(request):
        raise TooSlowForLoop
    named_clusters = [cluster for cluster in request.clusters if cluster.name and cluster.token]
    if not named_clusters:
        raise Malformed("one or more authenticated clusters are required: each with its name and token.")
    if len(named_clusters) > CLUSTERS_MAX:
        raise Malformed(f"{len(named_clusters)} clusters; at most {CLUSTERS_MAX} are taken.")
    if any(not is_name(cluster.name) for cluster in named_clusters):
        raise Denied("request denied: there is no such cluster.", next_step=rainbow.HOW_TO_BE_ADMITTED)
    tokens = [ClusterToken(cluster.name, cluster.token) for cluster in named_clusters]
    actor = rainbow.actor_of_cluster_tokens(server.context, tokens)
    if not is_counted:
        server.limiter.count_request(actor)
    job = jobspecs.read_request(
        request.jobspec,
        name=request.name,
        clusters=tokens,
        algorithm=request.select_algorithm,
        options=dict(request.select_options),
    )
    if request.satisfy_only:
        names = rainbow.possible_clusters(server.services.submit, actor, job)
        return SubmitJobResponse(status="SUBMIT_SUCCESS", clusters=names)
    return rainbow.decide(server.context, server.services.submit, actor, job, request.jobspec, is_quick=is_quick)


def _is_small(request: Any) -> bool:
    """Whether a request is read and decided quickly."""
    size = len(request.jobspec) + sum(len(value) for value in request.select_options.values())
    return not request.satisfy_only and size <= QUICK_BYTES_MAX and len(request.clusters) <= QUICK_CLUSTERS_MAX


def submit_decide_fresh(server: RainbowServer, request: Any) -> Any:
    """Decide on a thread, from fresh snapshots: a refusal is final, and another server may have changed them."""
    server.context.snapshots.refresh()
    return submit_decide(server, request, is_counted=_is_small(request))


def submit_response(numbered: rainbow.NumberedJob) -> Any:
    return SubmitJobResponse(status="SUBMIT_SUCCESS", jobid=numbered.number, cluster=numbered.cluster)


def receive_jobs(server: RainbowServer, request: Any) -> Any:
    entry = poller_access.authenticate_poller(server.context, request.cluster, request.secret)
    asked = _receive_request(server, request, entry)
    return receive_response(pollers.receive_jobs(server.context, server.services.leasing, asked))


def receive_write(server: RainbowServer, request: Any) -> BatchCall | None:
    """Return the write of `receive_jobs` if the caller is known without the database. Its result may be None, too."""
    entry = poller_access.known_poller(server.context, request.cluster, request.secret)
    if entry is None:
        return None
    asked = _receive_request(server, request, entry)
    return pollers.receive_write(server.context, server.services.leasing, asked)


def _receive_request(server: RainbowServer, request: Any, entry: AgentEntry) -> pollers.ReceiveRequest:
    return pollers.ReceiveRequest(
        entry=entry,
        most=request.maxJobs,
        lease_us=_section(server).receive_lease_us,
        write=jobspecs.received_job,
        received=server.received,
    )


def receive_response(jobs: dict[int, str]) -> Any:
    return ReceiveJobsResponse(status="REQUEST_JOBS_SUCCESS" if jobs else "REQUEST_JOBS_NORESULTS", jobs=jobs)


def accept_jobs(server: RainbowServer, request: Any) -> Any:
    entry = poller_access.authenticate_poller(server.context, request.cluster, request.secret)
    numbers = _accepted_numbers(request)
    return accept_response(request, pollers.accept_jobs(server.context, entry, numbers, server.received))


def accept_write(server: RainbowServer, request: Any) -> BatchCall | None:
    """Return the write of `accept_jobs` if the caller and the jobs are known without the database."""
    entry = poller_access.known_poller(server.context, request.cluster, request.secret)
    if entry is None:
        return None
    numbers = _accepted_numbers(request)
    locks = server.received.take(numbers)
    return None if locks is None else pollers.accept_write(entry, numbers, locks)


def _accepted_numbers(request: Any) -> list[int]:
    if not request.jobids:
        raise Malformed("one or more jobs must be accepted.")
    if len(request.jobids) > BATCH_MAX:
        raise Malformed(f"At most {BATCH_MAX} jobs are accepted at once.")
    return list(request.jobids)


def accept_response(request: Any, accepted: int) -> Any:
    is_all = accepted == len(request.jobids)
    return AcceptJobsResponse(status="RESULT_TYPE_SUCCESS" if is_all else "RESULT_TYPE_PARTIAL")


_SEEN_BY_NUMBER = {
    1: ObservedState.RUNNING,
    2: ObservedState.SUCCEEDED,
    3: ObservedState.FAILED,
    4: ObservedState.CANCELLED,
    5: ObservedState.SUBMITTED,
}


def report_jobs(server: RainbowServer, request: Any) -> Any:
    """Our addition to Rainbow: a cluster reports what became of the jobs that it accepted."""
    entry = poller_access.authenticate_poller(server.context, request.cluster, request.secret)
    if len(request.reports) > BATCH_MAX:
        raise Malformed(f"At most {BATCH_MAX} reports are taken at once.")
    reports = []
    for sent in request.reports:
        if (seen := _SEEN_BY_NUMBER.get(sent.seen)) is None:
            raise Malformed(f"Job {sent.jobid}: `seen` is WAITING, RUNNING, SUCCEEDED, FAILED or CANCELLED.")
        exit_code, signal = _end(seen, sent.exit_code)
        reason = HANDED_OVER_REASON if seen is ObservedState.SUBMITTED else sent.reason[:4096]
        report = Report("0" * 26, 0, seen, exit_code=exit_code, signal=signal, reason=reason)
        reports.append((sent.jobid, report))
    taken, refused, cancelled = pollers.report_ends(server.context, entry, reports)
    return ReportJobsResponse(taken=taken, refused=refused, cancelled=cancelled)


def _end(seen: ObservedState, code: int) -> tuple[int | None, int | None]:
    """Exit code and signal. A negative code is a signal, as in Python's `returncode`."""
    if seen is ObservedState.SUCCEEDED:
        return 0, None
    if seen is not ObservedState.FAILED or not code:  # a failure with code 0: the code is unknown
        return None, None
    return (None, -code) if -SIGNAL_MAX <= code < 0 else (code, None)


def match_anonymous(server: RainbowServer, payload: str, matcher: str) -> FitAnswer:
    """List the public clusters that could run a job: the call has no credential."""
    if not _section(server).anonymous_match:
        raise MethodNotAllowed(
            "Satisfy carries no credential, and this server answers no strangers.",
            next_step="Its operator can set `rainbow: {anonymous_match: true}`; SubmitJob matches by itself.",
        )
    form = _jobspec.read(payload.encode())
    access = server.context.snapshots.access
    stranger = Actor("", rights_of("", (), access.grants))
    engine = None if matcher in ("", DEFAULT_MATCHER) else matcher
    request = FitRequest(jobspec=form, match_engine=engine, only_fitting=True, now=False)
    return msgspec.json.decode(server.services.fit.answer(stranger, request), type=FitAnswer)


# SubmitJob, Satisfy, ReceiveJobs and AcceptJobs are in grpc_services.py: they are called many times a second.
SCHEDULER_CALLS: dict[str, Callable[[RainbowServer, Any], Any]] = {
    "Register": register,
    "RegisterSubsystem": register_subsystem,
    "Delete": delete,
    "DeleteSubsystem": delete_subsystem,
    "UpdateState": update_state,
}
HANDOVER_CALLS: dict[str, Callable[[RainbowServer, Any], Any]] = {"ReportJobs": report_jobs}
