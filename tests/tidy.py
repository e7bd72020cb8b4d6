"""The rules of tidiness, each a function from one source to what it found there. Knows syntax, nothing of meaning.

The lists of exceptions stand at the top, each with its reason: a new exception is a line that somebody reviews.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath

LINES_MAX = 600
FUNCTION_LINES_MAX = 70  # a screen
PACKAGE = PurePosixPath("src/switchyard")
FEATURE = re.compile(r"^features/\w+/")
PURE_ROOMS = ("model", "policy", "match", "workflow", "route")
SYNC_ROOMS = (*PURE_ROOMS, "service", "store", "storage")
SILENT_ROOMS = ("server", "service", "store", "storage")
BAD_WORDS = frozenset({"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc"})

# Where the environment is read: the doors a person or an operator comes through.
ENVIRONMENT_PLACES = (
    *("main.py", "cli/", "features/demo/cli/demo.py", "sdk/transport/config.py"),
    *("agent/command.py", "features/doctor/agent/doctor.py", "features/doctor/agent/discover.py"),
    *("server/config/settings.py", "server/commands/command.py", "server/commands/db_command.py"),
)
# Rooms that share stored times with other servers, and where the one wall clock is read.
CLOCKED_ROOMS = ("server", "service", "store", "tokens")
WALL_CLOCK_PLACES = (
    "store/engine/clock.py",
    "server/commands/backup.py",  # the name of a file
)
WALL_CLOCKS = frozenset({"time", "time_ns", "now", "utcnow", "today", "gmtime", "localtime"})
# Where any failure at all is caught: the top of a loop that must outlive every defect of what it runs.
CATCH_ALL_PLACES = (
    "server/loops/background_loops.py",
    "agent/loop/loop.py",
    "features/flux/agent/broker/connection.py",  # the thread that reads the bridge: a defect ends the bridge
    "agent/backends/shared/node_systems.py",  # the thread that asks nodes: a defect must not end it
    "features/kubernetes/agent/api/reflector.py",  # the thread of a watch: the next list puts right what a defect broke
    "features/kubernetes/agent/pods/logs.py",  # a thread that reads output of many jobs: one must not cost the others
    "server/http/connections/asgi_messages.py",  # the door's last resort: the client gets a problem, the log the place
    "server/grpc/grpc_intake.py",  # the same at the gRPC doors: gRPC itself would say UNKNOWN, to flytekit a bad token
    "features/functions/sdk/function_calls.py",  # unpickling calls classes of the user, which may raise anything
    "features/functions/sdk/function_runner.py",  # pickling calls methods of the user's values
    "service/core/writes/committer.py",  # the thread that writes: one bad Write must not cost the others in its batch
    "features/flyte/service/executions/driving/driver.py",  # a damaged execution must not cost the others
    "features/flyte/service/executions/driving/schedules.py",  # the loop over schedules: the same
)
# Where print is the work itself: commands that answer a person.
PRINT_PLACES = ("server/commands/command.py", "server/commands/db_command.py")
# Modules that are started or loaded by name and so imported by nobody.
STARTED_BY_NAME = (
    "main.py",  # the `yard` script
    "features/local/agent/supervisor.py",  # runs beside each local job, as a program
    "features/flux/agent/broker/bridge_program.py",  # runs in Flux's own Python, as a program
    "store/migrations/",  # Alembic loads these by path
)
# Functions that are one long list of statements, written once and never changed.
LISTS = ("store/migrations/versions/",)
DATABASE_MODULES = frozenset({"sqlalchemy", "alembic", "sqlite3", "psycopg"})
# The agent's own small file on its own disk; the server's store is another thing.
DATABASE_EXCEPTIONS = {
    "agent/journal/journal.py": frozenset({"sqlite3"}),
    "agent/journal/journal_rows.py": frozenset({"sqlite3"}),  # the tables of that journal
    "features/doctor/agent/doctor.py": frozenset({"sqlite3"}),  # looks at the journal without opening it as one
}

IMPURE_MODULES = frozenset(
    {"asyncio", "ctypes", "fcntl", "glob", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets"}
    | {"select", "selectors", "shutil", "signal", "socket", "ssl", "subprocess", "sys", "tempfile", "threading"}
    | {"time", "urllib", "uuid"}
)
IMPURE_CALLS = frozenset({"open", "input", "print", "exec", "eval"})
# Methods that read a clock or a generator, whoever they are called on: datetime.now(), date.today(), np.random.…
IMPURE_ATTRIBUTES = frozenset({"now", "utcnow", "today", "random", "environ", "getenv", "read_text", "write_text"})

SQL = re.compile(
    r"\s*(SELECT\s.+\sFROM\s|INSERT\s+(OR\s+\w+\s+)?INTO\s|UPDATE\s+\S+\s+SET\s|DELETE\s+FROM\s|WITH\s+\w+\s+AS\s*\("
    r"|(CREATE|ALTER|DROP)\s+(UNIQUE\s+)?(TABLE|INDEX|DATABASE|VIEW)\s|PRAGMA\s|BEGIN\s+(IMMEDIATE|EXCLUSIVE))",
    re.DOTALL,
)
# Files of users, in examples of docstrings.
EXAMPLE_FILES = frozenset({"train.py"})
FILE_NAME = re.compile(r"(?<![\w/.{}*])((?:\w+/)*\w+\.py)\b")
DOTTED = re.compile(r"(switchyard(?:\.\w+)+)(?::\w+)?")

# Written so that no pattern is found in this very file.
MACHINE_PATH = re.compile(r"(?<![\w.~}])/(?:work|root|Users/\w+)/")
REGISTRY = re.compile(r"pypi[.]org|python[h]osted|--(?:extra-)?index[-]url|PIP_(?:EXTRA_)?INDEX[_]URL|registry[.]npmjs")
ISSUE_NUMBER = re.compile(r"(?i)\b(?:issue|ticket|bug)s?[ -]?[#]?\d+\b")


@dataclass(frozen=True)
class Finding:
    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


@dataclass(frozen=True)
class Source:
    """One Python file: its path from the root of the project, its text, its syntax tree."""

    file: str
    text: str
    tree: ast.Module

    @classmethod
    def parse(cls, file: str, text: str) -> Source:
        return cls(file, text, ast.parse(text, filename=file))

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """The whole tree, parents before their children. To walk a tree takes as long as to parse it."""
        return tuple(ast.walk(self.tree))

    @property
    def place(self) -> str:
        """The path inside the package, e.g. `service/submit/submit.py`; empty: it is no part of it."""
        path = PurePosixPath(self.file)
        return str(path.relative_to(PACKAGE)) if path.is_relative_to(PACKAGE) else ""

    @property
    def module(self) -> str:
        """The dotted name, e.g. `switchyard.service.submit.submit`."""
        words = ["switchyard", *PurePosixPath(self.place).with_suffix("").parts]
        return ".".join(words[:-1] if words[-1] == "__init__" else words)

    def is_in(self, places: Iterable[str]) -> bool:
        """Whether it is one of these files, or under one of these folders (which end in `/`)."""
        return any(self.place == place or (place.endswith("/") and self.place.startswith(place)) for place in places)

    def is_in_room(self, rooms: Iterable[str]) -> bool:
        """Whether it is in one of these rooms, of the core or of a feature: `store/` or `features/flyte/store/`."""
        return FEATURE.sub("", self.place).startswith(tuple(f"{room}/" for room in rooms))

    def finding(self, node: ast.AST, what: str) -> Finding:
        return Finding(self.file, getattr(node, "lineno", 1), what)


def long_files(source: Source) -> Iterator[Finding]:
    lines = len(source.text.splitlines())
    if lines > LINES_MAX and not source.is_in(LISTS):
        yield Finding(source.file, LINES_MAX + 1, f"{lines} lines; at most {LINES_MAX}: split it by noun")


def repeated_classes(sources: Iterable[Source]) -> Iterator[Finding]:
    """Public classes with a name that another module of the package has given to a class of its own."""
    places: dict[str, list[Finding]] = {}
    for source in sources:
        if source.place:
            for node in source.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    message = f"there is another class {node.name}: give each its own name"
                    places.setdefault(node.name, []).append(Finding(source.file, node.lineno, message))
    for findings in places.values():
        if len(findings) > 1:
            yield from findings


def unknown_files(source: Source, known: Collection[str]) -> Iterator[Finding]:
    """Names of Python files in comments and docstrings that no file has. `known`: paths from the root."""
    texts = [(number, line) for number, line in enumerate(source.text.splitlines(), start=1) if "#" in line]
    texts = [(number, line.partition("#")[2]) for number, line in texts]
    for node in source.nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            texts.append((getattr(node, "lineno", 1), ast.get_docstring(node) or ""))
    for number, text in texts:
        for name in FILE_NAME.findall(text):
            if name not in EXAMPLE_FILES and not any(path == name or path.endswith(f"/{name}") for path in known):
                yield Finding(source.file, number, f"there is no file {name}")


def long_functions(source: Source) -> Iterator[Finding]:
    if source.is_in(LISTS):
        return
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body[0]
            signature = node.body[0].lineno - node.lineno
            lines = signature + (node.end_lineno or first.lineno) - first.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield source.finding(
                    node, f"{node.name} has {lines} lines without its docstring; at most {FUNCTION_LINES_MAX}"
                )


def missing_docstrings(source: Source) -> Iterator[Finding]:
    if ast.get_docstring(source.tree) is None:
        yield Finding(source.file, 1, "no docstring: say in a line what this is for and what it must not know")


def sql_outside_store(source: Source) -> Iterator[Finding]:
    if source.is_in_room(["store"]):
        return
    allowed = DATABASE_EXCEPTIONS.get(source.place, frozenset())
    for line, module in imports(source):
        if (top := module.split(".")[0]) in DATABASE_MODULES - allowed:
            yield Finding(source.file, line, f"imports {top}: only store/ speaks to the database")
    if allowed:
        return
    for line, text in _strings(source):
        if SQL.match(text):
            yield Finding(source.file, line, f"SQL outside store/: {text.strip()[:40]!r}")


def impurity(source: Source) -> Iterator[Finding]:
    """A clock, randomness, files or the environment in the pure rooms, which get such things as arguments."""
    if not source.is_in_room(PURE_ROOMS):
        return
    for line, module in imports(source):
        if module.split(".")[0] in IMPURE_MODULES:
            yield Finding(source.file, line, f"imports {module} in a pure room: take the value as an argument")
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            yield source.finding(node, f"{node.func.id}() in a pure room")
        if isinstance(node, ast.Attribute) and node.attr in IMPURE_ATTRIBUTES and not _is_own(node):
            yield source.finding(node, f".{node.attr} in a pure room: take the value as an argument")


def wall_clocks(source: Source) -> Iterator[Finding]:
    """A machine's wall clock in the server, where times are the database's: another server's clock may differ."""
    if not source.is_in_room(CLOCKED_ROOMS) or source.is_in(WALL_CLOCK_PLACES):
        return
    for node in source.nodes:
        names: list[str] = []
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            names = [node.attr] if owner in ("time", "datetime", "date") else []
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            names = [name.name for name in node.names]
        for name in set(names) & WALL_CLOCKS:
            yield source.finding(node, f"{name} reads a wall clock: take the context's now_us, or its steady_us")


def async_in_core(source: Source) -> Iterator[Finding]:
    if not source.is_in_room(SYNC_ROOMS):
        return
    for node in source.nodes:
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield source.finding(node, "async in the sync core: only the edge waits on the loop")


def prints(source: Source) -> Iterator[Finding]:
    if not source.is_in_room(SILENT_ROOMS) or source.is_in(PRINT_PLACES):
        return
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield source.finding(node, "print() in the server: write a log line with key=value")


def environment_reads(source: Source) -> Iterator[Finding]:
    if not source.place or source.is_in(ENVIRONMENT_PLACES):
        return
    for node in source.nodes:
        names: list[str] = []
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            names = [name.name for name in node.names]
        for name in set(names) & {"environ", "environb", "getenv"}:
            yield source.finding(node, f"os.{name}: settings are read once, at the door, and passed down")


def untyped_dictionaries(source: Source) -> Iterator[Finding]:
    """`dict[str, Any]` in the services: rows and changes of rows have types."""
    if not source.is_in_room({"service"}):
        return
    for node in source.nodes:
        if isinstance(node, ast.Subscript) and ast.unparse(node) == "dict[str, Any]":
            yield source.finding(node, "dict[str, Any]: take a row type of the store, or a type of your own")


def catch_alls(source: Source) -> Iterator[Finding]:
    """`except Exception` outside the tops of loops. Cleaning up and raising again catches nothing, and is fine."""
    if not source.place or source.is_in(CATCH_ALL_PLACES):
        return
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler) and _catches_all(node) and not _raises_again(node):
            yield source.finding(node, "catches everything: name the errors, or let the loop's top have it")


def bad_names(file: str) -> Iterator[Finding]:
    """Works on paths: file and folder names that do not say what they hold."""
    for part in PurePosixPath(file).with_suffix("").parts:
        for word in BAD_WORDS & set(re.split(r"[_\-.]", part.lower())):
            yield Finding(file, 1, f"{word!r} in a name says nothing: name what it holds")


def bad_text(file: str, text: str) -> Iterator[Finding]:
    """Works on any text file: this machine's paths, and addresses of package registries."""
    for number, line in enumerate(text.splitlines(), start=1):
        if match := MACHINE_PATH.search(line):
            yield Finding(file, number, f"a path of one machine: {match[0]}")
        if match := REGISTRY.search(line):
            yield Finding(file, number, f"the address of a registry: {match[0]}; pip's own settings say where")
        if file.startswith(("src/", "bench/")) and (match := ISSUE_NUMBER.search(line)):
            yield Finding(file, number, f"{match[0]!r}: the reason belongs here, its number into the commit")


def unused_modules(sources: Iterable[Source], texts: Iterable[str]) -> Iterator[Finding]:
    """Modules that no other module imports or names, and no text (entry points) names."""
    package = [source for source in sources if source.place]
    used: set[str] = {match[1] for text in texts for match in DOTTED.finditer(text)}
    for source in package:
        used |= {name for name in _names_used(source) if name != source.module}
    for source in package:
        if source.place.endswith("__init__.py") or source.is_in(STARTED_BY_NAME):
            continue
        if source.module not in used:
            yield Finding(source.file, 1, "nothing imports this: use it or remove it")


def import_cycles(sources: Iterable[Source]) -> Iterator[Finding]:
    """One cycle of imports between modules, if there is any. Imports for types and inside functions count, too."""
    package = {source.module: source for source in sources if source.place}
    graph = {module: set(_modules_imported(source, package)) for module, source in package.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as exc:
        cycle: list[str] = exc.args[1][::-1]
        yield Finding(package[cycle[0]].file, 1, f"imports itself: {' → '.join(cycle)}")


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """Every import's line and module, at any depth."""
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module


def _modules_imported(source: Source, package: Collection[str]) -> Iterator[str]:
    for module, name in _names_imported(source):
        target = f"{module}.{name}" if f"{module}.{name}" in package else module
        if target in package and target != source.module:
            yield target


def _names_used(source: Source) -> Iterator[str]:
    for module, name in _names_imported(source):
        yield module
        yield f"{module}.{name}"
    # `main` names commands, and programs are started with `-m`: a dotted path that is a whole text is a use.
    yield from (named[1] for _, text in _strings(source) if (named := DOTTED.fullmatch(text)))


def _names_imported(source: Source) -> Iterator[tuple[str, str]]:
    """Every imported module with the imported name, at any depth; the name is empty in `import module`."""
    parts = source.module.split(".")
    package = parts if source.place.endswith("__init__.py") else parts[:-1]
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from ((name.name, "") for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((base, name.name) for name in node.names)


def _strings(source: Source) -> Iterator[tuple[int, str]]:
    """Every text with its line, but no docstring; what is filled in at run time stands as `x`."""
    inside: set[ast.AST] = set()
    for node in source.nodes:
        if isinstance(node, ast.Expr):
            inside.add(node.value)  # a text that stands alone is a docstring
        elif isinstance(node, ast.JoinedStr) and node not in inside:
            inside.update(node.values)
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield node.lineno, node.value


def _is_own(node: ast.Attribute) -> bool:
    """`world.now` or `self.random` is a value that was handed in; the modules and classes of the library are not."""
    owner = node.value
    names = ("datetime", "date", "np", "numpy", "os", "time", "Path")
    return not (
        (isinstance(owner, ast.Name) and owner.id in names)
        or (isinstance(owner, ast.Attribute) and owner.attr in names)
        or node.attr in ("read_text", "write_text")
    )


def _catches_all(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException") for kind in kinds)


def _raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None
