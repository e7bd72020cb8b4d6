"""Data of Flyte's tasks, by unmodified flytekit: files, directories, pickled values, checkpoints and secrets.

Once in a folder of the cluster, once in a bucket of a real S3 server.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.flyte.flyte_site import DEV, PROJECT, RUNS_S, FlyteSite, difference, flyte_site, host_rule
from tests.acceptance.flyte.shell_flows import ended, good, start
from tests.processes import free_port
from tests.programs import call
from tests.s3_service import REGION, S3Server, s3_running
from tests.soak import SOAKED
from tests.workflow.corpus import FOLDER

pytestmark = [pytest.mark.xdist_group("flyte-data"), pytest.mark.timeout(340)]  # each task starts flytekit
MODULES = ("21_files", "22_shell", "25_types", "28_context")
# Timeouts are in test_flyte_maps.py, containers in test_flyte_bad_tasks.py, and checkpoints below, in a bucket.
MORE_MODULES = ("17_timeout", "23_container", "27_checkpoint")
BUCKET_MODULES = ("21_files", "27_checkpoint")
MORE_BUCKET_MODULES = ("25_types",)
SECRET = "sesame"
DEBIAN_RULE = {"match": "debian:*", "run": "host"}


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_running() as server:
        yield server


def secret_rule(folder: Path, **more: Any) -> dict[str, Any]:
    file = folder / "vault-word"
    file.write_text(f"{SECRET}\n")
    return {"group": "vault", "key": "word", "file": str(file), **more}


def check_corpus(
    site: FlyteSite,
    modules: tuple[str, ...],
    *own: str,
    environment: dict[str, str] | None = None,
) -> None:
    """`own`: further modules, which are in the folder already."""
    for module in modules:
        shutil.copy(FOLDER / f"{module}.py", site.folder / "flows")
    site.register(bundle=False)
    results = site.run(*modules, *own, environment=environment)
    assert [wrong for found in results if (wrong := difference(found))] == []


# Files that only a data class names, and files of tasks that are known when they run.
HIDDEN_FILES = """
from dataclasses import dataclass

from flytekit import dynamic, task, workflow
from flytekit.types.file import FlyteFile


@dataclass
class Report:
    file: FlyteFile
    size: int


@task
def write(n: int) -> Report:
    with open("report", "w") as out:
        out.write("x" * n)
    return Report(FlyteFile("report"), n)


@task
def count(report: Report) -> int:
    with open(report.file) as file:
        return len(file.read()) + report.size


@task
def write_file(n: int) -> FlyteFile:
    with open("file", "w") as out:
        out.write("x" * n)
    return FlyteFile("file")


@task
def size(file: FlyteFile) -> int:
    with open(file) as stream:
        return len(stream.read())


@dynamic
def made(n: int) -> int:
    return size(file=write_file(n=n))


@workflow
def in_a_class(n: int) -> int:
    return count(report=write(n=n))


@workflow
def in_a_dynamic(n: int) -> int:
    return made(n=n)


CASES = [
    {"run": "in_a_class", "inputs": {"n": 3}, "phase": "SUCCEEDED", "outputs": {"o0": 6}},
    {"run": "in_a_dynamic", "inputs": {"n": 4}, "phase": "SUCCEEDED", "outputs": {"o0": 4}},
]
"""


def places(root: Path) -> list[tuple[str, ...]]:
    """The folders of attempts below a place for data: project, domain, execution, node and attempt, job and fence."""
    return [path.relative_to(root).parts for path in root.glob("*/*/*/*/*")]


@pytest.mark.parametrize("modules", [MODULES, SOAKED((*MODULES, *MORE_MODULES))], ids=["often", "soaked"])
def test_data_in_a_folder_of_the_cluster(tmp_path: Path, modules: tuple[str, ...]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    site_file = {
        "data": {"folder": str(data)},
        "secrets": [secret_rule(tmp_path)],
        "images": [host_rule(), DEBIAN_RULE],
    }
    with flyte_site(tmp_path, site=site_file) as site:
        (site.folder / "flows" / "hidden_files.py").write_text(HIDDEN_FILES)
        check_corpus(site, modules, "hidden_files")
        assert {place[:2] for place in places(data)} == {(PROJECT, DEV)}
        assert len(places(data)) == len(set(places(data)))
        refuse_secret_in(site)
        assert "facts" in deck_of(site, "28_context.wf"), "what the task showed"


def deck_of(site: FlyteSite, workflow: str) -> str:
    """The deck of the first node of an execution of this workflow, by a link of each kind."""
    asked = {"id": {"project": PROJECT, "domain": DEV}, "limit": 1, "filters": f"eq(workflow.name,{workflow})"}
    (execution,) = site.doors.by_grpc("ListExecutions", asked).answer["executions"]
    node = {"execution_id": execution["id"], "node_id": "n0"}
    closure = site.doors.by_grpc("GetNodeExecution", {"id": node}).answer["closure"]
    assert closure["deck_uri"] == f"flyte://v1/{PROJECT}/{DEV}/{execution['id']['name']}/n0/d"
    linked = {"artifact_type": "ARTIFACT_TYPE_DECK", "node_execution_id": node}
    (address,) = site.doors.by_grpc("CreateDownloadLink", linked).answer["signed_url"]
    named = {"flyte_url": f"flyte://v1/{PROJECT}/{DEV}/{execution['id']['name']}/n0/0/d"}
    (other,) = site.doors.by_rest("GetData", named).answer["pre_signed_urls"]["signed_url"]
    pages = {call("GET", one).body.decode() for one in (address, other)}
    assert len(pages) == 1
    return pages.pop()


def refuse_secret_in(site: FlyteSite) -> None:
    """The value of the secret is in no file but the one that the site file names, and in no answer."""
    for job in site.doors.v1("GET", "/v1/jobs?limit=500")["items"]:
        assert SECRET not in str(site.doors.v1("GET", f"/v1/jobs/{job['id']}"))
    assert SECRET not in site.server.log + site.agent.log


@pytest.mark.parametrize("modules", [BUCKET_MODULES, SOAKED(MORE_BUCKET_MODULES)], ids=["often", "soaked"])
def test_data_in_a_bucket(tmp_path: Path, s3: S3Server, modules: tuple[str, ...]) -> None:
    bucket = s3.create_bucket()
    key_file = tmp_path / "key"
    key_file.write_text(s3.secret_key)
    variables = {
        "FLYTE_AWS_ENDPOINT": {"value": s3.endpoint},
        "FLYTE_AWS_ACCESS_KEY_ID": {"value": s3.access_key},
        "FLYTE_AWS_SECRET_ACCESS_KEY": {"file": str(key_file)},
        "AWS_DEFAULT_REGION": {"value": REGION},
    }
    store = {"prefix": f"s3://{bucket}", "projects": [PROJECT], "variables": variables}
    config = {"execution_config": {"raw_output_data_config": {"output_location_prefix": f"s3://{bucket}/flyte"}}}
    with flyte_site(tmp_path, site={"data": {"stores": [store]}}, config=config) as site:
        client = {**s3.credentials, "AWS_ENDPOINT_URL": s3.endpoint, "AWS_DEFAULT_REGION": REGION}
        check_corpus(site, modules, environment=client)
        assert {place[:2] for place in places(s3.buckets / bucket / "flyte")} == {(PROJECT, DEV)}
        for job in site.doors.v1("GET", "/v1/jobs?limit=500")["items"]:
            assert s3.secret_key not in str(site.doors.v1("GET", f"/v1/jobs/{job['id']}"))
        assert s3.secret_key not in site.server.log + site.agent.log


STORE_FLOW = """
import os

from flytekit import task, workflow
from flytekit.types.file import FlyteFile


@task
def leave() -> FlyteFile:
    with open("left.txt", "w") as out:
        out.write("left")
    return FlyteFile("left.txt")


@workflow
def wf() -> FlyteFile:
    return leave()
"""


def test_data_at_a_store_that_refuses_or_is_away(tmp_path: Path, s3: S3Server) -> None:
    """The execution fails with what the store said to the task."""
    bucket = s3.create_bucket()
    values = {
        "FLYTE_AWS_ACCESS_KEY_ID": s3.access_key,
        "FLYTE_AWS_SECRET_ACCESS_KEY": "wrong",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_MAX_ATTEMPTS": "1",
    }
    stores = []
    for word, endpoint in (("refused", s3.endpoint), ("away", f"http://127.0.0.1:{free_port()}")):
        variables = {name: {"value": value} for name, value in {**values, "FLYTE_AWS_ENDPOINT": endpoint}.items()}
        stores.append({"prefix": f"s3://{bucket}/{word}", "variables": variables})
    with flyte_site(tmp_path, site={"data": {"stores": stores}}) as site:
        (tmp_path / "flows/store.py").write_text(STORE_FLOW)
        site.register()
        for word in ("refused", "away"):
            place = {"raw_output_data_config": {"output_location_prefix": f"s3://{bucket}/{word}"}}
            good(start(site, word, "store.wf", **place))
        for word, words in (("refused", "signature"), ("away", "endpoint")):
            over = ended(site, word, RUNS_S)
            assert (over["phase"], words in over["error"]["message"]) == ("FAILED", True), over
        assert s3.secret_key not in site.server.log + site.agent.log
