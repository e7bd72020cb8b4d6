"""The documents: every command they show exists with its options, every link leads somewhere."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest

from switchyard.main import main as yard

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^ *(`{3,}|~{3,})(.*)$")
LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
INLINE_CODE = re.compile(r"`+[^`]*`+")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
TARGET = re.compile(r"^([a-z][a-z-]*):(?!=)", re.MULTILINE)
# An option in a help text, and the name of its value if it takes one.
OPTION = re.compile(r"(?<![\w-])(--?[a-zA-Z][\w-]*)(?:[ =]([A-Z{\[][^\s,\]]*))?")
PLACES = ("src/switchyard", ".")  # of what the rows of the founding documents name
STOPS = {"|", "||", "&&", ";", ">", ">>", "<", "&", "2>&1"}


@dataclass(frozen=True)
class Shown:
    """A command as a document shows it."""

    where: str
    words: tuple[str, ...]


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def shown_commands(text: str, file: str) -> Iterator[Shown]:
    """Lines that begin with `$` in fenced blocks, continued lines joined, up to the first pipe or redirection."""
    for number, block, line in _lines(text):
        if block is None or not line.startswith("$ "):
            continue
        words = shlex.split(line[2:], comments=True)
        end = next((place for place, word in enumerate(words) if word in STOPS), len(words))
        yield Shown(f"{file}:{number}", tuple(words[:end]))


def _lines(text: str) -> Iterator[tuple[int, str | None, str]]:
    """Number, language of the fenced block (none: outside any), and text of each line; `\\` at the end joins."""
    fence = block = None
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        marks = FENCE.match(line)
        if marks and (fence is None or (marks[1].startswith(fence) and not marks[2].strip())):
            fence, block = (marks[1], marks[2].strip()) if fence is None else (None, None)
            continue
        first = first if joined else number
        if block is not None and line.endswith("\\"):
            joined += line[:-1]
            continue
        yield first, block, joined + (line.lstrip() if joined else line)
        joined = ""


@lru_cache(maxsize=256)
def help_of(*words: str) -> str | None:
    """The help of a command; none: there is no such command. In this process: a hundred starts would take a minute."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        code = yard([*words, "--help"])
    return said.getvalue() if code == 0 else None


def wrong_with(words: tuple[str, ...]) -> str:
    """What is wrong with `yard …`; empty: nothing."""
    if not words or words[0].startswith("-"):
        return ""
    text = help_of(words[0])
    if text is None:
        return f"there is no `yard {words[0]}`"
    rest = words[1:]
    if rest and re.fullmatch(r"[a-z][a-z-]*", rest[0]):
        verb = help_of(words[0], rest[0])
        if verb is not None and re.search(rf"^usage: yard {words[0]} {rest[0]}\b", verb):
            return wrong_options(rest[1:], verb)
        if re.search(r"^usage: .*(\bVERB\b|\{)", text):
            return f"there is no `yard {words[0]} {rest[0]}`"
    return wrong_options(rest, text)


def wrong_options(words: tuple[str, ...], text: str) -> str:
    """Options that the help does not have. What follows `--`, or the first word of a job's command, is the job's."""
    takes_value: dict[str, bool] = {}
    for option, value in OPTION.findall(text):
        takes_value[option] = takes_value.get(option, False) or bool(value)
    runs_command = "..." in text.partition("\n\n")[0]
    rest = list(words)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        if word.startswith("-") and word != "-":
            name, sign, _ = word.partition("=")
            if name not in takes_value:
                return f"there is no option {name}"
            if takes_value[name] and not sign and rest:
                rest.pop(0)
        elif runs_command:
            break
    return ""


def test_every_command_shown_exists() -> None:
    targets = set(TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
    wrong: list[str] = []
    for document in documents():
        for shown in shown_commands(document.read_text(encoding="utf-8"), document.relative_to(ROOT).as_posix()):
            program, words = Path(shown.words[0]).name if shown.words else "", shown.words[1:]
            if program == "make":
                asked = {word for word in words if "=" not in word and not word.startswith("-")}
                wrong += [f"{shown.where}: there is no `make {target}`" for target in sorted(asked - targets)]
            elif program == "yard" and (what := wrong_with(words)):
                wrong.append(f"{shown.where}: yard {' '.join(words)}: {what}")
    assert not wrong, "\n".join(["", *wrong])


def test_the_rows_of_the_founding_documents_name_files_and_tests_that_exist() -> None:
    text = (ROOT / "docs/explanation/founding-documents.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [A-D]\d+ \|.*\|$", text, re.MULTILINE)
    assert len(rows) > 160
    assert not list(filter(None, map(wrong_row, rows)))


def wrong_row(row: str) -> str:
    """What is wrong with a row of a table `| number | asked | where | test | state |`; empty: nothing."""
    cells = [cell.strip() for cell in row.strip("|").split(" | ")]
    if len(cells) != 5 or not cells[4].startswith(("done", "otherwise: ", "open: ")):
        return f"{row}: five cells, the last one done, otherwise or open"
    where, test = cells[2].strip("`"), cells[3].strip("`")
    words = where.split()
    if not (words[0] == "yard" and help_of(words[1])) and not any((ROOT / at / where).is_file() for at in PLACES):
        return f"{cells[0]}: there is no {where}"
    file, _, name = test.partition("::")
    path = ROOT / "tests" / file
    if not path.is_file() or (name and f"def {name}(" not in path.read_text(encoding="utf-8")):
        return f"{cells[0]}: there is no {test}"
    return ""


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("| A1 | a | `main.py` | `test_docs.py` | done |", ""),
        ("| A1 | a | `yard ls` | `test_docs.py::wrong_row` | open: b |", ""),
        ("| A1 | a | `mein.py` | `test_docs.py` | done |", "there is no mein.py"),
        ("| A1 | a | `yard sl` | `test_docs.py` | done |", "there is no yard sl"),
        ("| A1 | a | `main.py` | `test_dogs.py` | done |", "there is no test_dogs.py"),
        ("| A1 | a | `main.py` | `test_docs.py::wrong_line` | done |", "there is no test_docs.py::wrong_line"),
        ("| A1 | a | `main.py` | `test_docs.py` | soon |", "five cells"),
        ("| A1 | a | `main.py` | done |", "five cells"),
    ],
)
def test_a_row_that_is_wrong_is_told(row: str, what: str) -> None:
    assert what in wrong_row(row)
    assert bool(what) == bool(wrong_row(row))


def test_every_link_leads_somewhere() -> None:
    broken: list[str] = []
    for document in documents():
        for number, block, line in _lines(document.read_text(encoding="utf-8")):
            if block is not None:
                continue
            for target in LINK.findall(INLINE_CODE.sub("", line)):
                if what := broken_link(document, target):
                    broken.append(f"{document.relative_to(ROOT).as_posix()}:{number}: {what}")
    assert not broken, "\n".join(["", *broken])


def broken_link(document: Path, target: str) -> str:
    if re.match(r"[a-z][a-z+.-]*:", target):
        return ""  # the web: not ours to check, and the tests need no network
    place, _, anchor = target.partition("#")
    path = (document.parent / place).resolve() if place else document
    if not path.exists() or not path.is_relative_to(ROOT):
        return f"{target}: no such file"
    if anchor and path.suffix == ".md" and anchor not in anchors(path.read_text(encoding="utf-8")):
        return f"{target}: no such heading"
    return ""


def anchors(text: str) -> set[str]:
    """What the headings of a page are called in links, as the usual forges make them."""
    names: set[str] = set()
    for _, block, line in _lines(text):
        if block is None and (heading := HEADING.match(line)):
            plain = LINK.sub(lambda link: link[0].split("]")[0].lstrip("!["), heading[1])
            slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
            number = 1
            name = slug
            while name in names:
                name, number = f"{slug}-{number}", number + 1
            names.add(name)
    return names


def test_reference_pages_are_as_the_code_has_them() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "reference.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_make_help_lists_every_target_people_use() -> None:
    said = subprocess.run(["make", "-C", str(ROOT), "help"], capture_output=True, text=True, timeout=60, check=True)
    for target in ("install", "test-install", "demo", "test", "check", "fast", "bench", "soak", "clean", "help"):
        assert re.search(rf"^  {target} +\w", said.stdout, re.MULTILINE), target


# --- the readers themselves ---

PAGE = """
# The page: a [link](x.md), `code`

```console
$ yard submit --cores 2 \\
    -- hostname --fqdn   # a comment
alpha
$ make test | tail -1
```
$ not in a block
"""
HELP = """usage: yard submit [-h] [--cores N] COMMAND ...

options:
  -h, --help
  -c N, --cores N  cores of each task
  --wait           wait for the end
"""


def test_reader_of_commands() -> None:
    assert [(shown.where, *shown.words) for shown in shown_commands(PAGE, "a.md")] == [
        ("a.md:5", "yard", "submit", "--cores", "2", "--", "hostname", "--fqdn"),
        ("a.md:8", "make", "test"),
    ]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("--cores 2 --wait hostname --fqdn", ""),
        ("--cores=2 -- --what", ""),
        ("-c 2 --wait", ""),
        ("--core 2 hostname", "there is no option --core"),
        ("--wait -x", "there is no option -x"),
    ],
)
def test_reader_of_options(line: str, wrong: str) -> None:
    assert wrong_options(tuple(line.split()), HELP) == wrong


def test_reader_of_anchors() -> None:
    text = "# The rooms, and §7\n## Rooms\n## Rooms\n```\n# no\n```"
    assert anchors(text) == {"the-rooms-and-7", "rooms", "rooms-1"}


ADMIN_ENDPOINT = re.compile(r"^>? *admin:\n>? +endpoint: (\S+)$", re.MULTILINE)


def test_endpoints_for_flytes_clients_are_of_the_form_that_all_of_them_read() -> None:
    """flytectl reads the endpoint as a URL: a bare `host:port` is none, and after two slashes comes a DNS server."""
    endpoints_by_file = {file: ADMIN_ENDPOINT.findall(file.read_text(encoding="utf-8")) for file in documents()}
    assert endpoints_by_file[ROOT / "docs" / "how-to" / "use-flyte-clients.md"]
    for file, endpoints in endpoints_by_file.items():
        for endpoint in endpoints:
            assert re.fullmatch(r"dns:///[^/\s]+:\d+", endpoint), f"{file.relative_to(ROOT)}: {endpoint}"


def test_every_test_that_the_threats_name_exists() -> None:
    text = (ROOT / "docs/explanation/threats.md").read_text(encoding="utf-8")
    last, missing = "", []
    for file, name in re.findall(r"`(…|[\w/]+\.py)(?:::(test_\w+))?`", text):
        last = last if file == "…" else file
        files = [path for path in (ROOT / "tests").rglob(Path(last).name) if str(path).endswith(last)]
        if not any(f"def {name}(" in path.read_text(encoding="utf-8") for path in files) if name else not files:
            missing.append(f"{last}::{name}")
    assert not missing
