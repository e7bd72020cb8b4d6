"""Builds a checked JobRequest from flat fields. No I/O except for images on disk."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from switchyard.errors import Malformed
from switchyard.model.files.files import JobFiles
from switchyard.model.job.job import ClusterToken, JobRequest, JobSpec
from switchyard.model.jobspec.jobspec import from_jobspec, is_jobspec
from switchyard.model.rules.names import KEY_PATTERN
from switchyard.model.wire.decode import convert
from switchyard.sdk.transport.alternatives import RESOURCE_FIELDS, FlatFields, whole_sets

REQUEST_FIELDS = tuple(name for name in JobRequest.__struct_fields__ if name != "spec")
SPEC_FIELDS = tuple(name for name in JobSpec.__struct_fields__ if name != "resources")
KNOWN_FIELDS = frozenset((*REQUEST_FIELDS, *SPEC_FIELDS, *RESOURCE_FIELDS))
KEY_CHARS_MAX = 200  # as the server takes
# `given` is merged into these fields by key, and replaces the others.
MERGED_FIELDS = frozenset({"env", "labels", "limits", "native", "parameters", "retry", "tokens"})


def build_job_request(
    base: str | Sequence[str] | JobSpec | JobRequest | Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    saved: Sequence[ClusterToken] = (),
    where: str = "the job",
) -> JobRequest:
    """Build a request from a command, a spec, a request or flat fields, with `given` laid over it.

    `saved`: submit tokens of the user's file.
    """
    flat = _flatten_input(base, where=where)
    laid_over = {name: given[name] for name in RESOURCE_FIELDS if given.get(name) is not None}
    if given.get("alternatives") is not None:
        laid_over = {}  # these replace those of a file, and say themselves what they ask for
    for name, value in given.items():
        if value is not None:
            plain: Any = _dependency_texts(value, where=where) if name == "after" else _to_builtins(value, name, where)
            if name == "select" and isinstance(plain, str):
                plain = {"name": plain}
            if name in MERGED_FIELDS and not isinstance(plain, Mapping):
                raise Malformed(f"{where}: {name}: expected a mapping, not {str(value)[:40]!r}.")
            flat[name] = {**(flat.get(name) or {}), **plain} if name in MERGED_FIELDS else plain
    if flat.get("alternatives"):
        flat["alternatives"] = whole_sets(flat, laid_over, where=where)
    # Who names the clusters of a job wants no others: saved tokens would only show more secrets.
    if saved and not flat.get("clusters") and not flat.get("submit_tokens"):
        flat["submit_tokens"] = [msgspec.to_builtins(entry) for entry in saved]
    return _convert_request(flat, where=where)


def with_image_compatibility(request: JobRequest) -> JobRequest:
    """Add the compatibility that an image on disk declares to that of the job."""
    spec = request.spec
    if spec.image is None or not spec.image.startswith("oci:"):
        return request
    from switchyard.model.job.image_compatibility import merge_compatibility
    from switchyard.sdk.files.oci import read_image_compatibility

    needs = merge_compatibility(spec.compatibility, read_image_compatibility(spec.image), where=spec.image)
    return msgspec.structs.replace(request, spec=msgspec.structs.replace(spec, compatibility=needs))


def with_job_files(request: JobRequest, files: JobFiles | None) -> JobRequest:
    """Name these files in the job's spec. None: the request stays as it is."""
    if files is None:
        return request
    return msgspec.structs.replace(request, spec=msgspec.structs.replace(request.spec, files=files))


def _to_builtins(value: Any, name: str, where: str) -> Any:
    try:
        return msgspec.to_builtins(value)
    except (TypeError, ValueError) as exc:
        raise Malformed(f"{where}: {name}: a value of the type {type(value).__name__} cannot be sent: {exc}.") from exc


def _dependency_texts(value: Any, *, where: str) -> list[str]:
    """Return the jobs to start after as texts, from one or several texts or handles."""
    dependencies = [value] if isinstance(value, str) or not isinstance(value, Sequence) else value
    for dependency in dependencies:
        if not isinstance(dependency, str) and not hasattr(dependency, "id"):
            raise Malformed(f"{where}: after: expected ids or handles of jobs, not {str(dependency)[:40]!r}.")
    return [dependency if isinstance(dependency, str) else str(dependency.id) for dependency in dependencies]


def check_idempotency_key(key: str) -> str:
    """Check that a key can be sent as a header. An empty key is refused: it would not be idempotent."""
    if not isinstance(key, str) or not re.match(KEY_PATTERN, key) or len(key) > KEY_CHARS_MAX:
        raise Malformed(f"The idempotency key has 1 to {KEY_CHARS_MAX} visible ASCII characters, without spaces.")
    return key


def _flatten_input(base: str | Sequence[str] | JobSpec | JobRequest | Mapping[str, Any], *, where: str) -> FlatFields:
    if isinstance(base, JobRequest):
        return flatten(msgspec.to_builtins(base), where=where)
    if isinstance(base, JobSpec):
        return flatten({"spec": msgspec.to_builtins(base)}, where=where)
    if is_jobspec(base):
        return from_jobspec(base, where=where).plain
    if isinstance(base, Mapping):
        return flatten(base, where=where)
    if isinstance(base, bytes) or not isinstance(base, Iterable):  # type: ignore[unreachable]
        raise Malformed(
            f"{where}: expected a command, not {type(base).__name__} {str(base)[:40]!r}.",
            next_step='Give a list of texts such as ["python", "train.py"], a JobSpec, a JobRequest or a mapping.',
        )
    return {"command": base if isinstance(base, str) else list(base)}


def flatten(form: Mapping[str, Any], *, where: str) -> FlatFields:
    """Flatten the fields to one level. `spec:` and `resources:` may be nested, as in the API."""
    flat: FlatFields = {}
    for name, value in form.items():
        inner = flatten(value, where=where) if name in ("spec", "resources") and isinstance(value, Mapping) else None
        for key, item in ({name: value} if inner is None else inner).items():
            if key in flat:
                raise Malformed(f"{where}: the field {key!r} is given twice.")
            flat[key] = item
    return flat


def _convert_request(flat: FlatFields, *, where: str) -> JobRequest:
    _refuse_unknown(flat, where=where)
    _refuse_bare_numbers(flat, where=where)
    if isinstance(flat.get("command"), str):
        flat["command"] = _split(flat["command"], where=where)
    if not flat.get("command"):
        raise Malformed(
            f"{where} has no command.", next_step="Give one: `yard submit -- CMD ARGS…`, or `command:` in the file."
        )
    spec: FlatFields = {name: flat[name] for name in SPEC_FIELDS if name in flat}
    if resources := {name: flat[name] for name in RESOURCE_FIELDS if name in flat}:
        spec["resources"] = resources
    request = {name: flat[name] for name in REQUEST_FIELDS if name in flat}
    try:
        converted = convert({**request, "spec": spec}, JobRequest, where=where)
        msgspec.json.encode(converted)
    except Malformed as exc:
        # The user wrote flat fields: name them so.
        raise Malformed(exc.detail.replace("`spec.resources.", "`").replace("`spec.", "`")) from exc
    except UnicodeEncodeError as exc:
        name = next((name for name, value in flat.items() if not _can_be_sent(value)), "a field")
        raise Malformed(
            f"{where}: {name}: {ascii(exc.object)[:80]} has bytes that are no UTF-8, which cannot be sent.",
            next_step="Write it in UTF-8. Bytes of any kind travel in files (--in) and in the names of files.",
        ) from exc
    return converted


def _can_be_sent(value: Any) -> bool:
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return False
    return True


def is_utf8(text: str) -> bool:
    """Whether the text can be sent. A word of the command line with other bytes has lone surrogates in their place."""
    return _can_be_sent(text)


def _refuse_unknown(flat: FlatFields, *, where: str) -> None:
    from difflib import get_close_matches

    for name in flat:
        if name not in KNOWN_FIELDS:
            close = get_close_matches(str(name), KNOWN_FIELDS, n=1)
            guess = f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(sorted(KNOWN_FIELDS))}."
            raise Malformed(f"{where}: there is no field {str(name)[:80]!r}.", next_step=guess)


def _refuse_bare_numbers(flat: FlatFields, *, where: str) -> None:
    """Refuse unquoted values: YAML reads 010 as 8, 1.10 as 1.1 and on as true."""
    for name in ("env", "labels"):
        values = flat.get(name)
        for key, value in values.items() if isinstance(values, Mapping) else ():
            if not isinstance(value, str):
                raise Malformed(
                    f"{where}: {name}.{key} is not a text but {value!r}.", next_step="Put quotes around the value."
                )


def _split(command: str, *, where: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as exc:
        raise Malformed(f"{where}: the command cannot be split into words: {exc}.") from exc
