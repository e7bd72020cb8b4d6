"""Calls that wait for somebody else, side by side. In daemon threads: one that hangs keeps no agent from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from switchyard.decoder_warmup import warm_loaded_types
from switchyard.errors import Internal

A = TypeVar("A")
R = TypeVar("R")


def call_in_parallel(call: Callable[[A], R], arguments: Sequence[A]) -> list[R]:
    """The results in order, when all have ended. A defect in one is told by its thread, and raised as such here."""
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
