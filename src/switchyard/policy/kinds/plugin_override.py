"""Plugin override (5): which backend runs a type of task, where a cluster has several."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from switchyard.model.rules.names import Name
from switchyard.policy.draft import Draft, Entry, RecordOverrides
from switchyard.policy.kinds.kind import Kind, Merge
from switchyard.policy.platform import Platform

BEHAVIOURS = ("FAIL", "USE_DEFAULT")  # Flyte's numbers are their places here


class MissingPluginBehavior(StrEnum):
    """What happens if a cluster has none of the backends."""

    FAIL = "FAIL"
    USE_DEFAULT = "USE_DEFAULT"


class TaskTypeOverride(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`plugin_id`: backends in the order of preference."""

    task_type: Name
    plugin_id: Annotated[list[Name], Meta(min_length=1, max_length=32)]
    missing_plugin_behavior: MissingPluginBehavior = MissingPluginBehavior.FAIL


class PluginOverrideValue(Struct, frozen=True, forbid_unknown_fields=True):
    overrides: Annotated[list[TaskTypeOverride], Meta(min_length=1, max_length=256)]


class PluginOverrideKind(Kind):
    number = 5
    name = "plugin-override"
    title = "plugin override"
    value = PluginOverrideValue
    merge = Merge.KEY
    sample: ClassVar[dict[str, Any]] = {
        "overrides": [{"task_type": "container", "plugin_id": ["slurm"], "missing_plugin_behavior": "USE_DEFAULT"}]
    }

    def read(self, raw: object) -> Struct:
        return super().read(_with_behaviour_names(raw))

    def check(self, value: Any, platform: Platform) -> list[str]:
        types = [override.task_type for override in value.overrides]
        return [
            f"overrides: the task type {name!r} is given twice" for name in sorted(set(types)) if types.count(name) > 1
        ]

    def flatten(self, value: Struct) -> dict[str, Any]:
        assert isinstance(value, PluginOverrideValue)
        return {f"overrides.{override.task_type}": msgspec.to_builtins(override) for override in value.overrides}

    def assemble(self, fields: Mapping[str, Any]) -> Struct:
        return msgspec.convert({"overrides": [fields[path] for path in sorted(fields)]}, PluginOverrideValue)

    def amend(self, draft: Draft, fields: Mapping[str, Entry]) -> Draft:
        wanted = f"overrides.{draft.request.spec.task_type}"
        overrides: RecordOverrides = {(self.name, path): None for path in fields if path != wanted}
        entry = fields.get(wanted)
        if entry is None:
            return replace(draft, own=draft.own | overrides)
        override = msgspec.convert(entry.value, TaskTypeOverride)
        return replace(
            draft.bounded(
                backends=tuple(override.plugin_id),
                needs_backend=override.missing_plugin_behavior is MissingPluginBehavior.FAIL,
            ),
            own=draft.own | overrides,
        )


def _with_behaviour_names(raw: object) -> object:
    """Flyte's files write the behaviour as a number."""
    if not isinstance(raw, Mapping) or not isinstance(raw.get("overrides"), list):
        return raw
    return {**raw, "overrides": [_with_behaviour_name(override) for override in raw["overrides"]]}


def _with_behaviour_name(override: object) -> object:
    if not isinstance(override, Mapping):
        return override
    number = override.get("missing_plugin_behavior")
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < len(BEHAVIOURS):
        return {**override, "missing_plugin_behavior": BEHAVIOURS[number]}
    return override
