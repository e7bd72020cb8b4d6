"""Plugins of other packages: what a group lists, and what it says of a plugin that is missing or broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.errors import Internal, UnknownName
from switchyard.plugins import PluginGroup

GROUP = PluginGroup("switchyard.test_plugins", "test plugin", built_in=("plain",))
MODULE = """
class Sound:
    pass

class NeedsArgument:
    def __init__(self, argument):
        pass
"""
ENTRY_POINTS = """
[switchyard.test_plugins]
sound = plugin_module:Sound
needs-argument = plugin_module:NeedsArgument
no-module = no_such_module:Sound
no-class = plugin_module:Missing
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugin_module.py").write_text(MODULE)
    metadata = tmp_path / "plugin_package-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-package\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)


def test_names_are_the_built_in_ones_and_then_the_installed_ones() -> None:
    assert GROUP.names() == ["plain", "needs-argument", "no-class", "no-module", "sound"]


def test_a_sound_plugin_is_loaded_and_made() -> None:
    assert isinstance(GROUP.make("sound"), GROUP.load("sound"))


def test_a_missing_plugin_is_refused_with_the_names_that_are_installed() -> None:
    with pytest.raises(UnknownName, match=r"no test plugin 'other'. Installed are: plain, needs-argument") as caught:
        GROUP.load("other")
    assert "install the package that provides it" in caught.value.next_step


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no-module", "No module named 'no_such_module'"),
        ("no-class", "has no attribute 'Missing'"),
        ("needs-argument", "missing 1 required positional argument"),
    ],
)
def test_a_broken_plugin_is_reported_with_its_package_and_the_remedy(name: str, reason: str) -> None:
    with pytest.raises(
        Internal, match=f"The test plugin '{name}' .* of the package plugin-package cannot be loaded.*{reason}"
    ) as caught:
        GROUP.make(name)
    assert "Repair the package plugin-package" in caught.value.next_step


def test_all_plugins_must_be_of_the_required_class() -> None:
    group = PluginGroup("switchyard.test_plugins", "test plugin")
    with pytest.raises(Internal, match="'needs-argument'"):
        group.make_all(Path)
