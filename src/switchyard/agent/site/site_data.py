"""The sections `data` and `secrets` of the site file: where data of jobs goes, and which secrets jobs may have."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from switchyard.agent.site.site_types import AbsolutePath
from switchyard.model.executions.execution import EnvName
from switchyard.model.job.site_needs import (
    OFFERS_MAX,
    STORE_SCHEMES,
    DataPrefix,
    ProjectPatterns,
    SecretKey,
    SecretWord,
)

VariableName = Annotated[str, Meta(max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*(?!\n)$")]


class SiteValue(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where the agent finds a value: in this file, in a file of its own, or in its own environment."""

    value: Annotated[str, Meta(max_length=65_536, pattern=r"^[^\u0000]*$")] | None = None
    file: AbsolutePath | None = None
    env: EnvName | None = None

    def __post_init__(self) -> None:
        if sum(part is not None for part in (self.value, self.file, self.env)) != 1:
            raise ValueError("give one of `value`, `file` and `env`")


class StoreRule(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A bucket, or a part of one, that jobs can reach. `variables`: what they need for it, such as credentials."""

    prefix: DataPrefix
    projects: ProjectPatterns = ("*",)
    variables: Annotated[dict[VariableName, SiteValue], Meta(max_length=64)] = {}

    def __post_init__(self) -> None:
        if self.prefix.partition("://")[0] not in STORE_SCHEMES:
            raise ValueError(f"prefix: an address with {', '.join(f'{scheme}://' for scheme in STORE_SCHEMES)}")


class DataSite(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where data of jobs goes that is no output file: data of Flyte's tasks."""

    # On a file system that all nodes see under this path, and jobs can write to. None: the cluster has none.
    folder: AbsolutePath | None = None
    stores: Annotated[list[StoreRule], Meta(max_length=OFFERS_MAX)] = []

    def __post_init__(self) -> None:
        if self.folder is not None and (not self.folder.strip("/") or {".", ".."} & set(self.folder.split("/"))):
            raise ValueError("folder: a folder below /, without `.` and `..` in its path")
        if self.folder is not None and any(character.isspace() for character in self.folder):
            raise ValueError("folder: a path without blanks")


class SecretRule(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A secret that jobs of these projects may have, and where the agent finds it."""

    key: SecretKey
    group: SecretWord = ""
    projects: ProjectPatterns = ("*",)
    file: AbsolutePath | None = None
    env: EnvName | None = None

    def __post_init__(self) -> None:
        if (self.file is None) == (self.env is None):
            raise ValueError(f"secret {self.key}: give one of `file` and `env`")

    @property
    def source(self) -> SiteValue:
        return SiteValue(file=self.file, env=self.env)
