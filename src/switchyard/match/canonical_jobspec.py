"""Flux's jobspec as a demand: version 1 (RFC 25) and the canonical form (RFC 14) with nested `with` and slots. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from switchyard.errors import Malformed
from switchyard.match.demand import DEMAND_DEPTH_MAX, NEEDS_MAX, Demand, Need, NeedKind, merge_needs
from switchyard.match.requirement import Requirement, requirements_of
from switchyard.model.cluster.native_grammars import GPU_TYPE
from switchyard.model.jobspec.constraint import read_constraint
from switchyard.model.jobspec.counts import is_no_gpu, least_count
from switchyard.model.jobspec.devices import device_of
from switchyard.model.jobspec.quantity import BYTES_MAX

TYPE_CHARS_MAX = 64


def demand_of_jobspec(form: Mapping[str, Any], *, where: str = "the jobspec") -> Demand:
    """`resources` as a list, and `attributes.system.constraints`. No resources: it fits everywhere."""
    resources = form.get("resources")
    if not isinstance(resources, list):
        raise Malformed(f"{where}: resources: expected a list of resources.")
    reading = ResourceReader(where)
    needs = merge_needs([reading.need(entry, f"resources[{number}]", 1) for number, entry in enumerate(resources)])
    system = _mapping(_mapping(form.get("attributes")).get("system"))
    constraint = read_constraint(system.get("constraints"), where=f"{where}: attributes.system.constraints")
    return Demand(needs, constraint=constraint)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


@dataclass(slots=True)
class ResourceReader:
    """Reads nested resources, bounded in depth and number. Rainbow's form nests in the same way and uses it, too."""

    where: str
    left: int = NEEDS_MAX

    def need(self, entry: Any, place: str, depth: int) -> Need:
        if depth > DEMAND_DEPTH_MAX:
            raise self.refused(place, f"nested deeper than {DEMAND_DEPTH_MAX}")
        self.left -= 1
        if self.left < 0:
            raise self.refused(place, f"over {NEEDS_MAX} resources")
        if not isinstance(entry, Mapping):
            raise self.refused(place, f"expected a resource with a type and a count, not {str(entry)[:60]!r}")
        unit = self._unit(entry, place)
        kind, sign, spelling = self.type_of(entry, place).partition(":")
        if sign and not GPU_TYPE.allows(spelling):
            raise self.refused(f"{place}.type", f"{GPU_TYPE.problem(spelling)}; write - for a blank")
        count = least_count(
            entry.get("count", 1), place=f"{self.where}: {place}.count", **({"most": BYTES_MAX} if unit else {})
        )
        holds = self.holds(entry, place, depth)
        return Need(
            kind,
            count,
            unit,
            NeedKind.SLOT if kind == "slot" else NeedKind.VERTEX,
            (
                *self.requires(entry.get("requires"), f"{place}.requires"),
                *requirements_of(device_of(kind, spelling, 1)),
            ),
            holds,
            slot_units=1 if kind == "slot" else count,
        )

    def type_of(self, entry: Mapping[str, Any], place: str) -> str:
        kind = entry.get("type")
        if not isinstance(kind, str) or not kind or len(kind) > TYPE_CHARS_MAX or not kind.isprintable():
            raise self.refused(f"{place}.type", f"expected the name of a type, not {str(kind)[:60]!r}")
        return kind

    def holds(self, entry: Mapping[str, Any], place: str, depth: int) -> tuple[Need, ...]:
        below = entry.get("with")
        if below is None:
            return ()
        if not isinstance(below, list):
            raise self.refused(f"{place}.with", f"expected a list of resources, not {str(below)[:60]!r}")
        needs = [
            self.need(inner, f"{place}.with[{number}]", depth + 1)
            for number, inner in enumerate(below)
            if not (isinstance(inner, Mapping) and is_no_gpu(inner))
        ]
        return merge_needs(needs)

    def requires(self, value: Any, place: str) -> tuple[Requirement, ...]:
        """Read requirements. As in Rainbow, an entry without a subsystem, a field or a bound requires nothing."""
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self.refused(place, f"expected a list, not {str(value)[:60]!r}")
        requirements: set[Requirement] = set()
        for number, entry in enumerate(value):
            if not isinstance(entry, Mapping):
                raise self.refused(f"{place}[{number}]", f"expected fields, not {str(entry)[:60]!r}")
            fields = {
                name: self._text(entry[name], f"{place}[{number}].{name}")
                for name in ("name", "field", "match", "min", "max")
                if entry.get(name) is not None
            }
            bounds = {name: fields[name] for name in ("match", "min", "max") if name in fields}
            if "name" in fields and "field" in fields and bounds:
                requirements.add(Requirement(fields["name"], fields["field"], **bounds))
        return tuple(sorted(requirements, key=repr))

    def _text(self, value: Any, place: str) -> str:
        """Numbers and booleans as people write them."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if not isinstance(value, str | int | float):
            raise self.refused(place, f"expected a text, a number, or true or false, not {str(value)[:60]!r}")
        text = str(value)
        if len(text) > 1024:
            raise self.refused(place, "over 1024 characters")
        return text

    def _unit(self, entry: Mapping[str, Any], place: str) -> str:
        unit = entry.get("unit")
        if unit is None or unit == "":
            return ""
        if not isinstance(unit, str) or len(unit) > 16:
            raise self.refused(f"{place}.unit", f"expected a unit such as GB, not {str(unit)[:60]!r}")
        return unit

    def refused(self, place: str, why: str) -> Malformed:
        return Malformed(f"{self.where}: {place[:300]}: {why}.")
