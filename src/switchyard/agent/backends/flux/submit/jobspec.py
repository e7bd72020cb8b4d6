"""The jobspec (RFC 25, version 1) of an attempt, from what the job asks for. Pure.

A job with `tasks` has a slot for each of its tasks, and Flux starts the command once in each slot. With `nodes`, the
slots are spread evenly over so many nodes, as `flux submit -N` spreads them. A job that was written as a jobspec keeps
its own resources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from shlex import quote
from typing import Any

from switchyard.agent.backends import marker_of
from switchyard.agent.backends.flux.submit.native_options import NativeOptions, read_native_options
from switchyard.agent.backends.flux.submit.start_guard import CommandBody, guarded_command, has_template, plain_body
from switchyard.agent.backends.slurm.script_images import ScriptVariable, run_command
from switchyard.agent.environment import FILES_VARIABLE, job_variables
from switchyard.agent.images import CONTAINER_PROGRAMS, kubernetes_problem, rule_of
from switchyard.agent.need import spec_of
from switchyard.agent.site import ImageRule, Site
from switchyard.errors import PolicyRefused
from switchyard.model.job import JobSpec, Native
from switchyard.model.poll import Lease
from switchyard.model.quantity import ceil_fraction, parse_amount, parse_duration_s

VERSION = 1
# What version 1 can say. Flux takes other resources only under another version, and only some schedulers know them.
PLAIN_TYPES = frozenset({"node", "slot", "core", "gpu"})
SLOT_LABEL = "task"
SYSTEM_KEY = "switchyard"  # in `attributes.system`: whose attempt it is
# Variables of the agent that a job gets. Flux adds its own.
INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlace:
    """Where an attempt runs, and where its output goes."""

    cwd: str  # of the agent's; a job may name another
    stdout: str
    stderr: str
    claim: str  # a link that the first start of the submission makes, and the agent to withdraw it
    key: str = ""  # of the submission: a job may be submitted again under the same name
    queue: str = ""  # the instance's name for the job's queue; empty: its default
    inherited: Mapping[str, str] = field(default_factory=dict)  # variables of the agent


def jobspec_of(lease: Lease, place: JobPlace, *, cluster: str, site: Site) -> dict[str, Any]:
    """The whole jobspec. Raises PolicyRefused for what Flux or the site does not have."""
    spec = spec_of(lease)
    options = read_native_options(spec.native)
    variables = {key: place.inherited[key] for key in INHERITED if key in place.inherited}
    variables |= job_variables(lease, cluster)
    if spec.files is not None:
        variables[FILES_VARIABLE] = place.cwd
    environment, body = _body(spec, variables, site, marker=marker_of(lease))
    own: dict[str, Any] = {
        "environment": environment,
        "cwd": place.cwd,
        "job": {"name": marker_of(lease)},
        SYSTEM_KEY: {"job": lease.job, "attempt": lease.attempt, "fence": lease.fence, "submission": place.key},
        "shell": {"options": _shell_options(spec, place, site, options)},
    }
    for key, value in (("queue", place.queue), ("bank", (spec.native or Native()).account or site.flux.bank)):
        if value:
            own[key] = value
    return bare_jobspec(spec, guarded_command(place.claim, body), {**options.system, **own})


def bare_jobspec(spec: JobSpec, command: list[str], system: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The jobspec of what the job needs, without its place and its environment: enough for a quote."""
    resources, count = resources_of(spec)
    attributes: dict[str, Any] = {**(system or {}), "duration": duration_s_of(spec)}
    if constraint := constraint_of(spec):
        attributes["constraints"] = constraint
    return {
        "version": _version(spec, resources),
        "resources": resources,
        "tasks": [{"command": command, "slot": _slot_label(resources), "count": count}],
        "attributes": {"system": attributes},
    }


def resources_of(spec: JobSpec) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The resources, and how often the command runs in them.

    Flux has no word for Rainbow's named resources. Such a job asks for what its plain fields say: the least it needs.
    """
    given = (spec.demand or {}).get("resources")
    if given and isinstance(given, list):
        return _labelled(given), {"per_slot": 1}
    ask, need, native = spec.resources.asked, spec.resources, spec.native or Native()
    within: list[dict[str, Any]] = [{"type": "core", "count": ceil_fraction(parse_amount(ask.cores))}]
    if ask.gpus:
        within.append({"type": "gpu", "count": ask.gpus})
    nodes = need.nodes
    if native.exclusive and nodes is None:
        if need.tasks > 1:
            raise PolicyRefused("Flux gives whole nodes by their number: say `nodes` with `exclusive`.")
        nodes = 1
    per_node = need.tasks if nodes is None else -(-need.tasks // nodes)
    slot = {"type": "slot", "count": per_node, "with": within, "label": SLOT_LABEL}
    if nodes is None:
        return [slot], {"per_slot": 1}
    node: dict[str, Any] = {"type": "node", "count": nodes, "with": [slot]}
    if native.exclusive:
        node["exclusive"] = True
    # An uneven spread leaves slots empty, so the tasks are counted in all.
    return [node], {"per_slot": 1} if need.tasks % nodes == 0 else {"total": need.tasks}


def duration_s_of(spec: JobSpec) -> int:
    """The time limit; 0: none."""
    limit = spec.resources.time_limit
    if limit is not None:
        return parse_duration_s(limit)
    system = ((spec.demand or {}).get("attributes") or {}).get("system") or {}
    duration = system.get("duration", 0)
    return parse_duration_s(duration) if duration else 0


def constraint_of(spec: JobSpec) -> dict[str, Any] | None:
    """The job's constraint (RFC 31), which Flux takes as it is."""
    attributes = (spec.demand or {}).get("attributes") or {}
    constraint = (attributes.get("system") or {}).get("constraints")
    return constraint or None


def _shell_options(spec: JobSpec, place: JobPlace, site: Site, options: NativeOptions) -> dict[str, Any]:
    # One task's output appears byte by byte; the lines of several tasks stay whole.
    is_single = spec.demand is None and spec.resources.tasks == 1
    buffer = {"buffer": {"type": "none"}} if is_single else {}
    streams = {
        name: {"type": "file", "path": path, **buffer}
        for name, path in (("stdout", place.stdout), ("stderr", place.stderr))
    }
    return {**site.flux.shell_options, **options.shell, "output": streams}


def image_problem(rule: ImageRule) -> str:
    """Why an agent on Flux cannot follow a rule for images; empty: it may be able to."""
    if rule.run in CONTAINER_PROGRAMS:
        return f"on Flux, images run with apptainer or on the host: a container of {rule.run.value} may outlive its job"
    return kubernetes_problem(rule)


def _body(
    spec: JobSpec, variables: Mapping[str, str], site: Site, *, marker: str
) -> tuple[dict[str, str], CommandBody]:
    """The environment for Flux to set, and what a start runs."""
    if spec.image is None:
        plain = {key: text for key, text in variables.items() if not has_template(text)}
        others = {key: text for key, text in variables.items() if key not in plain}
        return plain, plain_body(spec.command, cwd=spec.cwd, variables=others)
    rule = rule_of(spec.image, site)
    if problem := image_problem(rule):
        raise PolicyRefused(f"The image {spec.image} cannot run here (rule {rule.match} of `images`): {problem}.")
    words = run_command(spec, [ScriptVariable(key, quote(text)) for key, text in variables.items()], site, name=marker)
    enter = f"cd -- {quote(spec.cwd)} || exit 1; " if spec.cwd and not words.is_contained else ""
    return dict(variables), CommandBody(f"{enter}exec env -- {words.environment} {words.command}")


def _version(spec: JobSpec, resources: list[dict[str, Any]]) -> Any:
    """Version 1, unless a jobspec says what only its own version can say."""
    is_plain = all(
        vertex["type"] in PLAIN_TYPES and isinstance(vertex.get("count", 1), int) for vertex in _vertices(resources)
    )
    return VERSION if is_plain else (spec.demand or {}).get("version", VERSION)


def _labelled(resources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The resources of a jobspec, with a label for its slot. What has no slot becomes one."""
    if not any(vertex.get("type") == "slot" for vertex in _vertices(resources)):
        return [{"type": "slot", "count": 1, "with": resources, "label": SLOT_LABEL}]
    return [_with_label(vertex) for vertex in resources]


def _with_label(vertex: dict[str, Any]) -> dict[str, Any]:
    labelled = {**vertex, "count": vertex.get("count", 1)}
    if vertex.get("type") == "slot":
        labelled["label"] = vertex.get("label") or SLOT_LABEL
    if vertex.get("with"):
        labelled["with"] = [_with_label(inner) for inner in vertex["with"]]
    return labelled


def _slot_label(resources: list[dict[str, Any]]) -> str:
    return str(next(vertex["label"] for vertex in _vertices(resources) if vertex["type"] == "slot"))


def _vertices(resources: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for vertex in resources:
        yield vertex
        yield from _vertices(vertex.get("with") or [])
