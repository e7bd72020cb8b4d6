"""The command and the environment of one attempt of a task: templates in its arguments filled in. Pure.

The files of an attempt lie in the folder of its job, whose path is known only on the cluster. So a word that begins
with FILES stands for a path in it, and a line of shell in front of the command puts the real path there. It also reads
and removes what the site gave to the job, and makes places of data that no other attempt has (ATTEMPT).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from switchyard.features.flyte.workflow.compile.entity_id import EntityId
from switchyard.features.flyte.workflow.values.decoded_values import decode_msgpack
from switchyard.features.flyte.workflow.values.literals import UNREADABLE_VALUE
from switchyard.model.job.job import REQUEST_BYTES_MAX, WORD_CHARS_MAX
from switchyard.model.job.site_needs import SITE_VARIABLES

FILES = "@job-files@"
FOLDER = "flyte-io"  # in the folder of the job
INPUTS = f"{FOLDER}/inputs.pb"
OUTPUTS = f"{FOLDER}/out"
RAW = f"{FOLDER}/raw"
CHECKPOINT = f"{FOLDER}/checkpoint"
PREVIOUS_CHECKPOINT = f"{FOLDER}/previous-checkpoint"
ATTEMPT = "@switchyard-attempt@"  # the job's id and its fence: a path with it is of one attempt alone
# In words of raw containers: the folders of inputs and outputs.
CONTAINER_IN, CONTAINER_OUT = f"{FOLDER}/in", f"{FOLDER}/container-out"
IN_TOKEN, OUT_TOKEN = "@container-in@", "@container-out@"
SCRIPT = (
    f'd=${{SWITCHYARD_FILES:-$PWD}}; s=$d/{SITE_VARIABLES}; if [ -f "$s" ]; then . "$s"; rm -f "$s"; fi; '
    'r() { while :; do case $a in *"$1"*) a=${a%%"$1"*}$2${a#*"$1"};; *) break;; esac; done; }; '
    f"for a do shift; case $a in {FILES}*) a=$d${{a#{FILES}}};; esac; "
    f'r {ATTEMPT} "$SWITCHYARD_JOB_ID-$SWITCHYARD_FENCE"; r {IN_TOKEN} "$d/{CONTAINER_IN}"; '
    f'r {OUT_TOKEN} "$d/{CONTAINER_OUT}"; set -- "$@" "$a"; done; '
)
# In front of the same for an element of a map: the index under Flyte's name.
INDEX_VARIABLE = "FLYTE_K8S_ARRAY_INDEX"
INDEX_SCRIPT = f"export {INDEX_VARIABLE}=$SWITCHYARD_ARRAY_INDEX; "
RUN = 'exec {before}"$@"'
TEXT_CHARS_MAX = REQUEST_BYTES_MAX // 2  # of all words of a command, and of all variables
_TEMPLATE = re.compile(r"\{\{\s*[.$]([a-z_]\w*(?:\.\w+)*)\s*\}\}", re.IGNORECASE)
_UNKEYED = re.compile(r"[^A-Za-z0-9_]")
_UNPATHED = re.compile(r"[^A-Za-z0-9_.-]")


class CommandFailed(Exception):
    """A template cannot be filled in; the text says why."""


@dataclass(frozen=True, slots=True)
class AttemptNames:
    """Who an attempt is."""

    project: str
    domain: str
    execution: str
    workflow: str
    launch_plan: str
    node_id: str
    attempt: int
    task: EntityId
    is_element: bool = False  # of a map
    data_prefix: str = ""  # where data of tasks goes; empty: nowhere but into the job's folder
    previous: str = ""  # id and fence of the job of the attempt before this one
    previous_number: int = 0  # of that attempt
    previous_execution: str = ""  # whose attempt that was: this execution's, or the one's that it recovers
    has_checkpoint: bool = False  # the checkpoint of the attempt before comes with the files of the job
    namespace: str = ""  # of the jobs of its project and domain, on Kubernetes


def task_command(
    container: Any,
    names: AttemptNames,
    inputs: Any,
    bundles: Mapping[str, str],
    *,
    prepare: str = "",
    before: str = "",
) -> list[str]:
    """`bundles`: the path of each code bundle in the job's folder, by its address. `prepare`: shell text before it.

    `before`: shell words before the command.
    """
    text = CommandText(names, inputs)
    words = [text.fill(word) for word in (*container.command, *container.args)]
    words = list(_with_local_code(words, bundles))
    if not words:
        raise CommandFailed("the task has no command")
    index = INDEX_SCRIPT if names.is_element else ""
    return ["/bin/sh", "-c", index + SCRIPT + prepare + RUN.format(before=before), "flyte-task", *words]


def bundle_addresses(container: Any) -> list[str]:
    """The addresses of code bundles in the arguments."""
    words = [*container.command, *container.args]
    return [words[at + 1] for at in range(len(words) - 1) if words[at] == "--additional-distribution"]


def task_environment(container: Any, names: AttemptNames, inputs: Any, envs: Mapping[str, str]) -> dict[str, str]:
    """Flyte's variables, then the task's, then those of the execution."""
    task = names.task
    text = CommandText(names, inputs)
    return {
        "FLYTE_INTERNAL_EXECUTION_ID": names.execution,
        "FLYTE_INTERNAL_EXECUTION_PROJECT": names.project,
        "FLYTE_INTERNAL_EXECUTION_DOMAIN": names.domain,
        "FLYTE_INTERNAL_EXECUTION_WORKFLOW": f"{names.project}:{names.domain}:{names.workflow}",
        "FLYTE_INTERNAL_EXECUTION_LAUNCHPLAN": f"{names.project}:{names.domain}:{names.launch_plan}",
        "FLYTE_INTERNAL_TASK_PROJECT": task.project,
        "FLYTE_INTERNAL_TASK_DOMAIN": task.domain,
        "FLYTE_INTERNAL_TASK_NAME": task.name,
        "FLYTE_INTERNAL_TASK_VERSION": task.version,
        "FLYTE_INTERNAL_PROJECT": task.project,
        "FLYTE_INTERNAL_DOMAIN": task.domain,
        "FLYTE_INTERNAL_NAME": task.name,
        "FLYTE_INTERNAL_VERSION": task.version,
        "FLYTE_ATTEMPT_NUMBER": str(names.attempt),
        **({"BATCH_JOB_ARRAY_INDEX_VAR_NAME": INDEX_VARIABLE} if names.is_element else {}),
        **{pair.key: text.fill(pair.value) for pair in container.env},
        **envs,
    }


def _values(names: AttemptNames) -> dict[str, str]:
    key = _UNKEYED.sub("_", f"{names.execution}_{names.node_id}_{names.attempt}")
    data, checkpoint, before = RAW, CHECKPOINT, PREVIOUS_CHECKPOINT if names.has_checkpoint else '""'
    if names.data_prefix:
        data, checkpoint = f"{_data_place(names)}/data", f"{_data_place(names)}/checkpoint"
        if names.previous:
            earlier = replace(names, execution=names.previous_execution, attempt=names.previous_number)
            before = f"{_data_place(earlier, names.previous)}/checkpoint"
    return {
        "input": INPUTS,
        "inputprefix": FOLDER,
        "outputprefix": OUTPUTS,
        "rawoutputdataprefix": data,
        "checkpointoutputprefix": checkpoint,
        "prevcheckpointprefix": before,
        "perretryuniquekey": key,
        "namespace": names.namespace,
    }


def _data_place(names: AttemptNames, key: str = ATTEMPT) -> str:
    """The folder for data of an attempt. No other attempt has the same."""
    node = f"{_UNPATHED.sub('_', names.node_id)}-{names.attempt}"
    return f"{names.data_prefix.rstrip('/')}/{names.project}/{names.domain}/{names.execution}/{node}/{key}"


class CommandText:
    """Fills in the templates of one attempt. It counts the text before it makes it: each input may stand in many
    words, and many times in one."""

    def __init__(self, names: AttemptNames, inputs: Any) -> None:
        self._values = _values(names)
        self._inputs = inputs
        self._texts: dict[str, str] = {}  # of inputs
        self._left = TEXT_CHARS_MAX

    def fill(self, word: str) -> str:
        whole = _TEMPLATE.fullmatch(word)
        if whole and self._values.get(whole[1].lower(), "").startswith(FOLDER):
            word = f"{FILES}/{self._values[whole[1].lower()]}"
        parts, end, size = list[str](), 0, 0
        for match in _TEMPLATE.finditer(word):
            text = self._value(match)
            parts += (word[end : match.start()], text)
            size += match.start() - end + len(text)
            end = match.end()
            self._check(size, word)
        parts.append(word[end:])
        size += len(word) - end
        self._check(size, word)
        self._left -= size
        return "".join(parts)

    def _check(self, size: int, word: str) -> None:
        if size > WORD_CHARS_MAX:
            raise CommandFailed(
                f"the word {word[:80]} would have over {WORD_CHARS_MAX} characters; hand large data on as files"
            )
        if size > self._left:
            raise CommandFailed(f"its command would have over {TEXT_CHARS_MAX} characters; hand large data on as files")

    def _value(self, match: re.Match[str]) -> str:
        name = match[1]
        if name.lower().startswith("inputs."):
            name = name.partition(".")[2]
            if name not in self._texts:
                self._texts[name] = _input_text(name, self._inputs)
            return self._texts[name]
        if name.lower() not in self._values:
            raise CommandFailed(f"the template {match[0][:80]} is not served")
        return self._values[name.lower()]  # a relative path: the job begins in its folder


def _with_local_code(words: Sequence[str], bundles: Mapping[str, str]) -> Iterator[str]:
    """Bundles are files of the job, and are unpacked in its folder. Images have a folder of their own for that."""
    before = ""
    for word in words:
        if before == "--additional-distribution" and word in bundles:
            yield f"{FILES}/{bundles[word]}"
        elif before == "--dest-dir":
            yield FILES
        else:
            yield word
        before = word


def _input_text(name: str, inputs: Any) -> str:
    """An input as text. Values without one fail the node, as in Flyte."""
    if name not in inputs.literals:
        raise CommandFailed(f"the task has no input {name[:80]}")
    try:
        return literal_text(inputs.literals[name], name, most=WORD_CHARS_MAX)
    except UNREADABLE_VALUE as exc:
        raise CommandFailed(f"the input {name[:80]} cannot be read: {str(exc)[:200]}") from exc


def literal_text(literal: Any, name: str, *, most: int) -> str:
    """A value as text. `most`: its characters. Raises CommandFailed."""
    parts, size = list[str](), 0
    for part in _text_parts(literal, name):
        size += len(part)
        if size > most:
            raise CommandFailed(
                f"the input {name[:80]} has over {most} characters as text; hand large data on as files"
            )
        parts.append(part)
    return "".join(parts)


def _text_parts(literal: Any, name: str) -> Iterator[str]:
    case = literal.WhichOneof("value")
    if case == "collection":
        for number, item in enumerate(literal.collection.literals):
            yield "," if number else "["
            yield from _text_parts(item, name)
        yield "]" if literal.collection.literals else "[]"
        return
    kind = literal.scalar.WhichOneof("value") if case == "scalar" else None
    if kind == "primitive":
        yield _primitive_text(literal.scalar.primitive)
    elif kind == "binary" and literal.scalar.binary.tag == "msgpack":
        yield msgspec.json.encode(decode_msgpack(literal.scalar.binary.value)[0]).decode()
    elif kind in ("blob", "schema"):
        yield str(getattr(literal.scalar, kind).uri)
    else:
        raise CommandFailed(f"the input {name[:80]} has no form as text")


def _primitive_text(primitive: Any) -> str:
    case = primitive.WhichOneof("value")
    if case == "boolean":
        return "true" if primitive.boolean else "false"
    if case == "datetime":
        return str(primitive.datetime.ToJsonString())
    if case == "duration":
        return f"{primitive.duration.ToNanoseconds() / 1e9:g}s"
    if case == "float_value":
        return f"{primitive.float_value:g}"
    return str(getattr(primitive, case)) if case else ""
