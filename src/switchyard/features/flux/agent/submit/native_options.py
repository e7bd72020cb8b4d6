"""What a job's native options become in a jobspec, and what Flux does not have. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from switchyard.errors import PolicyRefused
from switchyard.model.job.job import Native, native_problem

URGENCY_DEFAULT = 16
URGENCY_MAX = 31
KNOWN_OPTIONS = ("--urgency", "--setopt", "--setattr")
# Attributes and options of the shell that the agent sets: a job that changed them could hide from it.
AGENT_ATTRIBUTES = frozenset({"bank", "constraints", "cwd", "duration", "environment", "job", "queue", "shell"})
AGENT_SHELL_OPTIONS = frozenset({"output"})
# Fields of `native` that Flux has no word for, and what to do instead.
FOREIGN_FIELDS = {
    "qos": "a queue or `--urgency` takes its place",
    "reservation": "it has none",
    "licenses": "it has none",
    "constraint": "write it as `attributes.system.constraints` of a jobspec",
}


@dataclass(frozen=True, slots=True)
class NativeOptions:
    """`system`: attributes; `shell`: options of the job shell."""

    urgency: int = URGENCY_DEFAULT
    system: dict[str, Any] = field(default_factory=dict)
    shell: dict[str, Any] = field(default_factory=dict)


def native_refusal(native: Native | None) -> str:
    """Why Flux cannot be told this; empty: it can, if the site allows the options."""
    try:
        read_native_options(native)
    except PolicyRefused as exc:
        return exc.detail
    return ""


def read_native_options(native: Native | None) -> NativeOptions:
    """Raises PolicyRefused for what Flux does not have, and for what the agent sets itself."""
    if native is None:
        return NativeOptions()
    if problem := native_problem(native):
        raise PolicyRefused(f"Flux is not told this: {problem}.")
    for name, advice in FOREIGN_FIELDS.items():
        if getattr(native, name):
            raise PolicyRefused(f"Flux does not know `native.{name}`: {advice}.")
    urgency = URGENCY_DEFAULT
    system: dict[str, Any] = {}
    shell: dict[str, Any] = {}
    for option in native.options:
        name, _, text = option.partition("=")
        if name not in KNOWN_OPTIONS:
            raise PolicyRefused(f"The option {name} is not for this cluster; known are {', '.join(KNOWN_OPTIONS)}.")
        if name == "--urgency":
            urgency = _urgency(text)
        elif name == "--setopt":
            _set(shell, text, option, refused=AGENT_SHELL_OPTIONS)
        else:
            _set(system, text.removeprefix("system."), option, refused=AGENT_ATTRIBUTES)
    return NativeOptions(urgency, system, shell)


def _urgency(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= URGENCY_MAX:
        raise PolicyRefused(f"--urgency={text[:40]}: an urgency is a number from 0 to {URGENCY_MAX}.")
    return int(text)


def _set(target: dict[str, Any], text: str, option: str, *, refused: frozenset[str]) -> None:
    """`a.b=VALUE`: a value is JSON, or a text; without a value it is 1, as in Flux's own commands."""
    path, equals, value = text.partition("=")
    keys = path.split(".")
    if not all(keys):
        raise PolicyRefused(f"{option[:80]}: write NAME=VALUE.")
    if keys[0] in refused or keys[0] == "switchyard":
        raise PolicyRefused(f"{option[:80]}: the agent sets {keys[0]} itself.")
    for key in keys[:-1]:
        inner = target.setdefault(key, {})
        if not isinstance(inner, dict):
            raise PolicyRefused(f"{option[:80]}: {key} has a value already.")
        target = inner
    target[keys[-1]] = _value(value) if equals else 1


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
