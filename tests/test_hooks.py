"""The hooks of git: what each runs is installed, and the check of subjects refuses what it should."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("commit_message", ROOT / "scripts/commit_message.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_hooks_run_programs_that_are_here_and_download_nothing() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    for hook in config["repos"][0]["hooks"]:
        program, *words = shlex.split(hook["entry"])
        assert hook["language"] == "system"
        assert program.startswith(".venv/bin/")
        assert all((ROOT / word).exists() for word in [program, *words] if "/" in word), hook["entry"]


@pytest.mark.parametrize(
    "message",
    [
        "store: claim leases in one statement",
        "ARCHITECTURE: say which writes of a state go past the table",
        "sdk, cli: process many jobs\n\nWhy.",
        "tests/tidy: pass the path\n",
        "Merge branch 'w/habits'",
        "store: " + "x" * 65,
    ],
)
def test_a_good_subject(script: ModuleType, message: str) -> None:
    assert script.problems(message) == []


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("store: " + "x" * 66, "73 characters"),
        ("claim leases in one statement", "area"),
        ("store: claims leases", "'claims' is no imperative"),
        ("store: claimed leases", "'claimed' is no imperative"),
        ("store: claiming leases", "'claiming' is no imperative"),
        ("store: each lease is claimed once", "'each' is no imperative"),
        ("store: claim leases.", "period"),
        ("store: claim leases\nin one statement", "second line"),
        ("", "area"),
    ],
)
def test_a_bad_subject(script: ModuleType, message: str, reason: str) -> None:
    assert reason in "; ".join(script.problems(message))


def test_the_hook_leaves_comments_of_git_out(script: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text("# Please enter the commit message\nstore: claim leases\n\n# On branch main\n", encoding="utf-8")
    assert script.main([str(file)]) == 0
    file.write_text("claimed leases\n", encoding="utf-8")
    assert script.main([str(file)]) == 1
