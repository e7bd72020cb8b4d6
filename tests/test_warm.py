"""No type is decoded for the first time by two threads at once: msgspec would end the process."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

import switchyard
from switchyard.decoder_warmup import is_type_warm, warm_loaded_types

ROOT = Path(switchyard.__file__).parent
SOURCES = sorted(path for path in ROOT.rglob("*.py") if "migrations" not in path.parts)
DECODERS = ("decode", "convert", "Decoder", "JsonReader", "decode_json")  # what msgspec and model/wire/decode.py offer
# Where the type is handed in: built by `warm_type` before the call, or a Struct of a module that is loaded at the
# start.
PASSED_ON = {
    "agent/backends/shared/cluster_facts.py",  # Structs of Slurm's and Flux's modules
    "agent/backends/shared/submissions.py",
    "features/kubernetes/agent/api/api.py",  # Structs of the backend, built before its watches start
    "features/kubernetes/agent/api/watcher.py",
    "agent/files/object_client.py",
    "features/kubernetes/agent/namespaces/cluster_resources.py",
    "model/wire/decode.py",
    "server/config/section_checks.py",  # sections of the config, read before any thread starts
    "model/wire/decode_pieces.py",  # readers that are made as their modules are loaded
    "decoder_warmup.py",
    "policy/kinds/kind.py",  # kind.value, which the server names at its start
    "features/images/model/manifests.py",  # Structs of that module, which the server loads at its start
    "policy/kinds/workflow_execution_config.py",  # Structs of that module
    "sdk/transport/calls.py",
    "sdk/files/oci.py",
    "server/config/config.py",  # read before any thread
    "server/http/endpoint_route.py",
    "service/core/snapshots/layout_snapshot.py",
}

STORM = """
import sys, threading
import msgspec
from switchyard import decoder_warmup
{prepare}
sys.setswitchinterval(1e-6)
kinds = [kind for kind in decoder_warmup._built if isinstance(kind, type) and kind.__module__.startswith("switchyard")]
assert len(kinds) > {least}
names = [{{field.encode_name: {{}} for field in msgspec.structs.fields(kind)}} for kind in kinds]
barrier = threading.Barrier(8)
def work():
    for kind, fields in zip(kinds, names):
        barrier.wait()
        try:
            msgspec.convert(fields, kind)
        except (msgspec.ValidationError, TypeError):
            pass
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def named(path: Path) -> str:
    return ".".join(["switchyard", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")


def nodes_of(path: Path, words: Iterable[str]) -> Iterator[ast.AST]:
    """The syntax tree of a file, or nothing if none of these words is in its text: most files are not parsed then."""
    text = path.read_text(encoding="utf-8")
    return ast.walk(ast.parse(text)) if any(word in text for word in words) else iter(())


def kinds_decoded(path: Path) -> Iterator[ast.expr]:
    """The type of each call that decodes or converts."""
    for node in nodes_of(path, DECODERS):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = {word.arg: word.value for word in node.keywords}
        if name in DECODERS and "type" in given:
            yield given["type"]
        elif name in ("convert", "decode_json") and len(node.args) > 1:
            yield node.args[1]
        elif name in ("Decoder", "JsonReader") and node.args:
            yield node.args[0]


def structs_in(kind: object) -> Iterator[object]:
    """What msgspec keeps something for: Struct classes and the forms of generic ones."""
    origin = typing.get_origin(kind)
    if isinstance(origin or kind, type) and issubclass(origin or kind, msgspec.Struct):  # type: ignore[arg-type]
        yield kind
    for part in typing.get_args(kind):
        if not isinstance(part, str):
            yield from structs_in(part)


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_each_type_that_is_decoded_is_built_before_threads_start(path: Path) -> None:
    kinds = list(kinds_decoded(path))
    if not kinds:
        return
    module = importlib.import_module(named(path))
    values: list[tuple[int, object]] = []
    for kind in kinds:
        try:
            values.append((kind.lineno, eval(ast.unparse(kind), vars(module))))  # the type as that module has it
        except NameError:
            assert str(path.relative_to(ROOT)) in PASSED_ON, f"{path}: {ast.unparse(kind)} is not known before the call"
    warm_loaded_types()
    for line, value in values:
        cold = [struct for struct in structs_in(value) if not is_type_warm(struct)]
        assert not cold, f"{path}:{line}: name these for warm_loaded_types: {cold}"


@pytest.mark.parametrize("path", [path for path in SOURCES if path.parts[len(ROOT.parts)] in ("sdk", "cli")], ids=named)
def test_sdk_and_cli_build_a_type_before_they_decode_it(path: Path) -> None:
    """They are called from other people's threads, and have no start of their own."""
    for node in nodes_of(path, ("decode", "convert")):
        if isinstance(node, ast.FunctionDef):
            calls = [ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)]
            if {"msgspec.json.decode", "msgspec.convert", "msgspec.msgpack.decode"} & set(calls):
                assert "warm_type" in calls, f"{path}:{node.lineno}: call warm_type(kind) before decoding"


@pytest.mark.parametrize(
    ("entry", "rooms"),
    [
        ("switchyard.server.app", ("model", "policy", "match", "route", "tokens", "store", "service", "server")),
        ("switchyard.agent.command", ("agent",)),
    ],
)
def test_no_type_of_a_program_is_loaded_after_its_threads_have_started(entry: str, rooms: tuple[str, ...]) -> None:
    """Backends are loaded before the agent's loop starts; a doctor has no loop."""
    defines = [
        named(path)
        for path in SOURCES
        if path.relative_to(ROOT).parts[0] in rooms
        and any(
            isinstance(node, ast.ClassDef) and any("Struct" in ast.unparse(base) for base in node.bases)
            for node in nodes_of(path, ["Struct"])
        )
    ]
    late = ("switchyard.agent.backends.", "switchyard.agent.feature")
    code = f"import sys, {entry}; print(*(name for name in {defines!r} if name not in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [name for name in done.stdout.split() if not name.startswith(late)] == []


@pytest.mark.parametrize(
    ("entry", "least"),
    [("switchyard.server.app", 100), ("switchyard.agent.command", 20), ("switchyard.sdk.client", 20)],
)
def test_threads_that_first_decode_together_end_no_process(entry: str, least: int) -> None:
    """All that can be decoded. What msgspec cannot decode at all it tries to build each time, and nobody decodes it."""
    code = STORM.format(prepare=f"import {entry}; decoder_warmup.warm_loaded_types()", least=least)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_sdk_may_be_called_first_by_many_threads_at_once() -> None:
    code = """
import sys, threading
import switchyard.sdk.client
from switchyard.model.wire.api import Page
from switchyard.model.job.job import Job
from switchyard.sdk.transport.calls import ApiCalls
from switchyard.sdk.transport.transport import read_problem
sys.setswitchinterval(1e-6)
job = b'{"id":"a","name":"n","owner":"o","project":"p","domain":"d","state":"RUNNING",'
job += b'"attempt":1,"fence":1,"created_us":1}'
page = b'{"items":[' + job + b']}'
barrier = threading.Barrier(8)
failed = []
def work():
    barrier.wait()
    try:
        assert ApiCalls()._answer(page, Page[Job]).items[0].id == "a"
        read_problem(404, b'{"code": "not-found", "title": "t", "status": 404, "detail": "d", "type": "t"}', url="u")
    except Exception as exc:
        failed.append(exc)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failed, failed
"""
    for _ in range(10):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
