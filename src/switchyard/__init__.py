"""Switchyard: one place to submit jobs to many clusters. The names here are the SDK's public surface."""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, without importing it: a bare `import switchyard` must cost nothing
if TYPE_CHECKING:
    from switchyard.client import Client
    from switchyard.errors import (
        Busy,
        Conflict,
        Denied,
        NotFound,
        PolicyRefused,
        TimedOut,
        Unauthenticated,
        Unavailable,
        YardError,
    )
    from switchyard.features.functions.sdk.executor import Executor
    from switchyard.features.functions.sdk.function_calls import FunctionFailed, FunctionRun
    from switchyard.model.files.files import JobFiles
    from switchyard.model.job.job import Job, JobRequest, JobSpec, Limits, Resources, State
    from switchyard.model.rules.scope import Scope
    from switchyard.sdk.files.fetched_files import FetchedFiles
    from switchyard.sdk.jobs.handle import JobHandle
    from switchyard.sdk.jobs.job_completion import as_completed

    __version__: str

__all__ = [
    "Busy",
    "Client",
    "Conflict",
    "Denied",
    "Executor",
    "FetchedFiles",
    "FunctionFailed",
    "FunctionRun",
    "Job",
    "JobFiles",
    "JobHandle",
    "JobRequest",
    "JobSpec",
    "Limits",
    "NotFound",
    "PolicyRefused",
    "Resources",
    "Scope",
    "State",
    "TimedOut",
    "Unauthenticated",
    "Unavailable",
    "YardError",
    "as_completed",
]

_HOMES = {
    "switchyard.client": ("Client",),
    "switchyard.sdk.jobs.job_completion": ("as_completed",),
    "switchyard.features.functions.sdk.executor": ("Executor",),
    "switchyard.sdk.files.fetched_files": ("FetchedFiles",),
    "switchyard.features.functions.sdk.function_calls": ("FunctionFailed", "FunctionRun"),
    "switchyard.sdk.jobs.handle": ("JobHandle",),
    "switchyard.model.files.files": ("JobFiles",),
    "switchyard.model.job.job": ("Job", "JobRequest", "JobSpec", "Limits", "Resources", "State"),
    "switchyard.model.rules.scope": ("Scope",),
}


if not TYPE_CHECKING:  # a type checker that saw this function would take every name, also a misspelled one

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name == "__version__":
            return _version()
        if name not in __all__:
            raise AttributeError(f"module 'switchyard' has no attribute {name!r}")
        home = next((module for module, names in _HOMES.items() if name in names), "switchyard.errors")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*globals(), *__all__, "__version__"]


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("switchyard")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"
