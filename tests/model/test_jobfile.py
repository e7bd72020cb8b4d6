"""The schema of a job file says what the reader of job files takes: same fields, same refusals."""

from __future__ import annotations

import re
from argparse import Namespace
from typing import Any

import pytest

from switchyard.cli.submit.submit_files import split_files
from switchyard.errors import Malformed
from switchyard.model.job import jobfile
from switchyard.sdk.transport.request import KNOWN_FIELDS, build_job_request

SCHEMA = jobfile.job_file_schema()


def fits(value: Any, part: dict[str, Any]) -> bool:
    """The few words of JSON Schema that ours has, as an editor would check them."""
    if "$ref" in part:
        part = SCHEMA["$defs"][part["$ref"].rpartition("/")[2]] | {key: part[key] for key in part if key != "$ref"}
    if "anyOf" in part and not any(fits(value, each) for each in part["anyOf"]):
        return False
    if "enum" in part and value not in part["enum"]:
        return False
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool}
    kind = part.get("type")
    if kind == "null":
        return value is None
    if kind is not None and (
        not isinstance(value, kinds[kind]) or (isinstance(value, bool) and kind != "boolean")  # type: ignore[arg-type]
    ):
        return False
    if isinstance(value, dict):
        return _fits_object(value, part)
    if isinstance(value, list):
        lengths = part.get("minItems", 0) <= len(value) <= part.get("maxItems", len(value))
        return lengths and all(fits(item, part.get("items", {})) for item in value)
    if isinstance(value, str):
        lengths = part.get("minLength", 0) <= len(value) <= part.get("maxLength", len(value))
        return lengths and ("pattern" not in part or re.search(part["pattern"], value) is not None)
    if isinstance(value, int | float):
        is_above = "exclusiveMinimum" not in part or value > part["exclusiveMinimum"]
        return bool(is_above and part.get("minimum", value) <= value <= part.get("maximum", value))
    return True


def _fits_object(value: dict[str, Any], part: dict[str, Any]) -> bool:
    known, more = part.get("properties", {}), part.get("additionalProperties", True)
    if any(name not in value for name in part.get("required", ())):
        return False
    if more is False and set(value) - set(known):
        return False
    return all(
        fits(item, known[name] if name in known else (more if isinstance(more, dict) else {}))
        for name, item in value.items()
    )


def test_it_has_every_field_that_a_job_file_has_and_says_what_each_is() -> None:
    assert set(SCHEMA["properties"]) == KNOWN_FIELDS | {"spec", "resources"} | set(jobfile.LOCAL_FILES)
    assert all(part.get("description") for part in SCHEMA["properties"].values())
    assert set(jobfile.FIELD_DESCRIPTIONS) == set(SCHEMA["properties"])


def test_every_reference_leads_somewhere() -> None:
    found = set(re.findall(r'"#/\$defs/(\w+)"', __import__("json").dumps(SCHEMA)))
    assert found <= set(SCHEMA["$defs"])


GOOD: list[dict[str, Any]] = [
    {"command": ["true"]},
    {"command": "python train.py --epochs 3"},
    {"command": ["a"], "cores": "500m", "memory": "8GiB", "limits": {"memory": "16GiB"}, "time_limit": "1h"},
    {"command": ["a"], "array": "0-9%2", "after": ["01ARZ3NDEKTSV4RRFFQ69G5FAV:any"], "hold": True},
    {"command": ["a"], "retry": {"limit": 3, "causes": ["lost"]}, "on_lost": "requeue", "labels": {"team": "ml"}},
    {"spec": {"command": ["a"], "resources": {"cores": 2}}},
    {"command": ["a"], "resources": {"nodes": 1, "tasks": 2}},
]
BAD: list[dict[str, Any]] = [
    {},
    {"comand": ["true"]},
    {"command": []},
    {"command": ["a"], "cores": -1},
    {"command": ["a"], "on_lost": "explode"},
    {"command": ["a"], "tasks": "2"},
    {"command": ["a"], "project": "no spaces"},
    {"command": ["a"], "env": {"A": 1}},
    {"command": ["a"], "resources": {"core": 2}},
    {"command": ["a"], "retry": {"limit": 1000}},
]


@pytest.mark.parametrize(
    ("fields", "is_good"),
    [
        ({"in": "x.py"}, True),
        ({"in": ["x.py", "data:input"], "workdir": ".", "out": ["results/*"], "out_required": True}, True),
        ({"in": {"input": "data/x"}, "out": "y"}, True),
        ({"in": 3}, False),
        ({"in": {"input": 3}}, False),
        ({"out": [3]}, False),
        ({"workdir": ["."]}, False),
        ({"out": ["y"], "out_required": "yes"}, False),
    ],
)
def test_local_files_are_taken_by_the_command_line_alone(fields: dict[str, Any], is_good: bool) -> None:
    form = {"command": ["a"], **fields}
    args = Namespace(inputs=[], workdir=None, out=[], out_required=None)
    assert fits(form, SCHEMA) == is_good
    if is_good:
        plain, files = split_files(form, args, file="jobs/job.yaml", where="job.yaml")
        assert plain == {"command": ["a"]}
        assert all(source.path.startswith(b"jobs") for source in files.shared)
    else:
        with pytest.raises(Malformed):
            split_files(form, args, file="job.yaml", where="job.yaml")


@pytest.mark.parametrize("form", GOOD)
def test_what_is_taken_fits(form: dict[str, Any]) -> None:
    build_job_request(form, {})
    assert fits(form, SCHEMA)


@pytest.mark.parametrize("form", BAD)
def test_what_is_refused_does_not_fit(form: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        build_job_request(form, {})
    assert not fits(form, SCHEMA)
