"""How a wheel is built, and what it needs."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input"]
BUILD_S = 120


def needed(requirement: Requirement) -> set[str]:
    """The names of all distributions that a requirement brings, itself included."""
    names: set[str] = set()
    seen: set[str] = set()
    todo = [requirement]
    while todo:
        wanted = todo.pop()
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        names.add(canonicalize_name(wanted.name))
        for text in importlib.metadata.requires(wanted.name) or ():
            part = Requirement(text)
            if part.marker is None or any(part.marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)):
                todo.append(part)
    return names
