"""Exec files of flytectl: YAML that says what to launch, with which inputs. It calls no server."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from difflib import get_close_matches
from typing import Any

from switchyard.cli.terminal.option_file import read_option_file
from switchyard.errors import Malformed
from switchyard.model.wire.decode import load_yaml

FILE_BYTES_MAX = 4 * 2**20  # the server's limit for one execution
# flytectl's word for each field of a request.
WORDS = {
    "workflow": "launch_plan",
    "task": "task",
    "version": "version",
    "targetProject": "project",
    "targetDomain": "domain",
    "clusterPool": "pool",
    "targetExecutionCluster": "label",
    "kubeServiceAcct": "service_account",
    "iamRoleARN": "iam_role",
    "overwriteCache": "overwrite_cache",
    "inputs": "inputs",
    "envs": "envs",
}
MAPS = ("inputs", "envs")
# Keys that flytectl has for its own options. They mean nothing in a file.
OPTIONS = ("execFile", "relaunch", "recover", "dryRun")


def read_exec_file(name: str) -> dict[str, Any]:
    """The fields of a request. Unknown keys and values of a wrong form are refused; empty ones are left out."""
    fields = load_yaml(read_option_file(name, "--execFile", bytes_max=FILE_BYTES_MAX), where=name)
    if not isinstance(fields, dict) or not fields:
        raise Malformed(
            f"{name}: not a map of fields.",
            next_step="A file has `workflow` or `task`, `version` and `inputs`; `flytectl get launchplan` writes one.",
        )
    unknown = [str(key) for key in fields if key not in WORDS and key not in OPTIONS]
    if unknown:
        raise Malformed(f"{name}: {'; '.join(map(_unknown, unknown[:10]))}.", next_step=f"Known: {', '.join(WORDS)}.")
    request: dict[str, Any] = {}
    for word, value in fields.items():
        if word in WORDS and value not in (None, "", {}):
            request[WORDS[word]] = _checked(name, word, value)
    given = [word for word in ("workflow", "task") if WORDS[word] in request]
    if len(given) != 1:
        problem = "names both a workflow and a task" if given else "names neither a workflow nor a task"
        raise Malformed(f"{name}: {problem}.", next_step="Give `workflow: NAME` of a launch plan, or `task: NAME`.")
    return request


def _unknown(key: str) -> str:
    close = get_close_matches(key, WORDS, n=1)
    return f"unknown key {key[:80]!r}" + (f" (did you mean {close[0]}?)" if close else "")


def _checked(name: str, word: str, value: Any) -> Any:
    if word in MAPS:
        if not isinstance(value, dict):
            raise Malformed(
                f"{name}: {word} is not a map.", next_step=f"Write `{word}:` and each name on a line below."
            )
        plain = {str(key): _plain(item) for key, item in value.items()}
        wrong = [key for key, item in plain.items() if word == "envs" and not isinstance(item, str)]
        if wrong:
            raise Malformed(f"{name}: envs.{wrong[0][:80]} is not a text.", next_step="Put quotes around it.")
        return plain
    if word == "overwriteCache":
        if not isinstance(value, bool):
            raise Malformed(f"{name}: {word} is not true or false.")
    elif not isinstance(value, str):
        raise Malformed(f"{name}: {word} is not a text.", next_step="Put quotes around it.")
    return value


def _plain(value: Any) -> Any:
    """A value of YAML as JSON has it: times as text, names of maps as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.isoformat() if isinstance(value, datetime | date) else value
