"""Files that Flyte's clients upload: addresses for one path, one content and a bounded time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flyteidl.service import dataproxy_pb2

from tests.processes import PATIENCE_S, until
from tests.programs import call
from tests.server.flyte_doors import UPLOAD_SCOPE, Doors, Said, ask_data_proxy, opened, put_file, upload_location

pytestmark = pytest.mark.xdist_group("flyte-uploads")
LARGE = bytes(range(256)) * 4096 * 9  # nine MiB: two chunks


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with opened(tmp_path_factory.mktemp("doors")) as made:
        yield made


def test_a_server_without_executions_takes_no_uploads(tmp_path: Path) -> None:
    with opened(tmp_path, workflows={"executions": False}) as off:
        code, words = upload_location(off, "bundle.tar.gz", b"code")
        assert (code, "`workflows.executions` is off" in words) == ("UNIMPLEMENTED", True), words


@pytest.mark.parametrize("content", [b"code", LARGE], ids=["small", "large"])
def test_what_was_uploaded_is_read_back(doors: Doors, content: bytes) -> None:
    address = upload_location(doors, "bundle.tar.gz", content)
    assert put_file(address, content).status == 200
    request = dataproxy_pb2.CreateDownloadLocationRequest(native_url=address.native_url)
    link = ask_data_proxy(doors, "CreateDownloadLocation", request)
    read = call("GET", link.signed_url)
    assert (read.status, read.body == content) == (200, True)
    assert (read.headers["x-content-type-options"], read.headers["content-disposition"]) == ("nosniff", "attachment")
    assert "sandbox" in read.headers["content-security-policy"], "a browser must not run it as a page of this server"
    assert put_file(link, content).status == 403, "an address to read from takes nothing"


def test_the_same_content_may_come_again_and_another_one_may_not(doors: Doors) -> None:
    first = upload_location(doors, "again.tar.gz", b"one")
    assert put_file(first, b"one").status == 200
    assert put_file(first, b"one").status == 403, "an address is used up"
    second = upload_location(doors, "again.tar.gz", b"one")
    assert second.native_url == first.native_url
    assert put_file(second, b"one").status == 200
    own = upload_location(doors, "f", filename_root="mine", content=b"one")
    assert put_file(own, b"one").status == 200
    code, _ = upload_location(doors, "f", filename_root="mine", content=b"two")
    assert code == "ALREADY_EXISTS"


def test_two_who_upload_to_one_path_cannot_replace_each_other(doors: Doors) -> None:
    first, second = (upload_location(doors, "f", filename_root="race", content=content) for content in (b"one", b"two"))
    assert put_file(first, b"one").status == 200
    assert put_file(second, b"two").status == 409


def test_other_bytes_than_those_that_were_announced_are_refused(doors: Doors) -> None:
    address = upload_location(doors, "x.tar.gz", b"good")
    assert put_file(address, b"evil").status == 400
    assert put_file(address, b"good").status == 200, "a failed upload does not use the address up"


def test_an_address_ends_with_its_time(doors: Doors) -> None:
    address = upload_location(doors, "late.tar.gz", b"late", expires_in={"seconds": 1})
    until(lambda: put_file(address, b"late").status == 403 or None, PATIENCE_S, "its time is over")
    code, words = upload_location(doors, "late.tar.gz", b"late", expires_in={"seconds": 7200})
    assert (code, "at most 3600" in words) == ("INVALID_ARGUMENT", True)


@pytest.mark.parametrize("token", ["", "x", "%00", "a" * 5000])
def test_an_address_that_nobody_gave_out_is_refused(doors: Doors, token: str) -> None:
    assert call("PUT", f"{doors.url}/flyte-data/{token}/f", b"x").status in (403, 404)
    assert call("POST", f"{doors.url}/flyte-data/{token}/f", b"x").status in (404, 405)


@pytest.mark.parametrize(
    "fields",
    [
        {"filename": "../../etc/passwd", "filename_root": "r"},
        {"filename": "f", "filename_root": "a//b"},
        {"filename": "f\n", "filename_root": "r"},
        {"filename": "f"},
        {"filename": "f" * 300, "filename_root": "r"},
        {"filename": "f", "content_md5": b"short"},
    ],
)
def test_names_that_are_no_paths_are_refused(doors: Doors, fields: dict[str, Any]) -> None:
    request = dataproxy_pb2.CreateUploadLocationRequest(**UPLOAD_SCOPE, **fields)
    code, _ = ask_data_proxy(doors, "CreateUploadLocation", request)
    assert code == "INVALID_ARGUMENT"


def test_files_of_others_and_foreign_addresses_are_not_found(doors: Doors) -> None:
    for url, code in (
        ("switchyard://default/development/none/f", "NOT_FOUND"),
        ("s3://bucket/key", "INVALID_ARGUMENT"),
        ("switchyard://default", "INVALID_ARGUMENT"),
    ):
        request = dataproxy_pb2.CreateDownloadLocationRequest(native_url=url)
        assert ask_data_proxy(doors, "CreateDownloadLocation", request)[0] == code


def launched(doors: Doors, name: str, *args: str) -> Said:
    """The answer to an execution of a task with these arguments."""
    task = {**UPLOAD_SCOPE, "resource_type": "TASK", "name": name, "version": "v1"}
    template = {
        "id": task,
        "type": "python-task",
        "metadata": {"runtime": {"version": "1"}},
        "interface": {"inputs": {"variables": {"n": {"type": {"simple": "INTEGER"}}}}},
        "container": {"image": "i", "args": args},
    }
    assert doors.by_grpc("CreateTask", {"id": task, "spec": {"template": template}}).code == "OK"
    inputs = {"literals": {"n": {"scalar": {"primitive": {"integer": "1"}}}}}
    return doors.by_grpc(
        "CreateExecution", {**UPLOAD_SCOPE, "name": name, "spec": {"launch_plan": task}, "inputs": inputs}
    )


@pytest.mark.parametrize("place", [{"project": "secret"}, {"domain": "production"}], ids=["project", "domain"])
def test_a_task_cannot_take_code_of_another_project_or_domain(doors: Doors, place: dict[str, str]) -> None:
    word = next(iter(place))
    if word == "project":
        doors.v1("POST", "/v1/projects", {"name": "secret"})
    address = upload_location(doors, "code.tar.gz", b"secret code", **place)
    assert put_file(address, b"secret code").status == 200
    option = ("--additional-distribution", address.native_url)
    refused = launched(doors, f"taker-{word}", "run", *option)
    assert (refused.code, "is not here" in refused.message) == ("INVALID_ARGUMENT", True)
    # A command that depends on its inputs is made when its node begins.
    assert launched(doors, f"later-{word}", "run", "{{.inputs.n}}", *option).code == "OK"
    asked_for = {"id": {**UPLOAD_SCOPE, "name": f"later-{word}"}}

    def error() -> Any:
        return doors.by_grpc("GetExecution", asked_for).answer["closure"].get("error")

    assert "is not here" in until(error, PATIENCE_S, "it fails")["message"]
    assert doors.v1("GET", f"/v1/jobs?label=flyte/execution%3Dlater-{word}")["items"] == []


def test_a_task_takes_code_of_its_own_project(doors: Doors) -> None:
    address = upload_location(doors, "own.tar.gz", b"own code")
    assert put_file(address, b"own code").status == 200
    assert launched(doors, "owner", "run", "--additional-distribution", address.native_url).code == "OK"
    until(lambda: doors.v1("GET", "/v1/jobs?label=flyte/execution%3Downer")["items"], PATIENCE_S, "its job")
