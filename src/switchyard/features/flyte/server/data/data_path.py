"""The path that files of Flyte's clients are sent to and read from. Alone, so that the route loads nothing else."""

from __future__ import annotations

FLYTE_DATA_PATH = "/flyte-data/"
