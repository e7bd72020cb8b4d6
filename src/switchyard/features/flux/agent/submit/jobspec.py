"""The jobspec (RFC 25, version 1) of an attempt, from what the job asks for. Pure.

A job with `tasks` has a slot for each of its tasks, and Flux starts the command once in each slot. With `nodes`, the
slots are spread evenly over so many nodes, as `flux submit -N` spreads them. A job that was written as a jobspec keeps
its own resources, as version 1 can say them (`model/jobspec/version_1.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote
from typing import Any

from switchyard.agent.backends import marker_of
from switchyard.agent.backends.shared.avoided_nodes import avoided_nodes
from switchyard.agent.backends.shared.script_images import ScriptVariable, run_command
from switchyard.agent.loop.need import spec_of
from switchyard.agent.site.environment import FILES_VARIABLE, job_variables
from switchyard.agent.site.images import CONTAINER_PROGRAMS, kubernetes_problem, rule_of
from switchyard.agent.site.site import ImageRule, Site
from switchyard.errors import PolicyRefused
from switchyard.features.flux.agent.cluster.resource_sets import FluxNode
from switchyard.features.flux.agent.flux_site import flux_of
from switchyard.features.flux.agent.submit.native_options import NativeOptions, read_native_options
from switchyard.features.flux.agent.submit.start_guard import CommandBody, guarded_command, has_template, plain_body
from switchyard.model.cluster.hardware import COMMON_NAMES, GPU, SiteNames, is_known
from switchyard.model.cluster.poll import Lease
from switchyard.model.job.job import JobSpec, Native
from switchyard.model.job.variable_names import is_shell_name
from switchyard.model.jobspec.devices import Device, device_of, devices_of, typed_resources
from switchyard.model.jobspec.quantity import ceil_fraction, parse_amount, parse_duration_s
from switchyard.model.jobspec.version_1 import ONCE_PER_SLOT, SLOT_LABEL, version_1_resources

JOBSPEC_VERSION = 1
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


def jobspec_of(
    lease: Lease, place: JobPlace, *, cluster: str, site: Site, nodes: Collection[FluxNode] = ()
) -> dict[str, Any]:
    """The whole jobspec. Raises PolicyRefused for what Flux or the site does not have. `nodes`: its nodes."""
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
    for key, value in (("queue", place.queue), ("bank", (spec.native or Native()).account or flux_of(site).bank)):
        if value:
            own[key] = value
    system = {**options.system, **own}
    avoided = avoided_nodes(lease, {node.host for node in nodes})
    return bare_jobspec(
        spec, guarded_command(place.claim, body), system, nodes=nodes, names=site.names, avoided=avoided
    )


def bare_jobspec(
    spec: JobSpec,
    command: list[str],
    system: Mapping[str, Any] | None = None,
    *,
    nodes: Collection[FluxNode] = (),
    names: SiteNames = COMMON_NAMES,
    avoided: Sequence[str] = (),
) -> dict[str, Any]:
    """The jobspec of what the job needs, without its place and its environment: enough for a quote."""
    resources, count = resources_of(spec)
    attributes: dict[str, Any] = {**(system or {}), "duration": duration_s_of(spec)}
    parts = [part for part in (constraint_of(spec), _types_constraint(spec, nodes, names)) if part]
    if avoided:
        parts.append({"not": [{"hostlist": list(avoided)}]})
    if parts:
        attributes["constraints"] = parts[0] if len(parts) == 1 else {"and": parts}
    return {
        "version": JOBSPEC_VERSION,
        "resources": resources,
        "tasks": [{"command": command, "slot": _slot_label(resources[0]), "count": count}],
        "attributes": {"system": attributes},
    }


def resources_of(spec: JobSpec) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The resources, and how often the command runs in them.

    Flux has no word for Rainbow's named resources. Such a job asks for what its plain fields say: its task's group.
    """
    given = (spec.demand or {}).get("resources")
    if spec.demand is not None and given and isinstance(given, list):
        return version_1_resources(spec.demand)
    ask, need, native = spec.resources.asked, spec.resources, spec.native or Native()
    within: list[dict[str, Any]] = [{"type": "core", "count": ceil_fraction(parse_amount(ask.cores))}]
    if gpus := sum(device.count for device in devices_of(need) if device.kind == GPU):
        within.append({"type": GPU, "count": gpus})
    nodes = need.nodes
    if native.exclusive and nodes is None:
        if need.tasks > 1:
            raise PolicyRefused("Flux gives whole nodes by their number: say `nodes` with `exclusive`.")
        nodes = 1
    per_node = need.tasks if nodes is None else -(-need.tasks // nodes)
    slot = {"type": "slot", "count": per_node, "with": within, "label": SLOT_LABEL}
    if nodes is None:
        return [slot], ONCE_PER_SLOT
    node: dict[str, Any] = {"type": "node", "count": nodes, "with": [slot]}
    if native.exclusive:
        node["exclusive"] = True
    # An uneven spread leaves slots empty, so the tasks are counted in all.
    return [node], ONCE_PER_SLOT if need.tasks % nodes == 0 else {"total": need.tasks}


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


def _types_constraint(spec: JobSpec, nodes: Collection[FluxNode], names: SiteNames) -> dict[str, Any] | None:
    """The properties that tell the type of GPUs for which the job asks: `h100`, or `h100@gpu`.

    Nodes that have properties of several types are excluded: R does not say which of their GPUs are which.
    """
    typed = [device for device in (*devices_of(typed_resources(spec)), *_typed_vertices(spec)) if device.type]
    parts: list[dict[str, Any]] = []
    for device in dict.fromkeys(typed):
        types = {node: {name: names.hardware(name.removesuffix("@gpu")) for name in node.properties} for node in nodes}
        told = sorted({name for found in types.values() for name in found if device.is_met_by(found[name])})
        if device.kind != GPU or not told:
            raise PolicyRefused(
                f"No property of nodes here tells {device.kind} of type {device.type}.",
                next_step=f"Give the nodes a property such as {device.type}@gpu in the resources of the instance.",
            )
        parts.append({"or": [{"properties": [name]} for name in told]} if len(told) > 1 else {"properties": told})
        several = [
            node.host
            for node, found in types.items()
            if len({hw.name for hw in found.values() if is_known(hw.name)}) > 1
        ]
        if several:
            parts.append({"not": [{"hostlist": several}]})
    return {"and": parts} if len(parts) > 1 else parts[0] if parts else None


def _typed_vertices(spec: JobSpec) -> Iterator[Device]:
    """The types that a job's own jobspec names: `gpu:h100`."""
    resources = (spec.demand or {}).get("resources")
    left = list(resources) if isinstance(resources, list) else []
    while left:
        vertex = left.pop()
        left += vertex.get("with") or ()
        kind, _, spelling = vertex["type"].partition(":")
        if spelling:
            yield device_of(kind, spelling, 1)


def _shell_options(spec: JobSpec, place: JobPlace, site: Site, options: NativeOptions) -> dict[str, Any]:
    # One task's output appears byte by byte; the lines of several tasks stay whole.
    is_single = spec.demand is None and spec.resources.tasks == 1
    buffer = {"buffer": {"type": "none"}} if is_single else {}
    streams = {
        name: {"type": "file", "path": path, **buffer}
        for name, path in (("stdout", place.stdout), ("stderr", place.stderr))
    }
    return {**flux_of(site).shell_options, **options.shell, "output": streams}


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
        # The shell in front of the command drops variables with other names.
        plain = {key: text for key, text in variables.items() if not has_template(text) and is_shell_name(key)}
        others = {key: text for key, text in variables.items() if key not in plain}
        return plain, plain_body(spec.command, cwd=spec.cwd, variables=others)
    rule = rule_of(spec.image, site)
    if problem := image_problem(rule):
        raise PolicyRefused(f"The image {spec.image} cannot run here (rule {rule.match} of `images`): {problem}.")
    words = run_command(spec, [ScriptVariable(key, quote(text)) for key, text in variables.items()], site, name=marker)
    place = quote(spec.cwd) if spec.cwd and not words.is_contained else ""
    return dict(variables), CommandBody(words.exec_text, place=place)


def _slot_label(top: dict[str, Any]) -> str:
    slot = top if top["type"] == "slot" else top["with"][0]
    return str(slot["label"])
