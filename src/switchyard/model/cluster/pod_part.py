"""A part of a pod that a job brings, in Kubernetes' words. Pure values."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

MAIN_CONTAINER = "main"  # the container of a pod that runs the job's command


class PodPart(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Merged into the pod of the job: maps by key, lists of named things by name. `main` is the job's own container.

    A cluster takes it at the places that its site file lets jobs set (`patch_paths`).
    """

    metadata: dict[str, Any] = {}
    spec: dict[str, Any] = {}
