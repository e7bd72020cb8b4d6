"""Admit a job: check its scope, fill and check it by the rules that hold there. A refusal names the level. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from switchyard.errors import BadRequest, PolicyRefused, UnknownName
from switchyard.model.executions.execution import ExecutionConfig, is_server_label, server_label_mistakes
from switchyard.model.failures.resource_raise import refuse_impossible_raises
from switchyard.model.job.bounds import Bounds
from switchyard.model.job.job import JobRequest
from switchyard.model.job.spill import pools_in_rules
from switchyard.model.jobspec.quantity import parse_duration_s
from switchyard.model.rules.queue import DEFAULT_QUEUE, queues_with_tags
from switchyard.model.rules.scope import ScopeKey
from switchyard.policy.draft import Draft
from switchyard.policy.kinds.job_priority import JOB_PRIORITY, bound_priority
from switchyard.policy.kinds.quality_of_service import QualityOfServiceKind
from switchyard.policy.kinds.tokens import add_task_type_tokens, combine_tokens
from switchyard.policy.platform import Platform
from switchyard.policy.record import PolicyRecord, encode_record
from switchyard.policy.resolve import EffectiveRules, Policy

NO_LABELS: Mapping[str, str] = {}
DEFAULT_QUEUES = (DEFAULT_QUEUE,)  # of a job without tags


@dataclass(frozen=True, slots=True)
class ProjectEntry:
    """What admission needs to know of a project."""

    labels: dict[str, str] = field(default_factory=dict)
    is_archived: bool = False


@dataclass(frozen=True, slots=True)
class AdmittedJob:
    """A request after the rules. `queues`: those that its tags select; the job's id picks one of several."""

    draft: Draft
    record: PolicyRecord
    queues: tuple[str, ...] = DEFAULT_QUEUES

    @property
    def request(self) -> JobRequest:
        return self.draft.request


def admit(
    request: JobRequest,
    policy: Policy,
    projects: Mapping[str, ProjectEntry],
    *,
    demanded: Mapping[str, int] | None = None,
    launch_plan: ExecutionConfig | None = None,
    auth_role: ExecutionConfig | None = None,
    is_operator: bool = False,
    server_labels: Mapping[str, str] = NO_LABELS,
) -> AdmittedJob:
    """Fill and check a request by the rules of its scope.

    `demanded`: what the largest task of its jobspec asks for. `launch_plan`, `auth_role`: what the launch plan sets.
    `is_operator`: the caller is an operator of the platform and may give the job any priority.
    `server_labels`: labels that the server sets. A request that has such labels itself is refused.
    """
    project = _check_request_scope(request, policy.platform, projects)
    if request.labels or request.spec.execution is not None:
        _refuse_server_labels(request)
    effective = policy.effective(scope_key_of(request))
    draft = Draft(
        request,
        policy.platform,
        demanded=dict(demanded or {}),
        bounds=Bounds.of(request),
        launch_plan=launch_plan,
        auth_role=auth_role,
    )
    has_overrides = _sets_policy_fields(request) or launch_plan is not None or auth_role is not None
    rules = effective.rules_for_jobs
    if has_overrides:
        rules = [(kind, effective.fields(kind)) for kind in policy.kinds if kind.is_for_jobs]
    if policy.platform.task_tokens:
        draft = add_task_type_tokens(draft)
    for kind, fields in rules:
        draft = kind.amend(draft, fields)
    if draft.tokens or request.spec.tokens:
        draft = combine_tokens(draft)
    if draft.request.priority or effective.default_priority:
        draft = bound_priority(draft, effective.fields(JOB_PRIORITY), is_operator=is_operator)
    if draft.refusals:
        raise _policy_refusal(draft)
    if draft.request.spec.retry.on:
        refuse_impossible_raises(draft.request)
    if policy.platform.spill and not draft.bounds.spill:
        draft = _configured_spill(draft)
    if draft.bounds.spill and request.expires_after is not None:
        draft = draft.bounded(within_s=parse_duration_s(request.expires_after))
    _check_names(draft)
    labels = {**project.labels, **draft.request.labels}
    if labels or server_labels:
        # Rules and projects that are older than the refusal of such labels may have them.
        labels = {key: value for key, value in labels.items() if not is_server_label(key)}
        draft = replace(draft, request=replace(draft.request, labels={**labels, **server_labels}))
    record = _own_record(policy, effective, draft) if draft.own else effective.record
    return AdmittedJob(draft, record, _queues(draft) if draft.bounds.tags else DEFAULT_QUEUES)


def scope_key_of(request: JobRequest) -> ScopeKey:
    return (request.domain, request.project, request.workflow or "", request.launch_plan or "")


def _check_request_scope(request: JobRequest, platform: Platform, projects: Mapping[str, ProjectEntry]) -> ProjectEntry:
    if request.domain not in platform.domains:
        known = ", ".join(platform.domains)
        raise UnknownName(f"There is no domain {request.domain!r}.", next_step=f"Known domains: {known}.")
    project = projects.get(request.project)
    if project is None:
        raise UnknownName(
            f"There is no project {request.project!r}.", next_step="`yard project ls` lists the projects you may use."
        )
    if project.is_archived:
        raise BadRequest(
            f"The project {request.project} is archived and takes no jobs.",
            next_step="Submit to another, or ask an administrator to bring it back.",
        )
    return project


def _refuse_server_labels(request: JobRequest) -> None:
    execution = request.spec.execution
    in_config = execution.labels if execution is not None and execution.labels is not None else ()
    if mistakes := server_label_mistakes((*request.labels, *in_config)):
        raise BadRequest(f"The {mistakes[0]}.", next_step="Give the label another name.")


def _check_names(draft: Draft) -> None:
    """Refuse unknown names. A rule may name a pool that the config no longer has: then the job is refused, too."""
    platform, bounds = draft.platform, draft.bounds
    asked = (("pool", bounds.pool, platform.pools), ("label", bounds.label, platform.labels))
    # Tags set by a rule are not checked: if no queue has them any more, the job goes to the default queue.
    tags = (("queue tag", tag, platform.tags) for tag in draft.request.tags)
    spilled = (("pool", pool, platform.pools) for pool in (pools_in_rules(bounds.spill) if bounds.spill else ()))
    for noun, name, known in (*asked, *tags, *spilled):
        if name is not None and name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise UnknownName(f"There is no {noun} {name!r}.", next_step=f"Known {noun}s: {listed}.")
    wanted = draft.request.quality_of_service
    if wanted is not None and (mistakes := QualityOfServiceKind().check(wanted, platform)):
        raise UnknownName(f"quality_of_service: {mistakes[0]}.")


def _queues(draft: Draft) -> tuple[str, ...]:
    """The queues that have all its tags. If there are none, the request is refused, unless the tags are a rule's."""
    tags = draft.bounds.tags
    queues = queues_with_tags(draft.platform.queues, tags, is_interruptible=draft.bounds.is_interruptible)
    if queues or not draft.request.tags:
        return queues or DEFAULT_QUEUES
    for_all = queues_with_tags(draft.platform.queues, tags, is_interruptible=True)
    why = f"; {', '.join(for_all)} takes only jobs that are interruptible" if for_all else ""
    raise UnknownName(
        f"No queue has all of the tags {', '.join(tags)}{why}.",
        next_step=f"Known queue tags: {', '.join(sorted(draft.platform.tags))}; `yard queue ls` shows who has which.",
    )


def _sets_policy_fields(request: JobRequest) -> bool:
    """Whether the request sets a field that a rule could set."""
    return bool(
        request.spec.execution is not None
        or request.spec.tokens
        or request.pool
        or request.cluster_label
        or request.tags
        or request.spill
        or request.quality_of_service is not None
    )


def _configured_spill(draft: Draft) -> Draft:
    """Add the config's spill rules for the job's pool, else those for all pools."""
    rules, pool = draft.platform.spill, draft.bounds.pool
    if pool is not None and pool in rules:
        return draft.bounded(spill=rules[pool], spill_from=f"platform config, pool {pool}")
    return draft.bounded(spill=rules.get("", ()), spill_from="platform config")


def _policy_refusal(draft: Draft) -> PolicyRefused:
    where = f"project {draft.request.project}, domain {draft.request.domain}"
    return PolicyRefused(f"A rule of {where} refuses the job. " + "; ".join(draft.refusals) + ".")


def _own_record(policy: Policy, effective: EffectiveRules, draft: Draft) -> PolicyRecord:
    """Return the record of a job with overrides. Others share the record of their scope's effective rules."""
    flat = {**effective.flat, **draft.own}
    return encode_record(policy.version, policy.kinds, {key: entry for key, entry in flat.items() if entry is not None})
