"""How a job is executed, in the words of Flyte's workflow execution config: what rules may set, and a job itself.

A field that is not given leaves the word to the next level; a map or list that is given replaces the other whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from switchyard.model.jobspec.quantity import Duration, parse_duration_s
from switchyard.model.rules.names import LABEL_KEY_PATTERN, TEXT_PATTERN, LabelKey, LabelValue
from switchyard.model.wire.schema import not_both

# Labels of jobs that only the server sets. Agents trust them: they name the folder for an execution's data.
SERVER_LABELS = "flyte/"
EXECUTION_LABEL = f"{SERVER_LABELS}execution"  # the execution of Flyte's that the job is a part of
NODE_LABEL = f"{SERVER_LABELS}node"  # the node of that execution
PARALLEL_MAX = 10_000_000
MAP_MAX = 256
IdentityText = Annotated[str, Meta(max_length=1024, pattern=TEXT_PATTERN)]
LongText = Annotated[str, Meta(max_length=4096, pattern=TEXT_PATTERN)]
# NUL cannot stand in the environment of any process.
EnvValue = Annotated[str, Meta(max_length=131_072, pattern=r"^[^\u0000]*$")]
EnvName = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\u0000=\n]+(?!\n)$")]
AnnotationKey = Annotated[str, Meta(pattern=LABEL_KEY_PATTERN, min_length=1, max_length=317)]  # prefix/name


def is_server_label(key: str) -> bool:
    return key.startswith(SERVER_LABELS)


def server_label_mistakes(keys: Iterable[str]) -> list[str]:
    """Why a user may not set these labels. Empty: the user may."""
    return [
        f"label {key} is not allowed: only the server sets labels that begin with {SERVER_LABELS}"
        for key in keys
        if is_server_label(key)
    ]


class RunAs(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The identity under which the job acts. The job's process gets it; the cluster decides whether to use it.

    An empty text, and a client without a field, are the same as none.
    """

    iam_role: IdentityText | None = None
    k8s_service_account: IdentityText | None = None
    execution_identity: IdentityText | None = None
    oauth2_client: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            force_setattr(self, name, getattr(self, name) or None)


class SecurityContext(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`secrets`, `tokens` and the secret of `oauth2_client` are names: the site file of an agent has the values."""

    run_as: RunAs | None = None
    secrets: Annotated[list[dict[str, Any]], Meta(max_length=MAP_MAX)] = []
    tokens: Annotated[list[dict[str, Any]], Meta(max_length=MAP_MAX)] = []


class RawOutput(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a job's output data goes: the prefix to which its id is added."""

    output_location_prefix: LongText | None = None


class ExecutionConfig(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings of a job's execution. None: another level, or the default, decides."""

    max_parallelism: Annotated[int, Meta(ge=1, le=PARALLEL_MAX)] | None = None
    security_context: SecurityContext | None = None
    raw_output_data_config: RawOutput | None = None
    labels: Annotated[dict[LabelKey, LabelValue], Meta(max_length=64)] | None = None
    annotations: Annotated[dict[AnnotationKey, LongText], Meta(max_length=MAP_MAX)] | None = None
    interruptible: bool | None = None
    overwrite_cache: bool | None = None
    envs: Annotated[dict[EnvName, EnvValue], Meta(max_length=MAP_MAX)] | None = None


class Tier(StrEnum):
    """A tier of quality of service. The server's config says which queueing budget each tier has."""

    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


class QualityOfService(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tier, or a budget of its own: how long a job may wait before it is reported late."""

    SCHEMA: ClassVar[dict[str, Any]] = not_both("tier", "queueing_budget")
    tier: Tier | None = None
    queueing_budget: Duration | None = None

    def __post_init__(self) -> None:
        if self.tier is not None and self.queueing_budget is not None:
            raise ValueError("give a tier or a queueing_budget, not both")
        if self.queueing_budget is not None:
            parse_duration_s(self.queueing_budget)
