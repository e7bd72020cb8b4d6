"""Attempts of tasks: their command lines and environments, and what their ends and files mean."""

from __future__ import annotations

import os
import subprocess
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flyteidl.core import errors_pb2, execution_pb2, literals_pb2, tasks_pb2

from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind
from switchyard.features.flyte.workflow.engine.attempt_result import JobEnd, judge_attempt
from switchyard.features.flyte.workflow.tasks.task_command import (
    FILES,
    AttemptNames,
    CommandFailed,
    bundle_addresses,
    task_command,
    task_environment,
)
from tests.workflow.engine_runs import DEEPEST, literals, nested

GARBAGE = {
    "no opcode": b"\xc1",
    "cut off": b"\x92\x01",
    "too deep": b"\x91" * 5000 + b"\x01",
    "no text": b"\xa1\xff",
    "no type of JSON": b"\xd4\x05\x00",
    "no key of JSON": b"\x81\x91\x01\x01",
}
NAMES = AttemptNames("p", "d", "e1", "mod.wf", "mod.wf", "n0", 2, EntityId(EntityKind.TASK, "p", "d", "mod.add", "v1"))
BUNDLE = "switchyard://p/d/ROOT/fast.tar.gz"
ARGS = (
    *("pyflyte-fast-execute", "--additional-distribution", BUNDLE, "--dest-dir", "/root", "--"),
    *("pyflyte-execute", "--inputs", "{{.input}}", "--output-prefix", "{{ .outputPrefix }}"),
    *("--raw-output-data-prefix", "{{.rawOutputDataPrefix}}", "--checkpoint-path", "{{.checkpointOutputPrefix}}"),
    *("--prev-checkpoint", "{{.prevCheckpointPrefix}}", "--resolver", "r", "--", "task-module", "mod"),
)


def words(*args: str, **values: Any) -> list[str]:
    """A command without the shell in front."""
    return task_command(tasks_pb2.Container(args=args), NAMES, literals(**values), {BUNDLE: "flyte-io/fast.tar.gz"})[4:]


def test_the_arguments_of_flytekit_name_files_of_the_job() -> None:
    io = f"{FILES}/flyte-io"
    assert words(*ARGS) == [
        *("pyflyte-fast-execute", "--additional-distribution", f"{io}/fast.tar.gz", "--dest-dir", FILES, "--"),
        *("pyflyte-execute", "--inputs", f"{io}/inputs.pb", "--output-prefix", f"{io}/out"),
        *("--raw-output-data-prefix", f"{io}/raw", "--checkpoint-path", f"{io}/checkpoint"),
        *("--prev-checkpoint", '""', "--resolver", "r", "--", "task-module", "mod"),
    ]
    assert bundle_addresses(tasks_pb2.Container(args=ARGS)) == [BUNDLE]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{.inputs.n}} of {{ .Inputs.word }}", "3 of a b"),
        ("{{.perRetryUniqueKey}}", "e1_n0_2"),
        ("cat {{.input}}", "cat flyte-io/inputs.pb"),
        ("{{.inputs.flag}}/{{.inputs.ratio}}", "true/0.5"),
        ("{{no template}}", "{{no template}}"),
    ],
)
def test_templates_in_words(template: str, text: str) -> None:
    assert words(template, n=3, word="a b", flag=True, ratio=0.5) == [text]


@pytest.mark.parametrize("template", ["{{.inputs.absent}}", "{{.taskTemplatePath}}", "{{.inputs.none}}"])
def test_a_template_without_a_value_is_refused(template: str) -> None:
    with pytest.raises(CommandFailed):
        words(template, none=None)


def test_a_command_is_counted_before_it_is_made() -> None:
    """A hundred times 3.8 MiB in one word, in many words, and in variables: each is refused, and nothing is built."""
    large, fitting = literals(s="x" * 3_800_000), literals(s="x" * 130_000)
    cases: list[tuple[Any, Any, str]] = [
        (tasks_pb2.Container(args=["{{.inputs.s}}" * 100]), large, "has over 131072 characters as text"),
        (tasks_pb2.Container(args=["{{.inputs.s}}" * 10_000]), fitting, "the word {{.inputs.s}}.* over 131072"),
        (tasks_pb2.Container(args=["{{.inputs.s}}"] * 10_000), fitting, "its command would have over"),
    ]
    tracemalloc.start()
    try:
        for container, inputs, words in cases:
            with pytest.raises(CommandFailed, match=words):
                task_command(container, NAMES, inputs, {})
            env = [{"key": f"K{number}", "value": word} for number, word in enumerate(container.args)]
            with pytest.raises(CommandFailed, match=words):
                task_environment(tasks_pb2.Container(env=env), NAMES, inputs, {})
        assert tracemalloc.get_traced_memory()[1] < 40 * 2**20
    finally:
        tracemalloc.stop()


def test_a_list_as_text() -> None:
    values = literals()
    values.literals["l"].collection.SetInParent()
    assert task_command(tasks_pb2.Container(args=["{{.inputs.l}}"]), NAMES, values, {})[4:] == ["[]"]
    for number in (1, 2):
        values.literals["l"].collection.literals.add().scalar.primitive.integer = number
    assert task_command(tasks_pb2.Container(args=["{{.inputs.l}}"]), NAMES, values, {})[4:] == ["[1,2]"]


@pytest.mark.parametrize("body", GARBAGE.values(), ids=GARBAGE)
def test_garbage_as_an_input_is_refused(body: bytes) -> None:
    values = literals()
    values.literals["bad"].scalar.binary.value = body
    values.literals["bad"].scalar.binary.tag = "msgpack"
    with pytest.raises(CommandFailed, match="the input bad cannot be read"):
        task_command(tasks_pb2.Container(args=["{{.inputs.bad}}"]), NAMES, values, {})


def test_a_time_that_no_calendar_has_is_refused() -> None:
    values = literals()
    values.literals["bad"].scalar.primitive.datetime.seconds = 10**15
    with pytest.raises(CommandFailed, match="the input bad cannot be read"):
        task_environment(tasks_pb2.Container(env=[{"key": "AT", "value": "{{.inputs.bad}}"}]), NAMES, values, {})


def test_the_shell_in_front_puts_the_real_folder_there(tmp_path: Path) -> None:
    container = tasks_pb2.Container(args=["printf", "%s\n", "{{.input}}", "a b", "$HOME;*", ""])
    command = task_command(container, NAMES, literals(), {})
    for variables, folder in (({"SWITCHYARD_FILES": "/x y"}, "/x y"), ({}, str(tmp_path))):
        done = subprocess.run(
            command, env={"PATH": os.environ["PATH"], **variables}, cwd=tmp_path, capture_output=True, check=True
        )
        assert done.stdout.decode().split("\n")[:-1] == [f"{folder}/flyte-io/inputs.pb", "a b", "$HOME;*", ""]


def test_the_environment_names_the_execution_and_the_attempt() -> None:
    container = tasks_pb2.Container()
    container.env.add(key="COLOUR", value="red")
    container.env.add(key="PLACE", value="task")
    made = task_environment(container, NAMES, literals(), {"PLACE": "execution"})
    assert (made["COLOUR"], made["PLACE"], made["FLYTE_ATTEMPT_NUMBER"]) == ("red", "execution", "2")
    assert (made["FLYTE_INTERNAL_EXECUTION_ID"], made["FLYTE_INTERNAL_TASK_NAME"]) == ("e1", "mod.add")


def error_pb(*, is_recoverable: bool, is_system: bool = False) -> bytes:
    document = errors_pb2.ErrorDocument()
    document.error.code, document.error.message = "USER:X", "told"
    document.error.kind = int(is_recoverable)
    document.error.origin = execution_pb2.ExecutionError.SYSTEM if is_system else execution_pb2.ExecutionError.USER
    return bytes(document.SerializeToString())


OUTPUTS = literals(o0=1).SerializeToString()
# The job's end and its files → the failure's code, whether it is recoverable, whether it is the system's.
FAILURES: list[tuple[str, JobEnd, tuple[str, bool, bool]]] = [
    ("error.pb", JobEnd("SUCCEEDED", files={"error.pb": error_pb(is_recoverable=False)}), ("USER:X", False, False)),
    ("recoverable", JobEnd("SUCCEEDED", files={"error.pb": error_pb(is_recoverable=True)}), ("USER:X", True, False)),
    (
        "of the system",
        JobEnd("FAILED", exit_code=1, files={"error.pb": error_pb(is_recoverable=True, is_system=True)}),
        ("USER:X", True, True),
    ),
    (
        "error beside outputs",
        JobEnd("SUCCEEDED", files={"error.pb": error_pb(is_recoverable=False), "outputs.pb": OUTPUTS}),
        ("USER:X", False, False),
    ),
    ("garbage as error", JobEnd("SUCCEEDED", files={"error.pb": b"\xff\xff"}), ("ErrorUnreadable", True, False)),
    ("garbage as outputs", JobEnd("SUCCEEDED", files={"outputs.pb": b"\xff\xff"}), ("OutputsUnreadable", True, False)),
    ("a crash", JobEnd("FAILED", "exit code 3", exit_code=3), ("Crashed", True, False)),
    ("killed", JobEnd("FAILED", "signal 9", signal=9), ("Interrupted", True, True)),
    ("lost", JobEnd("FAILED", "the cluster is silent"), ("Crashed", True, True)),
    ("too slow", JobEnd("FAILED", "time limit of 3s reached", signal=9), ("TimeoutExpired", True, False)),
    ("nothing left", JobEnd("SUCCEEDED"), ("OutputsNotFound", True, False)),
    ("no cluster", JobEnd("REJECTED", "too large"), ("NoClusterFits", False, False)),
]


@pytest.mark.parametrize(("end", "wanted"), [row[1:] for row in FAILURES], ids=[row[0] for row in FAILURES])
def test_what_the_end_of_a_job_means(end: JobEnd, wanted: tuple[str, bool, bool]) -> None:
    failure = judge_attempt("n0", 0, end, has_outputs=True).failure
    assert failure is not None
    assert (failure.code, failure.is_recoverable, failure.is_system) == wanted


def test_a_long_error_keeps_its_beginning_and_its_end() -> None:
    document = errors_pb2.ErrorDocument()
    document.error.code, document.error.message = "USER:X", "first\n" + "x" * 8_000_000 + "\nlast"
    end = judge_attempt(
        "n0", 0, JobEnd("SUCCEEDED", files={"error.pb": document.SerializeToString()}), has_outputs=True
    )
    assert end.failure is not None
    assert len(end.failure.message) < 33_000
    assert end.failure.message.startswith("first\n")
    assert end.failure.message.endswith("\nlast")


def test_outputs_no_outputs_and_a_cancel_are_no_failures() -> None:
    done = judge_attempt("n0", 0, JobEnd("SUCCEEDED", files={"outputs.pb": OUTPUTS}), has_outputs=True)
    assert done.outputs == literals(o0=1)
    assert judge_attempt("n0", 0, JobEnd("SUCCEEDED"), has_outputs=False).outputs == literals()
    stopped = judge_attempt("n0", 0, JobEnd("CANCELLED", files={"outputs.pb": OUTPUTS}), has_outputs=True)
    assert (stopped.outputs, stopped.failure) == (None, None)


def test_outputs_that_no_client_could_read_back_are_a_failure() -> None:
    body = nested(DEEPEST + 1).SerializeToString()
    assert literals_pb2.LiteralMap.FromString(body) == nested(DEEPEST + 1)
    failure = judge_attempt("n0", 0, JobEnd("SUCCEEDED", files={"outputs.pb": body}), has_outputs=True).failure
    assert failure is not None
    assert (failure.code, "too deeply" in failure.message) == ("OutputsUnreadable", True)


def test_files_that_cannot_be_read_are_a_failure_of_a_task_without_outputs_too() -> None:
    failure = judge_attempt("n0", 0, JobEnd("SUCCEEDED", files_problem="it is lost"), has_outputs=False).failure
    assert failure is not None
    assert (failure.code, failure.message, failure.is_recoverable) == ("OutputsNotFound", "it is lost", True)


def test_a_dynamic_task_leaves_a_workflow_that_is_not_judged_here() -> None:
    end = judge_attempt("n0", 0, JobEnd("SUCCEEDED", files={"futures.pb": b"f", "outputs.pb": b""}), has_outputs=True)
    assert (end.futures, end.outputs, end.failure) == (b"f", None, None)


@pytest.mark.parametrize(
    ("attempt", "number", "execution", "place"),
    [(2, 1, "e1", "e1/n0-1"), (0, 3, "e0", "e0/n0-3")],
    ids=["the attempt before", "of the execution that is recovered"],
)
def test_an_attempt_is_told_where_the_checkpoint_before_is(
    attempt: int, number: int, execution: str, place: str
) -> None:
    names = replace(
        NAMES,
        attempt=attempt,
        data_prefix="s3://b/x",
        previous="JOB-7",
        previous_number=number,
        previous_execution=execution,
    )
    container = tasks_pb2.Container(args=["{{.prevCheckpointPrefix}}", "{{.checkpointOutputPrefix}}"])
    before, now = task_command(container, names, literals(), {})[4:]
    assert before == f"s3://b/x/p/d/{place}/JOB-7/checkpoint"
    assert now == f"s3://b/x/p/d/e1/n0-{attempt}/@switchyard-attempt@/checkpoint"
