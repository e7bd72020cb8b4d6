"""Runs beside the job: reads a function and its arguments, calls it, and writes what it returned or raised.

This file travels with the job and must run alone: it imports nothing of this package.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback

CALL_FILE = "switchyard_call.pkl"
RESULT_FILE = "switchyard_result.pkl"


def main() -> int:
    """Return 0 if the function returned, 1 if it raised, 2 if it could not be called."""
    with open(CALL_FILE, "rb") as file:  # noqa: PTH123 — as few imports as can be
        wanted = file.readline().decode().strip()
        present = f"{sys.version_info[0]}.{sys.version_info[1]}"
        if wanted != present:
            text = (
                f"The function was sent from Python {wanted}, but this cluster runs it with Python {present}. "
                f"Install Python {wanted} there as `python{wanted}`, or call the function from Python {present}."
            )
            print(text, file=sys.stderr)
            write_result("error", RuntimeError(text))
            return 2
        data = file.read()
    try:
        value = call_function(data)
    except Exception as exc:
        write_error(exc, traceback.format_exc())
        raise
    except BaseException as exc:  # in the caller it would end the program: it travels as a text
        write_result("exit", describe_exit(exc), trace=traceback.format_exc())
        raise
    return write_value(value)


def call_function(data: bytes) -> object:
    """Call the function, and come back to the job's folder, wherever the function went."""
    folder = os.open(".", os.O_RDONLY)
    try:
        function, args, kwargs = pickle.loads(data)  # noqa: S301 — written by the user who submitted the job
        return function(*args, **kwargs)
    finally:
        os.fchdir(folder)
        os.close(folder)


def describe_exit(error: BaseException) -> str:
    if not isinstance(error, SystemExit):
        return f"The function was ended by {type(error).__name__}."
    if isinstance(error.code, str):
        return f"The function exited with the message: {error.code}"
    return f"The function exited with code {error.code or 0}, and returned nothing."


def write_value(value: object) -> int:
    try:
        write_result("value", value)
    except Exception as exc:  # noqa: BLE001 — a value's own methods run while it is pickled, and may raise anything
        text = f"The function returned a {type(value).__name__} that cannot be sent back: {describe(exc)}"
        print(text, file=sys.stderr)
        write_result("error", TypeError(text))
        return 1
    return 0


def write_error(error: Exception, trace: str) -> None:
    text = f"{type(error).__name__}: {describe(error)}"
    try:
        write_result("error", error, trace=trace, text=text)
    except Exception:  # noqa: BLE001 — as above
        write_result("error", RuntimeError(text), trace=trace, text=text)


def describe(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 — the method is the user's
        return "(its text cannot be made)"


def write_result(kind: str, value: object, *, trace: str = "", text: str = "") -> None:
    """Write the result. The value is pickled by itself, so that the rest can be read where its class is not known."""
    import cloudpickle

    data = pickle.dumps((kind, text, trace, cloudpickle.dumps(value)))
    fresh = RESULT_FILE + ".new"
    with open(fresh, "wb") as file:  # noqa: PTH123
        file.write(data)
    os.replace(fresh, RESULT_FILE)  # noqa: PTH105


if __name__ == "__main__":
    sys.exit(main())
