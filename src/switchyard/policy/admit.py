"""Admit a job: is its scope known? The attribute levels, with provenance, will enter here."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.errors import UnknownName
from switchyard.model.job import JobRequest


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules in force: which scopes exist. A new version is a new object."""

    domains: frozenset[str]
    projects: frozenset[str]


@dataclass(frozen=True, slots=True)
class Admitted:
    """What policy made of a request. `queue` is the lane's first half."""

    request: JobRequest
    queue: str = "default"


def admit(request: JobRequest, rules: Rules) -> Admitted:
    """Refuse an unknown scope, naming what is known."""
    if request.domain not in rules.domains:
        known = ", ".join(sorted(rules.domains))
        raise UnknownName(f"There is no domain {request.domain!r}.", next_step=f"Known domains: {known}.")
    if request.project not in rules.projects:
        raise UnknownName(
            f"There is no project {request.project!r}.", next_step="`yard project ls` lists the projects you may use."
        )
    return Admitted(request)
