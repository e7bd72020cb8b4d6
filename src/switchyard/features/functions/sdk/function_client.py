"""Client calls about Python functions: run one as a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ParamSpec, TypeVar, Unpack

from switchyard.errors import BadRequest
from switchyard.sdk.client import CoreClient, JobFields

if TYPE_CHECKING:
    from switchyard.features.functions.sdk.function_calls import FunctionRun

P = ParamSpec("P")
R = TypeVar("R")


class FunctionClient(CoreClient):
    """A client whose jobs may be functions."""

    def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> FunctionRun[R]:
        """Run a Python function as a job of one core, and return a handle with its `result`.

        Raise BadRequest if the function or its arguments cannot be sent. It needs the extra `functions` (cloudpickle)
        here, and the same Python version on the cluster.

        >>> yard.run(sum, [1, 2, 3]).result()
        6
        """
        return self.function(function)(*args, **kwargs)

    def function(
        self, function: Callable[P, R], /, *, key: str | None = None, **fields: Unpack[JobFields]
    ) -> Callable[P, FunctionRun[R]]:
        """Return a callable that runs the function as a job with these fields: `yard.function(train, gpus=1)(3)`.

        The callable raises what `run` raises.
        """
        from switchyard.features.functions.sdk.function_calls import (
            COPY_PREFIX,
            RESULT_FILE,
            FunctionRun,
            function_command,
            function_files,
        )
        from switchyard.model.job.variable_names import copied_variables
        from switchyard.sdk.files.file_request import from_fields

        if not callable(function):
            raise BadRequest(
                f"Expected a function, not {type(function).__name__} {str(function)[:40]!r}.",
                next_step="Pass the function and its arguments apart: run(train, 3). A command goes to `submit`.",
            )

        def run(*args: P.args, **kwargs: P.kwargs) -> FunctionRun[R]:
            files = fields.get("files")
            if files is not None and not isinstance(files, Mapping):
                raise BadRequest("The files of a function are a mapping of names to paths.")
            together: JobFields = {"name": getattr(function, "__name__", "function"), **fields}
            together["files"] = {**(files or {}), **function_files(function, args, kwargs)}
            together["out"] = [*from_fields({"out": fields.get("out")}).out, RESULT_FILE]
            copies, before = copied_variables(fields.get("env") or {}, prefix=COPY_PREFIX)
            if copies:
                together["env"] = {**(fields.get("env") or {}), **copies}
            return FunctionRun(self.submit(function_command(before), key=key, **together))

        return run
