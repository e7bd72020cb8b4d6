"""What each call of Rainbow's services does, in terms of our use cases. Refusals are errors, told as gRPC codes."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

import msgspec

from switchyard.errors import BadRequest, Denied, Malformed, MethodNotAllowed, NotFound
from switchyard.model.cluster import ClusterChange
from switchyard.model.decode import JsonReader, convert
from switchyard.model.job import ClusterToken
from switchyard.model.lifecycle import ObservedState
from switchyard.model.names import NAME_HINT, is_name
from switchyard.model.poll import BATCH_MAX, Report
from switchyard.model.selection import Scalar
from switchyard.model.verdict import FitAnswer, FitRequest
from switchyard.server.config import RainbowSection
from switchyard.server.rainbow import jobspecs
from switchyard.server.rainbow.messages import (
    AcceptJobsResponse,
    DeleteResponse,
    ReceiveJobsResponse,
    RegisterResponse,
    ReportJobsResponse,
    SubmitJobResponse,
    UpdateStateResponse,
)
from switchyard.server.rainbow.secret_guesses import caller_address
from switchyard.server.runtime import ServerRuntime
from switchyard.service.cluster import clusters, graphs, poller_access
from switchyard.service.credential import split_credential
from switchyard.service.rights import Actor, rights_of
from switchyard.service.run import pollers
from switchyard.service.run.report import HANDED_OVER_REASON
from switchyard.service.submit import rainbow
from switchyard.service.submit.submit import TooSlowForLoop

MAIN_GRAPH_NAMES = ("", "cluster", "containment")  # what a subsystem is called that is the cluster itself
DEFAULT_MATCHER = "match"  # its word for the one way to match
GRAPH_BYTES_MAX = 30 * 2**20  # what the port takes in one message, less its other fields
CLUSTERS_MAX = 10_000
QUICK_BYTES_MAX = 4096  # of a jobspec and the options beside it: read in less than a millisecond
QUICK_CLUSTERS_MAX = 100  # with a token each
SIGNAL_MAX = 64
_payload = JsonReader(dict[str, Any])
_jobspec = JsonReader(dict[str, Any])


def rainbow_section(yard: ServerRuntime) -> RainbowSection:
    found = yard.settings.config.rainbow
    assert found is not None  # without it the door is not there
    return found


def register(yard: ServerRuntime, request: Any) -> Any:
    """The server's secret, or a join token of `yard cluster invite`, registers a cluster with what it has."""
    invite = _admit_registration(yard, request)
    if not is_name(request.name):
        raise Malformed(f"The cluster's name is not one: {NAME_HINT}.")
    if request.subsystem not in MAIN_GRAPH_NAMES:
        raise BadRequest(
            f"A cluster is registered before its subsystem {request.subsystem[:80]!r}.",
            next_step="Call Register without a subsystem, then RegisterSubsystem.",
        )
    source = _graph(request.nodes, "cluster")
    made = poller_access.poller_register(yard.context, request.name, source, invite=invite)
    if made is None:
        return RegisterResponse(status="REGISTER_EXISTS")
    return RegisterResponse(status="REGISTER_SUCCESS", token=made.token, secret=made.secret)


def _admit_registration(yard: ServerRuntime, request: Any) -> tuple[str, str] | None:
    """The invitation by which a cluster comes; none: it showed the server's secret, which is not to be guessed."""
    if split_credential(request.secret, "join"):  # too long to be guessed
        return poller_access.check_join_token(yard.context, request.name, request.secret)
    address = caller_address.get()
    yard.guesses.check(address)
    if hmac.compare_digest(request.secret.encode(), rainbow_section(yard).registration_secret.encode()):
        return None
    yard.guesses.wrong(address)
    return poller_access.check_join_token(yard.context, request.name, request.secret)


def _graph(text: str, what: str) -> graphs.PackedGraph:
    if not text:
        raise Malformed(f"{what} nodes are required: the graph, as JSON.")
    body = text.encode()
    if len(body) > GRAPH_BYTES_MAX:
        raise Malformed(
            f"The graph is over {GRAPH_BYTES_MAX} bytes.", next_step="Send it with `yard cluster set-graph`."
        )
    return graphs.pack_graph(body)


def register_subsystem(yard: ServerRuntime, request: Any) -> Any:
    if not (request.name and request.secret and request.nodes and request.subsystem):
        raise Malformed("subsystem nodes, name, cluster name and secret are required.")
    caller = _caller(yard, request.name, request.secret)
    if request.subsystem in MAIN_GRAPH_NAMES or not is_name(request.subsystem):
        raise Malformed(f"{request.subsystem[:80]!r} cannot be the name of a subsystem: {NAME_HINT}.")
    known = graphs.subsystem_list(yard.context, caller, request.name)
    if any(each.name == request.subsystem for each in known):
        raise BadRequest(
            f"The subsystem {request.subsystem} already exists.", next_step="Delete it first: DeleteSubsystem."
        )
    source = _graph(request.nodes, "subsystem")
    graphs.subsystem_put(yard.context, caller, request.name, request.subsystem, source)
    return RegisterResponse(status="REGISTER_SUCCESS")


def _caller(yard: ServerRuntime, name: str, secret: str) -> graphs.GraphCaller:
    entry = poller_access.authenticate_poller(yard.context, name, secret)
    return graphs.GraphCaller(Actor(f"agent:{entry.name}", rights_of("", (), ())), entry)


def delete(yard: ServerRuntime, request: Any) -> Any:
    """What waits there goes elsewhere or is rejected; what it had accepted is given up."""
    entry = poller_access.authenticate_poller(yard.context, request.name, request.secret)
    member = yard.context.snapshots.world.by_id.get(entry.cluster_id)
    if member is None:  # somebody else ended it this moment
        return DeleteResponse(status="DELETE_NO_EXISTS")
    clusters.end_registration(yard.context, member, by=f"agent:{entry.name}", abandon=True)
    return DeleteResponse(status="DELETE_SUCCESS")


def delete_subsystem(yard: ServerRuntime, request: Any) -> Any:
    caller = _caller(yard, request.name, request.secret)
    try:
        graphs.subsystem_delete(yard.context, caller, request.name, request.subsytem)
    except NotFound:
        return DeleteResponse(status="DELETE_NO_EXISTS")
    return DeleteResponse(status="DELETE_SUCCESS")


def update_state(yard: ServerRuntime, request: Any) -> Any:
    entry = poller_access.authenticate_poller(yard.context, request.cluster, request.secret)
    values = _payload.read(_unwrapped(request.payload))
    usable: dict[str, Scalar] = {
        name: value for name, value in values.items() if isinstance(value, bool | int | float | str)
    }
    change = convert({"state": usable}, ClusterChange, where="payload")
    clusters.set_polled_state(yard.context, entry.cluster_id, change.state or {}, by=f"agent:{entry.name}")
    whole = len(usable) == len(values)
    return UpdateStateResponse(status="UPDATE_STATE_SUCCESS" if whole else "UPDATE_STATE_PARTIAL")


def _unwrapped(payload: str) -> bytes:
    """Its Python client sends a file's text as a JSON string: one layer more."""
    text = payload.strip()
    if text.startswith('"'):
        try:
            text = msgspec.json.decode(text, type=str)
        except msgspec.DecodeError as exc:
            raise Malformed(f"The payload is not JSON: {exc}.") from exc
    return text.encode()


def submit_decide(yard: ServerRuntime, request: Any, *, is_quick: bool = False, is_counted: bool = False) -> Any:
    """The write that makes the job; or, where only an opinion was asked for, the answer.

    `is_quick`: raise TakesLong rather than hold up a loop. `is_counted`: the request counts already as its owner's.
    """
    if is_quick and not _is_small(request):
        raise TooSlowForLoop
    given = [each for each in request.clusters if each.name and each.token]
    if not given:
        raise Malformed("one or more authenticated clusters are required: each with its name and token.")
    if len(given) > CLUSTERS_MAX:
        raise Malformed(f"{len(given)} clusters; at most {CLUSTERS_MAX} are taken.")
    if any(not is_name(each.name) for each in given):
        raise Denied("request denied: there is no such cluster.", next_step=rainbow.HOW_TO_BE_ADMITTED)
    tokens = [ClusterToken(each.name, each.token) for each in given]
    actor = rainbow.actor_of_cluster_tokens(yard.context, tokens)
    if not is_counted:
        yard.limiter.request(actor)
    wanted = jobspecs.read_request(
        request.jobspec,
        name=request.name,
        clusters=tokens,
        algorithm=request.select_algorithm,
        options=dict(request.select_options),
    )
    if request.satisfy_only:
        found = rainbow.possible_clusters(yard.submit, actor, wanted)
        return SubmitJobResponse(status="SUBMIT_SUCCESS", clusters=found)
    return rainbow.decide(yard.context, yard.submit, actor, wanted, request.jobspec, is_quick=is_quick)


def _is_small(request: Any) -> bool:
    """Read and decided in a moment."""
    size = len(request.jobspec) + sum(len(value) for value in request.select_options.values())
    return not request.satisfy_only and size <= QUICK_BYTES_MAX and len(request.clusters) <= QUICK_CLUSTERS_MAX


def submit_decide_fresh(yard: ServerRuntime, request: Any) -> Any:
    """Where it may take long. A no is final: it is never said by a snapshot that another server may have outdated."""
    yard.context.snapshots.refresh()
    return submit_decide(yard, request, is_counted=_is_small(request))


def submit_response(numbered: rainbow.NumberedJob) -> Any:
    return SubmitJobResponse(status="SUBMIT_SUCCESS", jobid=numbered.number, cluster=numbered.cluster)


def receive_jobs(yard: ServerRuntime, request: Any) -> Any:
    entry = poller_access.authenticate_poller(yard.context, request.cluster, request.secret)
    most, lease_us = request.maxJobs, rainbow_section(yard).receive_lease_us
    found = pollers.receive_jobs(
        yard.context, yard.leasing, entry, most=most, lease_us=lease_us, write=jobspecs.received_job
    )
    return ReceiveJobsResponse(status="REQUEST_JOBS_SUCCESS" if found else "REQUEST_JOBS_NORESULTS", jobs=found)


def accept_jobs(yard: ServerRuntime, request: Any) -> Any:
    entry = poller_access.authenticate_poller(yard.context, request.cluster, request.secret)
    if not request.jobids:
        raise Malformed("one or more jobs must be accepted.")
    if len(request.jobids) > BATCH_MAX:
        raise Malformed(f"At most {BATCH_MAX} jobs are accepted at once.")
    taken = pollers.accept_jobs(yard.context, entry, list(request.jobids))
    is_all = taken == len(request.jobids)
    return AcceptJobsResponse(status="RESULT_TYPE_SUCCESS" if is_all else "RESULT_TYPE_PARTIAL")


_SEEN_BY_NUMBER = {
    1: ObservedState.RUNNING,
    2: ObservedState.SUCCEEDED,
    3: ObservedState.FAILED,
    4: ObservedState.CANCELLED,
    5: ObservedState.SUBMITTED,
}


def report_jobs(yard: ServerRuntime, request: Any) -> Any:
    """Our own call: what became of the jobs a cluster accepted."""
    entry = poller_access.authenticate_poller(yard.context, request.cluster, request.secret)
    if len(request.reports) > BATCH_MAX:
        raise Malformed(f"At most {BATCH_MAX} reports are taken at once.")
    reports = []
    for each in request.reports:
        if (seen := _SEEN_BY_NUMBER.get(each.seen)) is None:
            raise Malformed(f"Job {each.jobid}: `seen` is WAITING, RUNNING, SUCCEEDED, FAILED or CANCELLED.")
        exit_code, signal = _end(seen, each.exit_code)
        reason = HANDED_OVER_REASON if seen is ObservedState.SUBMITTED else each.reason[:4096]
        report = Report("0" * 26, 0, seen, exit_code=exit_code, signal=signal, reason=reason)
        reports.append((each.jobid, report))
    taken, refused, cancelled = pollers.report_ends(yard.context, entry, reports)
    return ReportJobsResponse(taken=taken, refused=refused, cancelled=cancelled)


def _end(seen: ObservedState, code: int) -> tuple[int | None, int | None]:
    """Exit code and signal. Python's `returncode` of a process that a signal ended is its number, below zero."""
    if seen is ObservedState.SUCCEEDED:
        return 0, None
    if seen is not ObservedState.FAILED or not code:  # a failure with code 0 is one whose code was not told
        return None, None
    return (None, -code) if -SIGNAL_MAX <= code < 0 else (code, None)


def match_anonymous(yard: ServerRuntime, payload: str, matcher: str) -> FitAnswer:
    """Who could run it, of the clusters that everybody may see: nobody knows who asks."""
    if not rainbow_section(yard).anonymous_match:
        raise MethodNotAllowed(
            "Satisfy carries no credential, and this server answers no strangers.",
            next_step="Its operator can set `rainbow: {anonymous_match: true}`; SubmitJob matches by itself.",
        )
    form = _jobspec.read(payload.encode())
    access = yard.context.snapshots.access
    stranger = Actor("", rights_of("", (), access.grants))
    engine = None if matcher in ("", DEFAULT_MATCHER) else matcher
    asked = FitRequest(jobspec=form, match_engine=engine, only_fitting=True, now=False)
    return msgspec.json.decode(yard.fit.answer(stranger, asked), type=FitAnswer)


# SubmitJob and Satisfy are served by the door itself: they are asked thousands of times a second.
SCHEDULER_CALLS: dict[str, Callable[[ServerRuntime, Any], Any]] = {
    "Register": register,
    "RegisterSubsystem": register_subsystem,
    "Delete": delete,
    "DeleteSubsystem": delete_subsystem,
    "UpdateState": update_state,
    "ReceiveJobs": receive_jobs,
    "AcceptJobs": accept_jobs,
}
HANDOVER_CALLS: dict[str, Callable[[ServerRuntime, Any], Any]] = {"ReportJobs": report_jobs}
