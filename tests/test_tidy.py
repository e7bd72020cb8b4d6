"""The code's own tidiness: the few hard rules, each failure with its file and line; then the tests of the rules."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from tests import tidy
from tests.tidy import Finding, Source

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = {"__pycache__", "build", "dist"}
TEXT_BYTES_MAX = 2**20  # a larger file is data, not something a person wrote

IN_PACKAGE = [
    tidy.missing_docstrings,
    tidy.sql_outside_store,
    tidy.impurity,
    tidy.wall_clocks,
    tidy.async_in_core,
    tidy.prints,
    tidy.environment_reads,
    tidy.untyped_dictionaries,
    tidy.catch_alls,
]
EVERYWHERE = [tidy.long_files, tidy.long_functions]
pytestmark = pytest.mark.xdist_group("tidy")  # one worker reads all files, once
Rule = Callable[[Source], Iterator[Finding]]


@lru_cache(maxsize=1)
def files() -> list[str]:
    """Every file of the project, from git where there is git: a person's own notes are not the project's."""
    if (ROOT / ".git").exists():
        listing = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        said = subprocess.run(listing, capture_output=True, check=False)
        if said.returncode == 0:
            names = said.stdout.decode().split("\0")
            return sorted(name for name in names if name and (ROOT / name).is_file())
    paths = [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file()]
    return sorted(path.as_posix() for path in paths if not any(_is_made(folder) for folder in path.parts[:-1]))


def _is_made(folder: str) -> bool:
    """Whether a folder holds what tools made: `.venv` and the caches, but not `.ci`."""
    return folder in SKIPPED or (folder.startswith(".") and folder != ".ci")


@lru_cache(maxsize=1)
def sources() -> list[Source]:
    """Every Python file. None of them becomes garbage, so the collector need not look at a million nodes meanwhile."""
    gc.disable()
    try:
        return [
            Source.parse(file, (ROOT / file).read_text(encoding="utf-8")) for file in files() if file.endswith(".py")
        ]
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _forget_sources() -> Iterator[None]:
    """Half a gigabyte, which this worker would keep until its end."""
    yield
    sources.cache_clear()


def fail_if_any(findings: Iterable[Finding]) -> None:
    lines = [str(finding) for finding in findings]
    assert not lines, "\n".join(["", *lines])


@pytest.mark.parametrize("rule", IN_PACKAGE, ids=lambda rule: rule.__name__)
def test_package(rule: Rule) -> None:
    fail_if_any(finding for source in sources() if source.place for finding in rule(source))


@pytest.mark.parametrize("rule", EVERYWHERE, ids=lambda rule: rule.__name__)
def test_all_python(rule: Rule) -> None:
    fail_if_any(finding for source in sources() for finding in rule(source))


def test_no_public_class_name_is_defined_twice() -> None:
    fail_if_any(tidy.repeated_classes(sources()))


def test_comments_name_files_that_exist() -> None:
    fail_if_any(finding for source in sources() if source.place for finding in tidy.unknown_files(source, files()))


def test_no_module_that_nothing_imports() -> None:
    fail_if_any(tidy.unused_modules(sources(), [(ROOT / "pyproject.toml").read_text(encoding="utf-8")]))


def test_a_test_that_lets_time_pass_says_why() -> None:
    """A test waits for a condition. Where time itself is the subject, the line says so."""
    sleeps = re.compile(r"^\s+time\.sleep\([^#]*$")
    fail_if_any(
        Finding(source.file, number, "`time.sleep` without a reason: use `until`, or say why time must pass")
        for source in sources()
        if source.file.startswith("tests/") and not source.file.startswith("tests/data/")
        for number, line in enumerate(source.text.splitlines(), 1)
        if sleeps.match(line) and source.file != "tests/processes.py"
    )


def test_no_module_imports_itself_through_others() -> None:
    fail_if_any(tidy.import_cycles(sources()))


def test_names_say_what_they_hold() -> None:
    fail_if_any(finding for file in files() for finding in tidy.bad_names(file))


def test_texts_know_no_machine_and_no_registry() -> None:
    fail_if_any(finding for file, text in texts() for finding in tidy.bad_text(file, text))


def texts() -> Iterator[tuple[str, str]]:
    for file in files():
        path = ROOT / file
        if path.stat().st_size <= TEXT_BYTES_MAX and b"\0" not in (content := path.read_bytes()):
            yield file, content.decode("utf-8", errors="replace")


def test_agent_sdk_and_cli_import_without_the_servers_parts() -> None:
    """The light install: `pip install switchyard` without the extra must give a working agent, SDK and CLI."""
    code = """
import importlib, pkgutil, sys

HEAVY = {"starlette", "uvicorn", "uvloop", "sqlalchemy", "alembic", "psycopg", "numpy", "structlog", "grpc"}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in HEAVY:
            raise ImportError(f"{name} belongs to the server")

sys.meta_path.insert(0, Refuse())
import switchyard, switchyard.main
for room in ("agent", "sdk", "cli"):
    package = importlib.import_module(f"switchyard.{room}")
    for module in pkgutil.walk_packages(package.__path__, f"switchyard.{room}."):
        importlib.import_module(module.name)
for name in switchyard.__all__:
    getattr(switchyard, name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


# --- the rules themselves: each finds what it is for, on the right line, and leaves its neighbour alone ---

FOUND = [
    (tidy.missing_docstrings, "model/a.py", "import re", 1),
    (tidy.sql_outside_store, "service/a.py", "x = 1\nfrom sqlalchemy import select", 2),
    (tidy.sql_outside_store, "server/a.py", "def f():\n    import sqlite3", 2),
    (tidy.sql_outside_store, "service/a.py", "q = 'SELECT id FROM job WHERE 1'", 1),
    (tidy.sql_outside_store, "service/a.py", "q = f'UPDATE {table} SET a = 1'", 1),
    (tidy.sql_outside_store, "service/a.py", "q = 'UPDATE job SET a = 1'", 1),
    (tidy.sql_outside_store, "agent/journal/journal.py", "import sqlite3\nq = 'SELECT a FROM b WHERE c'", None),
    (tidy.sql_outside_store, "agent/journal.py", "import sqlalchemy", 1),
    (tidy.sql_outside_store, "store/a.py", "import sqlalchemy\nq = 'DELETE FROM job'", None),
    (tidy.sql_outside_store, "service/a.py", "'''SELECT one FROM many: a docstring.'''", None),
    (tidy.sql_outside_store, "cli/a.py", "x = 'Select a job from the list'", None),
    (tidy.impurity, "model/a.py", "import time", 1),
    (tidy.impurity, "route/select/a.py", "def f():\n    from random import random", 2),
    (tidy.impurity, "policy/a.py", "x = open('f')", 1),
    (tidy.impurity, "match/a.py", "import datetime\nx = datetime.datetime.now()", 2),
    (tidy.impurity, "match/a.py", "import numpy as np\nx = np.random.rand()", 2),
    (tidy.impurity, "model/a.py", "def f(world):\n    return world.now", None),
    (tidy.impurity, "service/a.py", "import time", None),
    (tidy.wall_clocks, "service/a.py", "import time\nx = time.time()", 2),
    (tidy.wall_clocks, "tokens/a.py", "from time import time_ns", 1),
    (tidy.wall_clocks, "store/a.py", "import datetime\nx = datetime.datetime.now()", 2),
    (tidy.wall_clocks, "server/a.py", "import time\nx = time.monotonic()", None),
    (tidy.wall_clocks, "store/engine/clock.py", "import time\nx = time.time_ns()", None),
    (tidy.wall_clocks, "agent/a.py", "import time\nx = time.time()", None),
    (tidy.async_in_core, "service/a.py", "x = 1\n\nasync def f(): ...", 3),
    (tidy.async_in_core, "server/a.py", "async def f(): ...", None),
    (tidy.prints, "server/http/a.py", "print(1)", 1),
    (tidy.prints, "server/commands/command.py", "print(1)", None),
    (tidy.prints, "cli/a.py", "print(1)", None),
    (tidy.environment_reads, "agent/loop.py", "import os\nx = os.environ['A']", 2),
    (tidy.environment_reads, "service/a.py", "from os import getenv", 1),
    (tidy.environment_reads, "cli/deep/a.py", "import os\nx = os.environ['A']", None),
    (tidy.untyped_dictionaries, "service/a.py", "x = 1\ny: dict[str, Any] = {}", 2),
    (tidy.untyped_dictionaries, "service/a.py", "y: dict[str, object] = {}", None),
    (tidy.untyped_dictionaries, "agent/a.py", "y: dict[str, Any] = {}", None),
    (tidy.catch_alls, "service/a.py", "try:\n    f()\nexcept Exception:\n    pass", 3),
    (tidy.catch_alls, "service/a.py", "try:\n    f()\nexcept:\n    pass", 3),
    (tidy.catch_alls, "service/a.py", "try:\n    f()\nexcept (OSError, BaseException):\n    pass", 3),
    (tidy.catch_alls, "service/a.py", "try:\n    f()\nexcept BaseException:\n    g()\n    raise", None),
    (tidy.catch_alls, "service/a.py", "try:\n    f()\nexcept OSError:\n    pass", None),
    (tidy.catch_alls, "agent/loop/loop.py", "try:\n    f()\nexcept Exception:\n    pass", None),
    (tidy.long_files, "model/a.py", "x = 1\n" * 601, 601),
    (tidy.long_files, "model/a.py", "x = 1\n" * 600, None),
    (tidy.long_functions, "model/a.py", "def f():\n" + "    x = 1\n" * 70, 1),
    (tidy.long_functions, "model/a.py", "def f():\n" + "    x = 1\n" * 69, None),
    (tidy.long_functions, "model/a.py", "def f():\n    '''a\n\n    b'''\n" + "    x = 1\n" * 69, None),
]


@pytest.mark.parametrize(("rule", "place", "text", "line"), FOUND)
def test_rule(rule: Rule, place: str, text: str, line: int | None) -> None:
    findings = list(rule(Source.parse(f"src/switchyard/{place}", text)))
    assert [finding.line for finding in findings] == ([] if line is None else [line])
    assert all(str(finding).startswith(f"src/switchyard/{place}:{line}: ") for finding in findings)


def test_rule_repeated_classes() -> None:
    texts = {"a": "class Name: ...\nclass _Own: ...", "b": "x = 1\nclass Name: ...\nclass _Own: ..."}
    parsed = [Source.parse(f"src/switchyard/model/{name}.py", text) for name, text in texts.items()]
    assert [(finding.file[-4:], finding.line) for finding in tidy.repeated_classes(parsed)] == [
        ("a.py", 1),
        ("b.py", 2),
    ]


def test_rule_unknown_files() -> None:
    source = Source.parse("src/switchyard/model/a.py", '"""See route/b.py."""\nx = 1  # as c.py does\n')
    assert [finding.line for finding in tidy.unknown_files(source, ["src/switchyard/route/b.py"])] == [2]
    assert not list(tidy.unknown_files(source, ["src/switchyard/route/b.py", "src/switchyard/model/c.py"]))


def test_rule_unused_modules() -> None:
    package = [
        Source.parse(f"src/switchyard/{place}", text)
        for place, text in {
            "__init__.py": "",
            "main.py": "PATHS = {'ls': 'switchyard.cli.ls', 'db': 'switchyard.server.db:main'}",
            "cli/__init__.py": "",
            "cli/ls.py": "from switchyard.cli import table\nfrom . import rows",
            "cli/table.py": "",
            "cli/rows.py": "from .cells import a",
            "cli/cells.py": "from switchyard.cli.cells import itself",
            "cli/lonely.py": "import switchyard.cli.lonely",
            "cli/named.py": "",
            "server/db.py": "",
            "store/migrations/versions/0001_first.py": "",
        }.items()
    ]
    findings = list(tidy.unused_modules(package, ["x = 'switchyard.cli.named:Named'"]))
    assert [finding.file for finding in findings] == ["src/switchyard/cli/lonely.py"]


def test_rule_import_cycles() -> None:
    texts = {
        "model/a.py": "from switchyard.model import b",
        "model/b.py": "def f():\n    from switchyard.model.c import name",
        "model/c.py": "if TYPE_CHECKING:\n    from switchyard.model.a import Name",
        "model/__init__.py": "",
    }
    package = [Source.parse(f"src/switchyard/{place}", text) for place, text in texts.items()]
    assert len(list(tidy.import_cycles(package))) == 1
    assert not list(tidy.import_cycles([source for source in package if source.place != "model/c.py"]))


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("README.md", "a\nsee /" + "work/main", 2),
        ("README.md", "see docs/" + "work/main.md and ~/" + "work/x", None),
        ("constraints.txt", "--index" + "-url https://x", 1),
        ("Makefile", "https://pypi" + ".org/simple", 1),
        ("src/switchyard/a.py", "# as issue" + " 12 says", 1),
        ("docs/a.md", "the 3 issues of 12 jobs", None),
    ],
)
def test_rule_bad_text(file: str, text: str, line: int | None) -> None:
    assert [finding.line for finding in tidy.bad_text(file, text)] == ([] if line is None else [line])


def test_rule_bad_names() -> None:
    assert list(tidy.bad_names("src/switchyard/sdk/job_utils.py"))
    assert list(tidy.bad_names("src/switchyard/common/job.py"))
    assert not list(tidy.bad_names("src/switchyard/service/upkeep/round.py"))
