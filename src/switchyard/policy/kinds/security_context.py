"""What a security context needs of a cluster: its secrets, tokens and the secret of its OAuth2 client, by name. Pure.

No value comes with a context. The site file of an agent says where each value is, and who may have it. A token is asked
for by its name: the site has it, or it has none; the secret of a token's client never goes to a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from switchyard.errors import BadRequest
from switchyard.model.executions.execution import IdentityText, SecurityContext
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
from switchyard.policy.code_loading import is_code_loading
from switchyard.policy.draft import Draft, Provenance

FILE_REQUIREMENTS = ("FILE", 2)
MountRequirement = Literal["ANY", "ENV_VAR", "FILE", 0, 1, 2]
EnvVariable = Annotated[str, Meta(max_length=256, pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?(?!\n)$")]


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


def context_mistakes(context: SecurityContext | None) -> list[str]:
    """The mistakes in a context that a rule sets."""
    return [] if context is None else [f"{field}: {mistake}" for field, _, mistake in _needs(context) if mistake]


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
    for field, need, mistake in _needs(context):
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
    asked = {need for _, need, _ in _needs(msgspec.convert(context, SecurityContext))}
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


def _needs(context: SecurityContext) -> Iterator[tuple[str, SecretNeed | None, str]]:
    """The field of each need, the need, and else what is wrong with the field."""
    client = context.run_as.oauth2_client if context.run_as is not None else None
    if client:
        read, mistake = _read(client, OAuth2Client)
        need = None if read is None else replace(read.client_secret.need, variable=CLIENT_SECRET_VARIABLE)
        yield "run_as.oauth2_client", need, mistake
    for index, raw in enumerate(context.secrets):
        secret, mistake = _read(raw, Secret)
        yield f"secrets[{index}]", None if secret is None else secret.need, mistake
    for index, raw in enumerate(context.tokens):
        token, mistake = _read(raw, OAuth2TokenRequest)
        yield f"tokens[{index}]", None if token is None else token_need(token.name), mistake


def _read(raw: dict[str, Any], kind: type[Any]) -> tuple[Any, str]:
    try:
        return msgspec.convert(raw, kind), ""
    except msgspec.ValidationError as exc:
        return None, str(exc)
