"""The result of a fetch of output files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FetchedFiles:
    """What a fetch of output files did: `files` with `bytes` came into `folder`; `unchanged` were there already.

    `missing`: patterns for which the job left no file. `skipped`: files that the cluster did not take, with the reason.
    `failed`: attempts whose files cannot be had, with the reason.
    """

    folder: str
    files: int = 0
    bytes: int = 0
    unchanged: int = 0
    missing: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
