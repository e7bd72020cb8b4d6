"""Parallel calls in daemon threads: a call that hangs does not keep the agent from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from switchyard.decoder_warmup import warm_loaded_types
from switchyard.errors import Internal

A = TypeVar("A")
R = TypeVar("R")


def call_in_parallel(call: Callable[[A], R], arguments: Sequence[A]) -> list[R]:
    """Call `call` with each argument in its own thread and return the results in order.

    Raises Internal if a call raised; its thread logs the traceback.
    """
    if len(arguments) == 1:
        return [call(arguments[0])]
    results: dict[int, R] = {}

    def run(number: int) -> None:
        results[number] = call(arguments[number])

    warm_loaded_types()
    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(arguments))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(results) < len(arguments):
        raise Internal("A call beside others ended by a defect; its own thread has said which.")
    return [results[number] for number in range(len(arguments))]
