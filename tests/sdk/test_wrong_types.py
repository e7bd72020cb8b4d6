"""Arguments of wrong types: the SDK refuses them with an error of its own, before it calls the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard import Client
from switchyard.errors import BadRequest, YardError

CASES: dict[str, tuple[Callable[[Any], object], str]] = {
    "files: a number": (lambda yard: yard.submit(["x"], files=5), "`files` takes a mapping"),
    "files: a list of numbers": (lambda yard: yard.submit(["x"], files=[5]), "expected a path, not int"),
    "files: a number as content": (lambda yard: yard.submit(["x"], files={"a": 5}), "a path, or the bytes of a file"),
    "files: a number as name": (lambda yard: yard.submit(["x"], files={5: "a"}), "is a text, not int"),
    "workdir": (lambda yard: yard.submit(["x"], workdir=5), "`workdir` takes a folder"),
    "out: a number": (lambda yard: yard.submit(["x"], out=5), "`out` takes a list"),
    "out: a list of numbers": (lambda yard: yard.submit(["x"], out=[5]), "`out` takes a list"),
    "a number as command": (lambda yard: yard.submit(5), "expected a command, not int"),
    "a function as command": (lambda yard: yard.submit(print), "expected a command"),
    "bytes as command": (lambda yard: yard.submit(b"x"), "expected a command, not bytes"),
    "env": (lambda yard: yard.submit(["x"], env=5), "env: expected a mapping"),
    "a value that cannot be sent": (lambda yard: yard.submit(["x"], name=object()), "name: a value of the type object"),
    "after": (lambda yard: yard.submit(["x"], after=[5]), "after: expected ids"),
    "key": (lambda yard: yard.submit(["x"], key=5), "The idempotency key"),
    "many: a number": (lambda yard: yard.submit_many(5), "Expected a list of jobs"),
    "many: a text": (lambda yard: yard.submit_many("true"), "Expected a list of jobs"),
    "many: batch": (lambda yard: yard.submit_many([["x"]], batch="x"), "A batch has 1 to"),
    "run: a number": (lambda yard: yard.run(5), "Expected a function, not int"),
    "run: a text": (lambda yard: yard.run("print()"), "Expected a function, not str"),
    "function: out": (lambda yard: yard.function(print, out="x")(), "`out` takes a list"),
    "upload": (lambda yard: yard.upload(5), "`files` takes a mapping"),
    "fetch: a number as job": (lambda yard: yard.fetch(5), "Expected a name or an id"),
    "fetch: a number as pattern": (lambda yard: yard.fetch("x", 5), "`pattern` takes"),
    "job": (lambda yard: yard.job(5), "Expected a name or an id"),
    "cancel: tasks": (lambda yard: yard.cancel("x", tasks=5), "Expected `str"),
    "task": (lambda yard: yard.task("x", "1"), "Expected the index of a task"),
    "wait": (lambda yard: yard.wait("x", timeout_s="1"), "`timeout_s` takes a number"),
    "jobs: state": (lambda yard: list(yard.jobs(state=5)), "`state` takes"),
    "jobs: labels": (lambda yard: list(yard.jobs(labels=["a"])), "`labels` takes"),
    "a client of a number": (lambda _: Client(5), "The URL of a server is a text"),  # type: ignore[arg-type]
}


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("YARD_CONFIG", str(tmp_path / "yard.yaml"))
    with Client("http://127.0.0.1:9", retry_s=0) as client:
        yield client


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_type_is_refused_with_what_was_expected(yard: Client, case: str) -> None:
    call, expected = CASES[case]
    with pytest.raises(YardError) as caught:
        call(yard)
    assert isinstance(caught.value, BadRequest)
    assert expected in caught.value.detail
