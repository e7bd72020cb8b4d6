"""Switchyard: one place to submit jobs to many clusters. The names here are the SDK's public surface."""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, without importing it: a bare `import switchyard` must cost nothing
if TYPE_CHECKING:
    from switchyard.client import Client as Client
    from switchyard.errors import Busy as Busy
    from switchyard.errors import Conflict as Conflict
    from switchyard.errors import Denied as Denied
    from switchyard.errors import NotFound as NotFound
    from switchyard.errors import PolicyRefused as PolicyRefused
    from switchyard.errors import TimedOut as TimedOut
    from switchyard.errors import Unauthenticated as Unauthenticated
    from switchyard.errors import Unavailable as Unavailable
    from switchyard.errors import YardError as YardError
    from switchyard.model.files.files import JobFiles as JobFiles
    from switchyard.model.job.job import Job as Job
    from switchyard.model.job.job import JobRequest as JobRequest
    from switchyard.model.job.job import JobSpec as JobSpec
    from switchyard.model.job.job import Limits as Limits
    from switchyard.model.job.job import Resources as Resources
    from switchyard.model.job.job import State as State
    from switchyard.model.rules.scope import Scope as Scope
    from switchyard.sdk.files.fetched_files import FetchedFiles as FetchedFiles
    from switchyard.sdk.jobs.executor import Executor as Executor
    from switchyard.sdk.jobs.function_calls import FunctionFailed as FunctionFailed
    from switchyard.sdk.jobs.function_calls import FunctionRun as FunctionRun
    from switchyard.sdk.jobs.handle import JobHandle as JobHandle
    from switchyard.sdk.jobs.job_completion import as_completed as as_completed

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
    "switchyard.sdk.jobs.executor": ("Executor",),
    "switchyard.sdk.files.fetched_files": ("FetchedFiles",),
    "switchyard.sdk.jobs.function_calls": ("FunctionFailed", "FunctionRun"),
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
