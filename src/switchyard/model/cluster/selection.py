"""How a job's cluster is selected, and what is known of a cluster to select by: single values with a name."""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from switchyard.model.rules.names import TEXT_PATTERN, Name

OPTIONS_BYTES_MAX = 16 * 1024  # they are kept with every job
VALUES_MAX = 64  # of a job, of an agent's poll, of an operator's change
# Begins with a letter or _. A name with other signs stands in [brackets] in an expression.
ValueName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}(?!\n)$", max_length=64)]
Scalar = (
    bool
    | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    | float
    | Annotated[str, Meta(pattern=TEXT_PATTERN, max_length=256)]
)
NamedValues = Annotated[dict[ValueName, Scalar], Meta(max_length=VALUES_MAX)]


class Select(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An algorithm that selects among the clusters that can run a job, and its options."""

    name: Name
    options: Annotated[dict[str, Any], Meta(max_length=64)] = {}

    def __post_init__(self) -> None:
        if len(msgspec.json.encode(self.options)) > OPTIONS_BYTES_MAX:
            raise ValueError(f"options are over {OPTIONS_BYTES_MAX} bytes")


class StateValue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A named value of a cluster, its time and its source. Stale: the agent has not confirmed it for too long."""

    name: str
    value: bool | int | float | str
    at_us: int
    by: str
    is_stale: bool = False


def refuse_infinite(values: dict[str, Any]) -> None:
    """Refuse infinite numbers, which YAML can express and JSON cannot."""
    for name, value in values.items():
        if isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{name} is not a finite number")
