"""Workflow execution config (6): how a job is executed, merged field by field; maps are replaced whole.

What its security context needs of a cluster: secrets, tokens and the secret of an OAuth2 client, by name. No value
comes with a context. The site file of an agent says where each value is, and who may have it. A token is asked for by
its name: the site has it, or it has none; the secret of a token's client never goes to a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from switchyard.errors import BadRequest, Malformed
from switchyard.model.executions.execution import ExecutionConfig, IdentityText, SecurityContext, server_label_mistakes
from switchyard.model.job.job import JobRequest
from switchyard.model.job.site_needs import (
    CLIENT_SECRET_VARIABLE,
    SECRETS_MAX,
    SecretKey,
    SecretNeed,
    SecretWord,
    SiteAsk,
    SiteNeeds,
    token_need,
)
from switchyard.model.rules.scope import Level
from switchyard.policy.code_loading import is_code_loading
from switchyard.policy.draft import LAUNCH_PLAN_SOURCE, REQUEST, Draft, Entry, Provenance
from switchyard.policy.kinds.kind import Kind, Merge
from switchyard.policy.platform import Platform

NAMES_SHOWN_MAX = 5
FILE_REQUIREMENTS = ("FILE", 2)
MountRequirement = Literal["ANY", "ENV_VAR", "FILE", 0, 1, 2]
EnvVariable = Annotated[str, Meta(max_length=256, pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?(?!\n)$")]


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
    """The mistakes in the security context that a rule sets."""
    needs = () if config.security_context is None else _context_needs(config.security_context)
    return [f"security_context.{field}: {mistake}" for field, _, mistake in needs if mistake]


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


class Secret(Struct, frozen=True, forbid_unknown_fields=True):
    key: SecretKey
    group: SecretWord = ""
    group_version: SecretWord = ""
    mount_requirement: MountRequirement = "ANY"
    env_var: EnvVariable = ""

    def __post_init__(self) -> None:
        if is_code_loading(self.env_var):
            raise ValueError(f"env_var: with {self.env_var} programs load or run other code; take another name")

    @property
    def need(self) -> SecretNeed:
        return SecretNeed(
            key=self.key,
            group=self.group,
            version=self.group_version,
            variable=self.env_var,
            as_file=self.mount_requirement in FILE_REQUIREMENTS,
        )


class OAuth2Client(Struct, frozen=True, forbid_unknown_fields=True):
    client_secret: Secret
    client_id: IdentityText = ""


class OAuth2TokenRequest(Struct, frozen=True, forbid_unknown_fields=True):
    name: SecretKey
    type: Literal["CLIENT_CREDENTIALS", 0] = 0
    client: OAuth2Client | None = None
    idp_discovery_endpoint: IdentityText = ""
    token_endpoint: IdentityText = ""


def with_site_needs(draft: Draft, context: SecurityContext | None, source: Provenance) -> Draft:
    """Ask for what the context needs of the cluster. Raises BadRequest for a context with a mistake.

    A cluster without it is refused by the router, with the field, the rule and its level.
    """
    if context is None:
        return draft
    role = (context.run_as.iam_role if context.run_as is not None else None) or ""
    if role != draft.bounds.iam_role:
        draft = draft.bounded(iam_role=role)
    needs: dict[SecretNeed, str] = {}
    for field, need, mistake in _context_needs(context):
        where = f"security_context.{field} of the workflow execution config ({source})"
        if mistake or need is None:
            raise BadRequest(
                f"{where} cannot be read: {mistake}.",
                next_step="Name secrets of the cluster's site file by `key` and `group`; a value is never taken.",
            )
        needs.setdefault(need, where)
    return _with_needs(draft, needs) if needs else draft


def without_site_needs(request: JobRequest, context: object) -> JobRequest:
    """The request without what this context, as it is recorded with the job, asked for."""
    site = request.spec.site
    if context is None or site is None:
        return request
    asked = {need for _, need, _ in _context_needs(msgspec.convert(context, SecurityContext))}
    left = SiteNeeds(data=site.data, secrets=tuple(need for need in site.secrets if need not in asked))
    return replace(request, spec=replace(request.spec, site=left if left != SiteNeeds() else None))


def _with_needs(draft: Draft, needs: dict[SecretNeed, str]) -> Draft:
    request = draft.request
    where = next(iter(needs.values()))
    if request.spec.files is None:
        refusal = (
            f"{where} asks for a secret, and a job gets secrets as files in its folder, which it has only with files "
            "(`yard submit --in`) or as a task of Flyte"
        )
        return replace(draft, refusals=(*draft.refusals, refusal))
    had = request.spec.site or SiteNeeds()
    secrets = tuple(dict.fromkeys((*had.secrets, *needs)))
    if len(secrets) > SECRETS_MAX:
        return replace(draft, refusals=(*draft.refusals, f"{where}: a job has at most {SECRETS_MAX} secrets"))
    site = SiteNeeds(data=had.data, secrets=secrets)
    sources = tuple((need.path, text) for need, text in reversed(needs.items()))  # of two, the first counts
    draft = replace(draft, request=replace(request, spec=replace(request.spec, site=site)))
    return draft.bounded(site=SiteAsk(request.project, site, sources))


def _context_needs(context: SecurityContext) -> Iterator[tuple[str, SecretNeed | None, str]]:
    """The field of each need, the need, and else what is wrong with the field."""
    client = context.run_as.oauth2_client if context.run_as is not None else None
    if client:
        read, mistake = _read_part(client, OAuth2Client)
        need = None if read is None else replace(read.client_secret.need, variable=CLIENT_SECRET_VARIABLE)
        yield "run_as.oauth2_client", need, mistake
    for index, raw in enumerate(context.secrets):
        secret, mistake = _read_part(raw, Secret)
        yield f"secrets[{index}]", None if secret is None else secret.need, mistake
    for index, raw in enumerate(context.tokens):
        token, mistake = _read_part(raw, OAuth2TokenRequest)
        yield f"tokens[{index}]", None if token is None else token_need(token.name), mistake


def _read_part(raw: dict[str, Any], kind: type[Any]) -> tuple[Any, str]:
    try:
        return msgspec.convert(raw, kind), ""
    except msgspec.ValidationError as exc:
        return None, str(exc)
