"""Task resources (0): defaults fill what a job omits; limits refuse what asks for more. Nothing is ever clamped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct
from msgspec.structs import replace

from switchyard.model.job.job import COUNT_MAX, JobSpec, Limits, Resources
from switchyard.model.jobspec.quantity import is_amount_above, parse_amount, parse_kubernetes
from switchyard.policy.draft import Draft, Entry, RecordOverrides
from switchyard.policy.kinds.kind import Kind, Merge
from switchyard.policy.platform import Platform

KubernetesQuantity = (
    Annotated[str, Meta(max_length=40)] | Annotated[int, Meta(ge=0, le=2**63 - 1)] | Annotated[float, Meta(ge=0)]
)
# The attribute's word and the job's. `storage` is kept for Flyte's clients; nothing reads it, as in Flyte.
JOB_FIELDS = {"cpu": "cores", "gpu": "gpus", "memory": "memory", "ephemeral_storage": "ephemeral_storage"}


def _is_unset(value: str | int | float | None) -> bool:
    return value is None or value == ""  # an empty text is how protobuf says it


class ResourceQuantities(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Quantities as Kubernetes writes them: 500m, 2, 450Mi."""

    cpu: KubernetesQuantity | None = None
    gpu: KubernetesQuantity | None = None
    memory: KubernetesQuantity | None = None
    storage: KubernetesQuantity | None = None
    ephemeral_storage: KubernetesQuantity | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if _is_unset(value):
                continue
            amount = parse_kubernetes(value)
            if name == "gpu" and (amount.denominator != 1 or amount > COUNT_MAX):
                raise ValueError(f"gpu is a whole number up to {COUNT_MAX}, not {value}")


NO_RESOURCES = ResourceQuantities()  # the very object: msgspec omits a default only where it is the same one


class TaskResourcesValue(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    defaults: ResourceQuantities = NO_RESOURCES
    limits: ResourceQuantities = NO_RESOURCES

    def __post_init__(self) -> None:
        cpu = self.defaults.cpu
        if cpu is not None and not _is_unset(cpu) and not parse_amount(cpu):
            raise ValueError("defaults.cpu must be more than zero")
        for name in ResourceQuantities.__struct_fields__:
            default, limit = getattr(self.defaults, name), getattr(self.limits, name)
            if _is_unset(default) or _is_unset(limit):
                continue
            if is_amount_above(default, limit):
                raise ValueError(f"defaults.{name} ({default}) is above its own limit ({limit})")


class TaskResourcesKind(Kind):
    number = 0
    name = "task-resource-attribute"
    title = "task resources"
    value = TaskResourcesValue
    merge = Merge.FIELD
    depth = 2
    sample: ClassVar[dict[str, Any]] = {
        "defaults": {"cpu": "1", "memory": "150Mi"},
        "limits": {"cpu": "2", "memory": "450Mi"},
    }

    def read(self, raw: object) -> Struct:
        value = super().read(raw)
        assert isinstance(value, TaskResourcesValue)
        return TaskResourcesValue(_as_text(value.defaults), _as_text(value.limits))

    def check(self, value: Any, platform: Platform) -> list[str]:
        return [] if self.flatten(value) else ["give at least one default or limit"]

    def amend(self, draft: Draft, fields: Mapping[str, Entry]) -> Draft:
        spec = draft.request.spec
        filled = _fill(spec.resources, fields)
        if spec.alternatives:
            spec, filled = _fill_alternatives(spec, filled, fields)
        else:
            spec = replace(spec, resources=filled.resources)
        overrides: RecordOverrides = {(self.name, field): None for field in filled.unused}
        return replace(
            draft,
            request=replace(draft.request, spec=spec),
            own=draft.own | overrides,
            refusals=draft.refusals + (filled.refusals or _demanded_above(draft.demanded, fields)),
        )


@dataclass(frozen=True, slots=True)
class _Filled:
    resources: Resources
    unused: tuple[str, ...]
    refusals: tuple[str, ...]


def _fill(asked: Resources, fields: Mapping[str, Entry]) -> _Filled:
    """Request: as given, else its limit, else the default. Limit: as given, else the request. Then compare both."""
    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    unused: list[str] = []
    refusals: list[str] = []
    for word, name in JOB_FIELDS.items():
        default, bound = fields.get(f"defaults.{word}"), fields.get(f"limits.{word}")
        if default is None and bound is None:
            continue
        request, limit = getattr(asked, name), getattr(asked.limits, name)
        requested = request if request is not None else limit
        if requested is not None and default is not None:
            unused.append(f"defaults.{word}")
        amount = requested if requested is not None else (default.value if default else None)
        if amount is None:  # neither requested nor a default: a limit alone has no effect
            unused.append(f"limits.{word}")
            continue
        maximum = limit if limit is not None else amount
        requests[name], limits[name] = _typed(name, amount), _typed(name, maximum)
        refusals += _above(word, amount, maximum, bound, default if requested is None else None)
    if not requests:
        return _Filled(asked, tuple(unused), tuple(refusals))
    both = replace(asked.limits, **limits) if not refusals else Limits()
    return _Filled(replace(asked, **requests, limits=both), tuple(unused), tuple(refusals))


def _fill_alternatives(spec: JobSpec, first: _Filled, fields: Mapping[str, Entry]) -> tuple[JobSpec, _Filled]:
    """Fill each set, and hold each to the limits: any of them may be the one that the job gets."""
    all_filled = (first, *(_fill(resources, fields) for resources in spec.alternatives))
    numbered = enumerate(all_filled, 1)
    refusals = [f"alternative {number}: {refusal}" for number, filled in numbered for refusal in filled.refusals]
    sets = tuple(filled.resources for filled in all_filled)
    if not refusals and len(set(sets)) < len(sets):
        same = next(number for number, resources in enumerate(sets) if resources in sets[:number])
        numbers = f"{sets.index(sets[same]) + 1} and {same + 1}"
        refusals = [f"alternatives {numbers} are the same once the defaults are filled in"]
    unused = tuple(name for name in first.unused if all(name in filled.unused for filled in all_filled))
    spec = spec if refusals else replace(spec, resources=sets[0], alternatives=sets[1:])
    return spec, _Filled(spec.resources, unused, tuple(refusals))


def _demanded_above(demanded: Mapping[str, int], fields: Mapping[str, Entry]) -> tuple[str, ...]:
    """Refuse a jobspec whose tree asks for more than the limits. The plain fields beside it do not count."""
    refusals: list[str] = []
    for word, amount in demanded.items():
        refusals += _above(word, amount, amount, fields.get(f"limits.{word}"), None)
    return tuple(refusals)


def _above(word: str, amount: Any, maximum: Any, bound: Entry | None, default: Entry | None) -> list[str]:
    is_over = bound is not None and is_amount_above(amount, bound.value)
    if bound is None or not (is_over or is_amount_above(maximum, bound.value)):
        return []
    refusal = f"the limit is {bound.value} ({bound.source})"
    if is_over:
        if default is not None:
            return [f"{word}: not asked for, and the default {amount} ({default.source}) is above it: {refusal}"]
        return [f"{word}: asks for {amount}, and {refusal}"]
    return [f"{word}: its own limit is {maximum}, and {refusal}"]


def _typed(name: str, amount: Any) -> Any:
    return int(parse_amount(amount)) if name == "gpus" else amount


def _as_text(quantities: ResourceQuantities) -> ResourceQuantities:
    """Store every quantity as text, also one that a client wrote as a number."""
    made = ResourceQuantities(**{name: _text(getattr(quantities, name)) for name in quantities.__struct_fields__})
    return NO_RESOURCES if made == NO_RESOURCES else made


def _text(value: str | int | float | None) -> str | None:
    return None if _is_unset(value) else str(value)
