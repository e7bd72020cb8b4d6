"""What a job needs of its cluster's site file, and what a site file offers: a place for data, and secrets. Pure values.

Both are named, never carried: values of secrets and credentials stay with the agent, which gives them to the attempt.
An agent reports with its graph what its site file offers, so that the router refuses a cluster before a job goes there.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated

from msgspec import Meta, Struct

from switchyard.model.job.variable_names import is_shell_name

SITE_FOLDER = ".switchyard"  # in the folder of a job: what the site gives to it
SITE_VARIABLES = f"{SITE_FOLDER}/env"  # text for a shell, with environment variables
ODD_VARIABLES = f"{SITE_FOLDER}/odd-env"  # variables whose names no shell takes: NAME=VALUE, with NUL between them
SECRETS_MAX = 64  # of one job
ROLES_MAX = 1000  # of one site
TOKEN_GROUP = "oauth2_tokens"  # noqa: S105 - the group of tokens among the secrets of a site file
TOKEN_VARIABLE_PREFIX = "SWITCHYARD_TOKEN_"  # noqa: S105 - the prefix of a variable's name
CLIENT_SECRET_VARIABLE = "SWITCHYARD_OAUTH2_CLIENT_SECRET"  # noqa: S105 - the name of a variable
ROLE_VARIABLE = "SWITCHYARD_IAM_ROLE"
OFFERS_MAX = 1000  # of one site
STORE_SCHEMES = ("s3", "gs", "abfs", "abfss")
# A path on a file system of the cluster, or an address of a bucket. No part of it is `.` or `..`.
DATA_PATTERN = (
    r"^((s3|gs|abfs|abfss)://[^\u0000-\u0020\u007f/]+)?(/(?!\.{1,2}(/|$|\n))[^\u0000-\u0020\u007f/]+)*/?(?!\n)$"
)
DataPrefix = Annotated[str, Meta(max_length=1024, pattern=DATA_PATTERN)]
SecretWord = Annotated[str, Meta(max_length=256, pattern=r"^([A-Za-z0-9_-][A-Za-z0-9_.-]*)?(?!\n)$")]
SecretKey = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*(?!\n)$")]
RoleName = Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"^[^\u0000-\u0020\u007f]+(?!\n)$")]
AccountName = Annotated[str, Meta(max_length=253, pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)(?!\n)$")]
ProjectPattern = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\u0000-\u0020]+(?!\n)$")]
ProjectPatterns = Annotated[tuple[ProjectPattern, ...], Meta(max_length=OFFERS_MAX)]


class SecretNeed(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A secret by its name. `as_file`: as a file only; else also as an environment variable."""

    key: SecretKey
    group: SecretWord = ""
    version: SecretWord = ""
    variable: Annotated[str, Meta(max_length=256, pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?(?!\n)$")] = ""  # a further one
    as_file: bool = False

    @property
    def path(self) -> str:
        return "/".join(word for word in (self.group, self.version, self.key) if word)


def token_need(name: str) -> SecretNeed:
    """The need of a job that asks for a token: sites have tokens among their secrets."""
    variable = TOKEN_VARIABLE_PREFIX + name
    return SecretNeed(key=name, group=TOKEN_GROUP, variable=variable if is_shell_name(variable) else "")


class SiteNeeds(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a job needs of the site. `data`: where its data goes; empty: the folder of the cluster, whichever it is."""

    data: DataPrefix | None = None
    secrets: Annotated[tuple[SecretNeed, ...], Meta(max_length=SECRETS_MAX)] = ()


class SiteAsk(Struct, frozen=True, omit_defaults=True):
    """The needs of a job with its project, as the router asks for them.

    `sources`: the path of a secret, and the field of a rule or a request that asks for it.
    """

    project: str
    needs: SiteNeeds
    sources: tuple[tuple[str, str], ...] = ()

    def source(self, path: str) -> str:
        return dict(self.sources).get(path, "")


class StoreOffer(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Jobs of these projects can read and write below this address."""

    prefix: DataPrefix
    projects: ProjectPatterns = ("*",)


class SecretOffer(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Jobs of these projects may have this secret."""

    key: SecretKey
    group: SecretWord = ""
    projects: ProjectPatterns = ("*",)


class RoleOffer(Struct, frozen=True, forbid_unknown_fields=True):
    """The service account that has an IAM role."""

    role: RoleName
    account: AccountName


class SiteOffer(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a site file offers to jobs. `folder`: on a file system that all nodes of the cluster see."""

    folder: DataPrefix = ""
    stores: Annotated[tuple[StoreOffer, ...], Meta(max_length=OFFERS_MAX)] = ()
    secrets: Annotated[tuple[SecretOffer, ...], Meta(max_length=OFFERS_MAX)] = ()
    roles: Annotated[tuple[RoleOffer, ...], Meta(max_length=ROLES_MAX)] = ()


def role_note(role: str, offer: SiteOffer | None) -> str:
    """What a cluster with this offer does with the IAM role of a job."""
    for one in offer.roles if offer is not None else ():
        if one.role == role:
            return f"the IAM role {role} comes with the service account {one.account}"
    return f"the IAM role {role} is told to the job alone ({ROLE_VARIABLE})"


def site_refusal(ask: SiteAsk, offer: SiteOffer | None) -> str:
    """Why a cluster with this offer cannot run the job; empty: it can."""
    if offer is None:
        why = "its site file has neither a place for data nor secrets (`data` and `secrets` in the agent's site file)"
        return why + next((f"; {source} asks for the secret {path}" for path, source in ask.sources), "")
    if why := _data_refusal(ask.needs.data, ask.project, offer):
        return why
    for need in ask.needs.secrets:
        offers = [one for one in offer.secrets if (one.group, one.key) == (need.group, need.key)]
        if not any(is_allowed(ask.project, one.projects) for one in offers):
            what = f"jobs of the project {ask.project} may not have" if offers else "its site file does not have"
            source = ask.source(need.path)
            asked = f", which {source} asks for" if source else ""
            return f"{what} the secret {need.path} (`secrets` in the agent's site file){asked}"
    return ""


def is_below(place: str, prefix: str) -> bool:
    """Whether a path or an address is the prefix, or below it."""
    return bool(prefix) and (place.rstrip("/") + "/").startswith(prefix.rstrip("/") + "/")


def is_allowed(project: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(project, pattern) for pattern in patterns)


def _data_refusal(data: str | None, project: str, offer: SiteOffer) -> str:
    if data is None:
        return ""
    if data.partition("://")[0] in STORE_SCHEMES:
        stores = [one for one in offer.stores if is_below(data, one.prefix)]
        if any(is_allowed(project, one.projects) for one in stores):
            return ""
        what = f"jobs of the project {project} may not write" if stores else "its site file names no store for"
        return f"{what} data at {data} (`data: {{stores: …}}` in the agent's site file)"
    if not offer.folder:
        return "its site file names no folder for data (`data: {folder: DIR}` in the agent's site file)"
    if data and not is_below(data, offer.folder):
        return f"its folder for data is {offer.folder}, and the data goes to {data}"
    folder = offer.folder.rstrip("/")
    if data.rstrip("/") not in ("", folder) and not is_below(data, f"{folder}/{project}"):
        return f"data of the project {project} goes below {folder}/{project} alone, and this goes to {data}"
    return ""
