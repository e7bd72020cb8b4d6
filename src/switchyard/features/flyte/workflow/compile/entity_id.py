"""Ids of registered entities: kind, project, domain, name, version. An id names one content for ever."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from flyteidl.core import identifier_pb2

from switchyard.model.rules.names import SHOWN_TEXT_PATTERN

NAME_CHARS_MAX = 255  # as in Flyte
VERSION_RESERVED = "!*'();:@&=+$,/?#[]"  # a version is a part of an address
_SHOWN = re.compile(SHOWN_TEXT_PATTERN)


class EntityKind(StrEnum):
    """Stored; `number` is Flyte's."""

    TASK = "task"
    WORKFLOW = "workflow"
    LAUNCH_PLAN = "launch_plan"

    @property
    def number(self) -> int:
        return int(_NUMBERS[self])

    @property
    def words(self) -> str:
        return self.value.replace("_", " ")


_NUMBERS = {
    EntityKind.TASK: identifier_pb2.TASK,
    EntityKind.WORKFLOW: identifier_pb2.WORKFLOW,
    EntityKind.LAUNCH_PLAN: identifier_pb2.LAUNCH_PLAN,
}
KINDS_BY_NUMBER = {number: kind for kind, number in _NUMBERS.items()}


@dataclass(frozen=True, slots=True, order=True)
class EntityId:
    """One version of one entity."""

    kind: EntityKind
    project: str
    domain: str
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.project}:{self.domain}:{self.name}:{self.version}"


def read_id(message: Any, kind: EntityKind) -> EntityId:
    """The id in a reference. Its own word for the kind does not count: the place of the reference says it."""
    return EntityId(kind, message.project, message.domain, message.name, message.version)


def to_message(entity: EntityId) -> Any:
    return identifier_pb2.Identifier(
        resource_type=entity.kind.number,
        project=entity.project,
        domain=entity.domain,
        name=entity.name,
        version=entity.version,
    )


def id_mistakes(message: Any, kind: EntityKind) -> Iterator[str]:
    """What is wrong with the id of an entity that is to be registered."""
    if message.resource_type not in (identifier_pb2.UNSPECIFIED, kind.number):
        given = (
            identifier_pb2.ResourceType.Name(message.resource_type) if message.resource_type in _KNOWN else "unknown"
        )
        yield f"unexpected resource type {given.lower()} for identifier, expected {kind.value}"
    for field in ("project", "domain", "name", "version"):
        if not getattr(message, field):
            yield f"missing {field}"
    yield from name_mistakes(message.name)
    yield from version_mistakes(message.version)


def name_mistakes(name: str) -> Iterator[str]:
    if len(name) > NAME_CHARS_MAX:
        yield f"name has {len(name)} characters; the most is {NAME_CHARS_MAX}"
    elif not _SHOWN.match(name):
        yield f"name {name!r} has control characters or invisible ones"


def version_mistakes(version: str) -> Iterator[str]:
    if len(version) > NAME_CHARS_MAX:
        yield f"version has {len(version)} characters; the most is {NAME_CHARS_MAX}"
    elif not _SHOWN.match(version):
        yield f"version {version!r} has control characters or invisible ones"
    elif any(char in VERSION_RESERVED for char in version):
        yield f"version [{version}] must be url safe, cannot contain chars [{' '.join(VERSION_RESERVED)}]"


_KNOWN = frozenset(identifier_pb2.ResourceType.values())
