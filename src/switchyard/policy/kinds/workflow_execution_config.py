"""Workflow execution config (6): how a job is executed, merged field by field; maps are replaced whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from switchyard.errors import Malformed
from switchyard.model.executions.execution import ExecutionConfig, server_label_mistakes
from switchyard.model.job.job import JobRequest
from switchyard.model.rules.scope import Level
from switchyard.policy.code_loading import is_code_loading
from switchyard.policy.draft import LAUNCH_PLAN_SOURCE, REQUEST, Draft, Entry
from switchyard.policy.kinds.kind import Kind, Merge
from switchyard.policy.kinds.security_context import context_mistakes, with_site_needs, without_site_needs
from switchyard.policy.platform import Platform

NAMES_SHOWN_MAX = 5


class WorkflowExecutionConfigKind(Kind):
    number = 6
    name = "workflow-execution-config"
    title = "workflow execution config"
    value = ExecutionConfig
    merge = Merge.FIELD
    sample: ClassVar[dict[str, Any]] = {
        "max_parallelism": 25,
        "security_context": {"run_as": {"k8s_service_account": "default"}},
        "raw_output_data_config": {"output_location_prefix": "s3://my-bucket/data"},
        "labels": {"team": "red"},
        "annotations": {"note": "set by rule"},
        "interruptible": False,
        "envs": {"STAGE": "test"},
    }

    def read(self, raw: object) -> Struct:
        value = super().read(unwrap_flyte_form(raw))
        assert isinstance(value, ExecutionConfig)
        return without_unset(value)

    def check(self, value: Any, platform: Platform) -> list[str]:
        if not self.flatten(value):
            return ["give at least one field"]
        return [*server_label_mistakes(value.labels or ()), *_context_mistakes(value)]

    def restrict(self, value: Any, level: Level) -> tuple[Struct, str]:
        names = sorted(name for name in value.envs or {} if is_code_loading(name))
        if level in (Level.PLATFORM, Level.DOMAIN) or not names:
            return value, ""
        allowed = {name: text for name, text in value.envs.items() if name not in names}
        shown = ", ".join(name[:80] for name in names[:NAMES_SHOWN_MAX])
        return without_unset(replace(value, envs=allowed)), (
            f"envs: a rule of a project may not set {shown}: with it, programs of other users load or run other code; "
            "a platform administrator may set it for a domain, or in the server's config file"
        )

    def amend(self, draft: Draft, fields: Mapping[str, Entry]) -> Draft:
        """Request > launch plan's spec > rows > platform. The request's own `labels` count as set by the request."""
        request = draft.request
        requested = own_fields(request.spec.execution)
        if request.labels:
            requested["labels"] = request.labels
        merged = dict(fields)
        for field, value in own_fields(draft.auth_role).items():
            if field not in merged or merged[field].source.level is Level.PLATFORM:
                merged[field] = Entry(value, LAUNCH_PLAN_SOURCE)
        merged |= {field: Entry(value, LAUNCH_PLAN_SOURCE) for field, value in own_fields(draft.launch_plan).items()}
        merged |= {field: Entry(value, REQUEST) for field, value in requested.items()}
        overrides = {(self.name, field): entry for field, entry in merged.items() if entry is not fields.get(field)}
        execution = msgspec.convert({field: entry.value for field, entry in merged.items()}, ExecutionConfig)
        spec = replace(request.spec, execution=replace(execution, labels=None))
        if draft.bounds.is_interruptible != bool(execution.interruptible):
            draft = draft.bounded(is_interruptible=bool(execution.interruptible))
        draft = replace(
            draft,
            request=replace(request, spec=spec, labels=execution.labels or {}),
            parallel_max=execution.max_parallelism,
            own={**draft.own, **overrides},
        )
        context = merged.get("security_context")
        return draft if context is None else with_site_needs(draft, execution.security_context, context.source)

    def take_back(self, request: JobRequest, values: Mapping[str, Any]) -> JobRequest:
        """Without the secrets that a rule's security context asked for."""
        return without_site_needs(request, values.get("security_context"))


def _context_mistakes(config: ExecutionConfig) -> list[str]:
    return [f"security_context.{mistake}" for mistake in context_mistakes(config.security_context)]


def own_fields(execution: ExecutionConfig | None) -> dict[str, Any]:
    """Return the fields that the config sets. As in a row, unset is not the same as false or empty."""
    if execution is None:
        return {}
    plain: dict[str, Any] = msgspec.to_builtins(without_unset(execution))
    return plain


def without_unset(config: ExecutionConfig) -> ExecutionConfig:
    """What counts as not set: empty maps, a security context or output without content, and `overwrite_cache: false`,
    which on Flyte's wire is the same as nothing (so whoever says true, at any level, is heard)."""
    context, output = config.security_context, config.raw_output_data_config
    has_context = context is not None and bool(
        msgspec.to_builtins(context).get("run_as") or context.secrets or context.tokens
    )
    return replace(
        config,
        security_context=context if has_context else None,
        raw_output_data_config=output if output is not None and output.output_location_prefix else None,
        labels=config.labels or None,
        annotations=config.annotations or None,
        overwrite_cache=config.overwrite_cache or None,
        envs=config.envs or None,
    )


def unwrap_flyte_form(raw: object) -> object:
    """Flyte's files wrap maps in `values` (the environment as pairs), a truth in `value`, and say 0 for none."""
    if not isinstance(raw, Mapping):
        return raw
    plain = dict(raw)
    for name in ("labels", "annotations", "envs"):
        inner = plain.get(name)
        if isinstance(inner, Mapping) and set(inner) == {"values"} and not isinstance(inner["values"], str):
            plain[name] = _pairs(inner["values"])
    truth = plain.get("interruptible")
    if isinstance(truth, Mapping) and set(truth) == {"value"}:
        plain["interruptible"] = truth["value"]
    if plain.get("max_parallelism") == 0 and not isinstance(plain["max_parallelism"], bool):
        del plain["max_parallelism"]
    return plain


def _pairs(values: Any) -> Any:
    if not isinstance(values, list):
        return values
    if not all(isinstance(pair, Mapping) and set(pair) <= {"key", "value"} and "key" in pair for pair in values):
        return values
    counts = Counter(str(pair["key"]) for pair in values)
    if twice := next((key for key, count in counts.items() if count > 1), None):
        raise Malformed(f"workflow execution config: envs: the variable {twice[:80]!r} is given twice.")
    return {pair["key"]: pair.get("value", "") for pair in values}
