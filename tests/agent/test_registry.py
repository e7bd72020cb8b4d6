from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from switchyard.agent.backends import Backend, Setting
from switchyard.agent.backends.registry import BACKENDS, CLASS_FACTS, load_backend
from switchyard.errors import Internal, PolicyRefused, UnknownName
from switchyard.features.fake.agent.backend import FakeBackend
from switchyard.plugins import PluginGroup
from tests.agent.builders import a_lease, a_setting


def test_installed_kinds() -> None:
    assert BACKENDS.names() == ["fake", "flux", "kubernetes", "local", "slurm"]


def test_unknown_kind_lists_the_installed() -> None:
    with pytest.raises(UnknownName, match="Installed are: fake, flux, kubernetes, local, slurm"):
        load_backend("condor")


class OlderBackend:
    """A backend of another package: written before there were optional calls, and derived from nothing of ours."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self._fake, self.range_max = FakeBackend(setting), 1
        self.cancelled: list[str] = []

    def cancel(self, native_ids: Collection[str]) -> None:
        self.cancelled += native_ids


REQUIRED_CALLS = (
    *("describe", "look", "state", "trouble", "quote", "submit", "submit_range", "find", "status"),
    *("output", "refresh", "watch", "wake", "held", "forget", "close"),
)
for _fact in CLASS_FACTS:
    setattr(OlderBackend, _fact, getattr(FakeBackend, _fact))
for _call in REQUIRED_CALLS:
    setattr(OlderBackend, _call, lambda self, *args, _call=_call: getattr(self._fake, _call)(*args))


def test_an_older_backend_gets_the_defaults_of_optional_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PluginGroup, "load", lambda *_: OlderBackend)
    make = load_backend("older")
    assert not make.has_expiration
    backend = make(a_setting(tmp_path))
    assert (backend.namespaces, backend.expires_s, backend.has_folders_here) == (None, None, False)
    assert backend.withdraw(["1"]) is None
    assert backend.late_reason(a_lease()) == ""
    assert backend.range_max == 1
    with pytest.raises(PolicyRefused, match="The backend fake of this cluster takes no jobs with files"):
        backend.work_folder(a_lease())
    backend.end_jobs(["1", "2"])
    assert backend.cancelled == ["1", "2"]  # type: ignore[attr-defined]
    assert backend.describe().cores == 4


def _take_cancels(self: OlderBackend, _: Setting) -> None:
    self.cancelled = []


def test_a_backend_derived_from_the_protocol_has_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    derived: Any = type(Backend)("Derived", (OlderBackend, Backend), {"range_max": 1, "__init__": _take_cancels})
    monkeypatch.setattr(PluginGroup, "load", lambda *_: derived)
    assert load_backend("derived") is derived
    backend: Any = derived(a_setting(tmp_path))
    backend.end_jobs(["1"])
    assert (backend.cancelled, backend.withdraw([]), derived.has_expiration) == (["1"], None, False)


def test_a_backend_that_lacks_calls_is_refused_with_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = type("Lacking", (OlderBackend,), {})
    monkeypatch.delattr(OlderBackend, "held")
    monkeypatch.delattr(OlderBackend, "jobs_max")
    monkeypatch.setattr(PluginGroup, "load", lambda *_: lacking)
    with pytest.raises(Internal, match=r"The backend older \(.*Lacking\) lacks jobs_max, held\."):
        load_backend("older")


def test_only_the_one_asked_for_is_imported() -> None:
    code = (
        "import sys; from switchyard.agent.backends.registry import load_backend; load_backend('fake');"
        "sys.exit('switchyard.features.local.agent.backend' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
