from __future__ import annotations

import subprocess
import sys

import pytest

from switchyard.agent.backends.registry import BACKENDS, load_backend
from switchyard.errors import UnknownName


def test_installed_kinds() -> None:
    assert BACKENDS.names() == ["fake", "flux", "kubernetes", "local", "slurm"]


def test_unknown_kind_lists_the_installed() -> None:
    with pytest.raises(UnknownName, match="Installed are: fake, flux, kubernetes, local, slurm"):
        load_backend("condor")


def test_only_the_one_asked_for_is_imported() -> None:
    code = (
        "import sys; from switchyard.agent.backends.registry import load_backend; load_backend('fake');"
        "sys.exit('switchyard.agent.backends.local.local' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
