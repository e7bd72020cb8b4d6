"""Which rows of a test wait for `make soak`."""

from __future__ import annotations

from functools import partial

import pytest

# A row of `parametrize` whose one place that differs is shown here by another row or another test.
SOAKED = partial(pytest.param, marks=pytest.mark.slow)
