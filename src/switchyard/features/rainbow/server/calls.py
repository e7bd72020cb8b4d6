"""The calls of Rainbow's services, and the jobspecs in them. Refusals are errors, which become gRPC codes."""

from __future__ import annotations

import hmac
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any

import msgspec

from switchyard.errors import BadRequest, Denied, Malformed, MethodNotAllowed, NotFound
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
from switchyard.features.rainbow.service import poller_access, pollers, rainbow
from switchyard.features.rainbow.service.pollers import ANSWER_BYTES, Handover
from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.cluster.hardware import MEMORY_FIELD, OWN_SUBSYSTEM, TYPE_FIELD
from switchyard.model.cluster.poll import BATCH_MAX, Report
from switchyard.model.cluster.selection import Scalar, Select
from switchyard.model.cluster.verdict import FitAnswer, FitRequest
from switchyard.model.job.job import ClusterToken, JobRequest, JobSpec, Resources
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.jobspec.devices import devices_of, typed_resources
from switchyard.model.jobspec.jobspec import from_jobspec
from switchyard.model.jobspec.quantity import parse_amount, parse_bytes, parse_duration_s
from switchyard.model.rules.names import NAME_HINT, Title, is_name
from switchyard.model.wire.decode import JsonReader, convert, load_yaml
from switchyard.server.grpc.limiter import Limiter
from switchyard.server.services import Services
from switchyard.service.cluster import clusters, graphs
from switchyard.service.core.agents.credential import split_credential
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor, rights_of
from switchyard.service.core.writes.committer import BatchCall
from switchyard.service.lifecycle.transitions import HANDED_OVER_REASON
from switchyard.service.placement.decision import TooSlowForLoop

MAIN_GRAPH_NAMES = ("", "cluster", "containment")  # subsystem names that mean the cluster itself
DEFAULT_MATCHER = "match"  # Rainbow's name for its only matcher
GRAPH_BYTES_MAX = 30 * 2**20  # of a message's bound, less its other fields
CLUSTERS_MAX = 10_000
QUICK_BYTES_MAX = 4096  # of a jobspec and the options beside it: read in less than a millisecond
QUICK_CLUSTERS_MAX = 100  # with a token each
SIGNAL_MAX = 64
_mapping = JsonReader(dict[str, Any])
JOBSPEC_NAME = "the jobspec"
JOBSPEC_BYTES_MAX = 8 * 2**20  # as any job
RECEIVED_BYTES_MAX = ANSWER_BYTES - 16 * 1024  # less the job's name and the like
JOBSPEC_VALUES_MAX = 100_000  # YAML aliases repeat a list without writing it again
JOBSPEC_CACHED_BYTES_MAX = 64 * 1024  # the cache below holds a thousand jobspecs of this size
_SPEC_FIELDS = frozenset(JobSpec.__struct_fields__) - {"resources"}
_RESOURCE_FIELDS = frozenset(Resources.__struct_fields__)


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
    values = _mapping.read(_unwrapped(request.payload))
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
    job = read_request(
        request.jobspec,
        name=request.name,
        clusters=tokens,
        algorithm=request.select_algorithm,
        options=dict(request.select_options),
    )
    if request.satisfy_only:
        names = rainbow.possible_clusters(server.services.submit, actor, job)
        return SubmitJobResponse(status="SUBMIT_SUCCESS", clusters=names)
    return rainbow.decide(
        server.context, server.services.submit, actor=actor, request=job, jobspec=request.jobspec, is_quick=is_quick
    )


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
        write=received_job,
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
    form = _mapping.read(payload.encode())
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


def read_request(
    text: str, *, name: str, clusters: list[ClusterToken], algorithm: str, options: dict[str, str]
) -> JobRequest:
    """Make a job request from a jobspec as Rainbow's clients write it, and the fields beside it."""
    read = _read_jobspec if len(text) <= JOBSPEC_CACHED_BYTES_MAX else _read_jobspec.__wrapped__
    request = read(text)
    select = None
    if algorithm:
        # Rainbow's `random` accepts options and ignores them.
        select = convert(
            {"name": algorithm, "options": {} if algorithm == "random" else options}, Select, where="select_algorithm"
        )
    changes: dict[str, Any] = {"clusters": clusters, "select": select}
    if name:
        changes["name"] = convert(name, Title, where="name")
    return msgspec.structs.replace(request, **changes)


@lru_cache(maxsize=1024)
def _read_jobspec(text: str) -> JobRequest:
    """Make a job request from a jobspec. Cached: most submits repeat a jobspec."""
    if len(text) > JOBSPEC_BYTES_MAX:
        raise Malformed(f"{JOBSPEC_NAME} is over {JOBSPEC_BYTES_MAX} bytes.")
    form = load_yaml(text, where=JOBSPEC_NAME, nodes_max=JOBSPEC_VALUES_MAX)
    if not isinstance(form, dict):
        raise Malformed(f"{JOBSPEC_NAME} is not a mapping with version, resources and tasks.")
    try:
        form = msgspec.json.decode(msgspec.json.encode(form))  # keys that look like numbers become strings
    except TypeError as exc:
        raise Malformed(f"{JOBSPEC_NAME} has a key that is no text: {exc}.") from exc
    plain = from_jobspec(form, where=JOBSPEC_NAME).plain
    spec: dict[str, Any] = {key: value for key, value in plain.items() if key in _SPEC_FIELDS}
    spec["resources"] = {key: value for key, value in plain.items() if key in _RESOURCE_FIELDS}
    rest = {key: value for key, value in plain.items() if key not in _SPEC_FIELDS | _RESOURCE_FIELDS}
    request = convert({"spec": spec, **rest}, JobRequest, where=JOBSPEC_NAME)
    if len(msgspec.json.encode([text, shlex.join(request.spec.command)])) > RECEIVED_BYTES_MAX:
        raise Malformed(
            f"{JOBSPEC_NAME} is over what a cluster can receive in one answer ({RECEIVED_BYTES_MAX} bytes of JSON).",
            next_step="Put what is large in a file that the job reads.",
        )
    return request


def received_job(handed: Handover) -> str:
    """Encode a job for a cluster as JSON: with its own jobspec, or with an equivalent one."""
    lease = handed.lease
    spec = lease.spec if isinstance(lease.spec, JobSpec) else msgspec.json.decode(lease.spec, type=JobSpec)
    form = {
        "id": handed.number,
        "cluster": lease.cluster,
        "name": lease.name,
        "jobspec": handed.jobspec if handed.jobspec is not None else jobspec_of(spec, lease.name),
        "command": shlex.join(spec.command),
    }
    return msgspec.json.encode(form).decode()


def jobspec_of(spec: JobSpec, name: str) -> str:
    """Write a plain job as a jobspec, in JSON, which is also YAML."""
    form: dict[str, Any] = (
        dict(spec.demand) if spec.demand is not None else {"version": 1, "resources": {"job": _jobspec_group(spec)}}
    )
    tasks = form.get("tasks") or [{"resources": "job"}]
    form["tasks"] = [{"command": spec.command, **tasks[0]}]
    system: dict[str, object] = {}
    if spec.env:
        system["environment"] = spec.env
    if spec.cwd is not None:
        system["cwd"] = spec.cwd
    if spec.resources.time_limit is not None:
        system["duration"] = parse_duration_s(spec.resources.time_limit)
    attributes = form.get("attributes") or {}
    if system:
        form["attributes"] = {**attributes, "system": {**attributes.get("system", {}), **system}}
    if isinstance(form["resources"], dict):
        form["name"] = name
    else:
        form.setdefault("version", 1)
        form.setdefault("attributes", {})  # RFC 14 wants them, if only empty
    return msgspec.json.encode(form).decode()


def _jobspec_group(spec: JobSpec) -> dict[str, object]:
    """One slot per task, or one node with its share of them."""
    resources, asked = spec.resources, spec.resources.asked
    tasks = ceil(resources.tasks / resources.nodes) if resources.nodes else 1
    parts: list[dict[str, object]] = [{"type": "core", "count": ceil(parse_amount(asked.cores) * tasks)}]
    for device in devices_of(typed_resources(spec)):
        requires = [
            {"name": OWN_SUBSYSTEM, "field": field, **bound}
            for field, value, bound in (
                (TYPE_FIELD, device.type, {"match": device.type}),
                (MEMORY_FIELD, device.memory_mb, {"min": str(device.memory_mb)}),
            )
            if value
        ]
        part: dict[str, object] = {"type": device.kind, "count": device.count * tasks}
        parts.append(part | ({"requires": requires} if requires else {}))
    for kind, size in (("memory", asked.memory), ("storage", asked.ephemeral_storage)):
        if size_bytes := parse_bytes(size):
            parts.append({"type": kind, "count": size_bytes * tasks, "unit": "B"})
    if resources.nodes:
        return {"type": "node", "replicas": resources.nodes, "with": parts}
    return {"type": "slot", "replicas": resources.tasks, "with": parts}
