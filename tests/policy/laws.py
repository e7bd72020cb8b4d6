"""A policy from plain values: rows by scope and kind, on top of a platform. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from switchyard.model.rules.queue import Queue
from switchyard.model.rules.scope import ScopeKey
from switchyard.policy.admit import AdmittedJob, ProjectEntry, admit
from switchyard.policy.kinds import BUILTIN_KINDS, Kind, Kinds
from switchyard.policy.platform import Platform
from switchyard.policy.resolve import Policy, RuleRow, empty_policy
from tests.builders import a_request

KINDS = Kinds(BUILTIN_KINDS)
DOMAINS = {"development": "development", "staging": "staging", "production": "production"}
PROJECTS = {"default": ProjectEntry(), "p": ProjectEntry(), "old": ProjectEntry(is_archived=True)}
# The scopes of one launch plan, from the platform down.
LEVELS: dict[str, ScopeKey] = {
    "domain": ("development", "", "", ""),
    "project": ("", "p", "", ""),
    "project+domain": ("development", "p", "", ""),
    "workflow": ("development", "p", "w", ""),
    "launch-plan": ("development", "p", "w", "l"),
}
BOTTOM = LEVELS["launch-plan"]


def a_platform(values: Mapping[str, Any] | None = None, **fields: Any) -> Platform:
    """Some names of each sort, and the given values by kind."""
    names: dict[str, Any] = {
        "domains": DOMAINS,
        "pools": frozenset({"gpu", "cpu", "L", "W", "PD", "P", "D"}),
        "labels": frozenset({"near", "far", "L", "W", "PD", "P", "D"}),
        "tags": frozenset({"default", "big", "L", "W", "PD", "P", "D"}),
        "queues": {name: Queue() for name in ("big", "L", "W", "PD", "P", "D")},
        "tiers_s": {"HIGH": 600, "MEDIUM": 1200, "LOW": 1800},
    }
    read = {name: KINDS.get(name).read(value) for name, value in (values or {}).items()}
    return Platform(**(names | {"values": read} | fields))


def a_policy(
    rows: Mapping[ScopeKey, Mapping[str, Any]] | None = None, *, platform: Platform | None = None, version: int = 1
) -> Policy:
    """Each row's id says where it is: `KIND@LEVEL` would do, but a number is what a store has."""
    made = [
        RuleRow(f"row-{number}", kind, key, KINDS.get(kind).read(value))
        for number, (key, kind, value) in enumerate(
            (key, kind, value) for key, here in (rows or {}).items() for kind, value in here.items()
        )
    ]
    return empty_policy(platform or a_platform()).changed(version, made)


def admitted(policy: Policy, **fields: Any) -> AdmittedJob:
    """A job of project p in development, admitted."""
    projects = fields.pop("projects", PROJECTS)
    extra = {name: fields.pop(name) for name in ("launch_plan_spec", "auth_role", "server_labels") if name in fields}
    words = {"launch_plan_spec": "launch_plan", "auth_role": "auth_role", "server_labels": "server_labels"}
    request = a_request(**({"project": "p"} | fields))
    return admit(request, policy, projects, **{words[name]: value for name, value in extra.items()})


def kind(name: str) -> Kind:
    return KINDS.get(name)
