"""Tasks that end in odd ways: each is told, and harms nobody else. The tasks are lines of shell, without flytekit."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flyteidl.core import errors_pb2, literals_pb2
from flyteidl.service import dataproxy_pb2

from tests.acceptance.flyte.flyte_site import DEV, PROJECT, FlyteSite, flyte_site, host_rule
from tests.acceptance.flyte.shell_tasks import HERE, INTEGER, an_id, closure_of, end_of, register
from tests.podman_service import IMAGE, podman_ready
from tests.processes import PATIENCE_S, until
from tests.programs import call
from tests.server.flyte_doors import ask_data_proxy, put_file, upload_location

pytestmark = [pytest.mark.xdist_group("flyte-bad-tasks"), pytest.mark.timeout(340)]  # each task starts flytekit
BOMB_BYTES = 64 * 2**20
FILE = {"blob": {"dimensionality": "SINGLE"}}


def encoded(message: Any) -> str:
    return base64.b64encode(message.SerializeToString()).decode()


def outputs(number: int) -> str:
    made = literals_pb2.LiteralMap()
    made.literals["o0"].scalar.primitive.integer = number
    return encoded(made)


def an_error(message: str, kind: Any = errors_pb2.ContainerError.NON_RECOVERABLE) -> str:
    return encoded(errors_pb2.ErrorDocument(error=errors_pb2.ContainerError(code="USER:X", message=message, kind=kind)))


GOOD = f"echo {outputs(7)} | base64 -d > $1/outputs.pb"
WRONG = f"echo {an_error('by hand')} | base64 -d > $1/error.pb"
# The script → the phase, and words of the error. `$1` is the folder of outputs, `$2` the file of inputs.
ENDS = {
    "good": (GOOD, "SUCCEEDED", ""),
    "exit 0 without outputs": ("true", "FAILED", "without outputs.pb"),
    "garbage": ("head -c 500 /dev/urandom > $1/outputs.pb; printf '\\377' >> $1/outputs.pb", "FAILED", "no message"),
    "exit 0 with an error": (f"{GOOD}; {WRONG}", "FAILED", "by hand"),
    "exit 3 with an error": (f"{WRONG}; exit 3", "FAILED", "by hand"),
    "exit 3": (f"{GOOD}; exit 3", "FAILED", "exit code 3"),
    "garbage as error": ("echo x > $1/error.pb", "FAILED", "error.pb is no message"),
    "one gigabyte": ("truncate -s 1G $1/outputs.pb", "FAILED", "outputs.pb has 1073741824 bytes; the most is"),
    "without its inputs": (f"rm -rf $2; {GOOD}", "SUCCEEDED", ""),
    "a link": ("ln -s /etc/passwd $1/outputs.pb", "FAILED", "without outputs.pb"),
    "a pipe": ("mkfifo $1/outputs.pb", "FAILED", "without outputs.pb"),
    "a folder": ("mkdir $1/outputs.pb", "FAILED", "without outputs.pb"),
    "a late writer": (f"{GOOD}; (sleep 1; {WRONG}) & true", "SUCCEEDED", ""),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlyteSite]:
    folder = tmp_path_factory.mktemp("site")
    (folder / "data").mkdir()
    (folder / "word").write_text("sesame")
    secret = {"group": "vault", "key": "word", "file": str(folder / "word"), "projects": ["other"]}
    own = {"key": "own", "file": str(folder / "word"), "projects": [PROJECT]}
    odd = {"group": "user-info", "key": "user_secret", "file": str(folder / "word")}
    sections = {"images": [host_rule()], "data": {"folder": str(folder / "data")}, "secrets": [secret, own, odd]}
    with flyte_site(folder, site=sections) as made:
        yield made


def start(site: FlyteSite, task: str, name: str, inputs: dict[str, Any] | None = None) -> Any:
    body = {**HERE, "name": name, "spec": {"launch_plan": an_id("TASK", task)}}
    return site.doors.by_grpc("CreateExecution", {**body, "inputs": {"literals": inputs or {}}})


def outputs_of(site: FlyteSite, name: str) -> dict[str, Any]:
    data = site.doors.by_grpc("GetExecutionData", {"id": {**HERE, "name": name}}).answer
    literals: dict[str, Any] = data["full_outputs"].get("literals", {})
    return literals


def test_ends_of_tasks(site: FlyteSite) -> None:
    """All at once: they cost little."""
    for number, (script, _, _) in enumerate(ENDS.values()):
        body = f"mkdir -p $1; {script}"
        register(site, f"ends.t{number}", ["sh", "-c", body, "task", "{{.outputPrefix}}", "{{.input}}"])
        assert start(site, f"ends.t{number}", f"ends-{number}").code == "OK"
    wrong = {}
    for number, (name, (_, phase, words)) in enumerate(ENDS.items()):
        closure = end_of(site, f"ends-{number}")
        message = closure.get("error", {}).get("message", "")
        if closure["phase"] != phase or words not in message:
            wrong[name] = (closure["phase"], message)
    assert wrong == {}
    good = list(ENDS).index("a late writer")
    assert outputs_of(site, f"ends-{good}")["o0"]["scalar"]["primitive"]["integer"] == "7"


def test_a_raw_container_reads_files_and_leaves_files(site: FlyteSite) -> None:
    """An uploaded file goes in, a file comes out, and a second container takes that."""
    config = {"enabled": True, "input_path": "/var/inputs", "output_path": "/var/outputs"}
    script = "tr a-z A-Z < /var/inputs/text > /var/outputs/loud; wc -c < /var/inputs/text > /var/outputs/size"
    variables = {"inputs": {"text": FILE, "n": INTEGER}, "outputs": {"loud": FILE, "size": INTEGER}}
    register(site, "raw.loud", ["sh", "-c", script], data_config=config, **variables)
    address = upload(site, b"hello", "text.txt")
    inputs = {"text": a_file(address), "n": {"scalar": {"primitive": {"integer": "1"}}}}
    assert start(site, "raw.loud", "raw-1", inputs).code == "OK"
    assert end_of(site, "raw-1")["phase"] == "SUCCEEDED", closure_of(site, "raw-1")
    found = outputs_of(site, "raw-1")
    assert found["size"]["scalar"]["primitive"]["integer"] == "5"
    loud = found["loud"]["scalar"]["blob"]["uri"]
    assert start(site, "raw.loud", "raw-2", {**inputs, "text": a_file(loud)}).code == "OK"
    assert end_of(site, "raw-2")["phase"] == "SUCCEEDED", closure_of(site, "raw-2")
    again = outputs_of(site, "raw-2")["loud"]["scalar"]["blob"]["uri"]
    assert download(site, again) == b"HELLO"


def test_a_raw_container_sees_its_own_paths(tmp_path: Path) -> None:
    """The script puts its paths together, so no word of the command has them: only the container's mounts do."""
    with podman_ready(tmp_path / "podman") as podman:
        sections = {"images": [{"match": "localhost/*", "run": "podman"}], "containers": {"pull": "never"}}
        with flyte_site(tmp_path, site=sections, environment=podman.environment) as site:
            config = {"enabled": True, "input_path": "/var/inputs", "output_path": "/var/outputs"}
            script = "p=/var; cat $p/inputs/n > $p/outputs/o0"
            container = {"image": IMAGE, "args": ["sh", "-c", script], "data_config": config}
            register(site, "raw.podman", [], inputs={"n": INTEGER}, container=container)
            assert (
                start(site, "raw.podman", "in-podman", {"n": {"scalar": {"primitive": {"integer": "7"}}}}).code == "OK"
            )
            assert end_of(site, "in-podman")["phase"] == "SUCCEEDED", closure_of(site, "in-podman")
            assert outputs_of(site, "in-podman")["o0"]["scalar"]["primitive"]["integer"] == "7"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo no luck > /var/outputs/_ERROR", "no luck"),
        ("true", "left no file for the output size"),
        ("echo x > /var/outputs/size", "is not of its type INTEGER"),
        ("truncate -s 1G /var/outputs/size", "the output size has 1GiB"),
        ("mkdir /var/outputs/size", "is no plain file"),
        ("exit 3", "exit code 3"),
    ],
)
def test_raw_containers_that_fail(site: FlyteSite, script: str, words: str) -> None:
    config = {"enabled": True, "input_path": "/var/inputs", "output_path": "/var/outputs"}
    name = f"bad-{hashlib.sha256(script.encode()).hexdigest()[:8]}"
    register(site, f"raw.{name}", ["sh", "-c", script], data_config=config, outputs={"size": INTEGER})
    assert start(site, f"raw.{name}", name).code == "OK"
    closure = end_of(site, name)
    assert closure["phase"] == "FAILED"
    assert words in closure["error"]["message"]


def test_secrets_by_the_rules_of_the_site(site: FlyteSite) -> None:
    """The task tells what it got by its exit code: the value is in no answer."""
    reads = 'test "$_FSEC_OWN" = sesame && test "$(cat $FLYTE_SECRETS_DEFAULT_DIR/own)" = sesame'
    script = f"{reads} && test ! -e .switchyard/env"
    security = {"secrets": [{"key": "own"}]}
    register(site, "secret.own", ["sh", "-c", script], outputs={}, security_context=security)
    assert start(site, "secret.own", "secret-own").code == "OK"
    assert end_of(site, "secret-own")["phase"] == "SUCCEEDED", closure_of(site, "secret-own")
    # No shell can set or read these; the kernel shows what the program was started with.
    odd = ("_FSEC_USER-INFO_USER_SECRET=sesame", "task.word=two words")
    script = "; ".join(["set -e", *(f"tr '\\0' '\\n' </proc/$$/environ | grep -qxF '{pair}'" for pair in odd)])
    security = {"secrets": [{"group": "user-info", "key": "user_secret"}]}
    env = [{"key": "task.word", "value": "two words"}]
    register(site, "secret.odd", ["sh", "-c", script], outputs={}, security_context=security, env=env)
    assert start(site, "secret.odd", "secret-odd").code == "OK"
    assert end_of(site, "secret-odd")["phase"] == "SUCCEEDED", closure_of(site, "secret-odd")
    for group, key, words in (
        ("vault", "word", f"jobs of the project {PROJECT} may not have the secret vault/word"),
        ("", "absent", "does not have the secret absent"),
    ):
        task = f"secret.{key}"
        register(site, task, ["true"], outputs={}, security_context={"secrets": [{"group": group, "key": key}]})
        refused = start(site, task, f"secret-{key}")
        assert (refused.code, words in refused.message) == ("INVALID_ARGUMENT", True), refused


def test_places_for_data_that_no_cluster_has(site: FlyteSite) -> None:
    register(site, "data.any", ["true"], outputs={})
    for prefix, words in (
        ("s3://bucket/x", "its site file names no store for data at s3://bucket/x"),
        ("/elsewhere", "its folder for data is"),
    ):
        place = {"raw_output_data_config": {"output_location_prefix": prefix}}
        body = {**HERE, "spec": {"launch_plan": an_id("TASK", "data.any"), **place}}
        refused = site.doors.by_grpc("CreateExecution", body)
        assert (refused.code, words in refused.message) == ("INVALID_ARGUMENT", True), refused


def test_a_pod_task_is_refused_where_no_cluster_is_kubernetes(site: FlyteSite) -> None:
    pod = {"containers": [{"name": "primary", "image": "team/shell:1", "args": ["true"]}]}
    for name, spec, code, words in (
        ("pod.whole", pod, "INVALID_ARGUMENT", "c1: it is no Kubernetes cluster, and the job is a pod"),
        (
            "pod.odd",
            {"containers": []},
            "UNIMPLEMENTED",
            "pod.odd is a pod, and its pod has no container 'primary'",
        ),
    ):
        template = {
            "id": an_id("TASK", name),
            "type": "sidecar",
            "metadata": {"runtime": {"type": "FLYTE_SDK", "version": "1"}},
            "interface": {},
            "k8s_pod": {"pod_spec": spec},
            "config": {"primary_container_name": "primary"},
        }
        said = site.doors.by_grpc("CreateTask", {"id": template["id"], "spec": {"template": template}})
        assert said.code == "OK", said
        refused = start(site, name, "")
        assert (refused.code, words in refused.message) == (code, True), refused


def test_files_of_others_are_no_inputs(site: FlyteSite) -> None:
    register(site, "files.takes", ["true"], inputs={"text": FILE}, outputs={})
    for address in (
        "switchyard://default/development/ABC/x.txt",
        f"switchyard://{PROJECT}/{DEV}/ABC/absent.txt",
        f"switchyard://{PROJECT}/production/ABC/x.txt",
    ):
        refused = start(site, "files.takes", "", {"text": a_file(address)})
        assert (refused.code, "There is no file" in refused.message) == ("INVALID_ARGUMENT", True), refused


def test_an_uploaded_file_that_is_passed_on_stays_readable(site: FlyteSite) -> None:
    """The task sees a path in its folder; the output names the file for all others."""
    script = 'test "$(cat flyte-io/files/0/note.txt)" = hello && mkdir -p $1 && cat $2 > $1/outputs.pb'
    args = ["sh", "-c", script, "task", "{{.outputPrefix}}", "{{.input}}"]
    register(site, "files.same", args, inputs={"text": FILE}, outputs={"text": FILE})
    address = upload(site, b"hello", "note.txt")
    assert start(site, "files.same", "passed-on", {"text": a_file(address)}).code == "OK"
    assert end_of(site, "passed-on")["phase"] == "SUCCEEDED", closure_of(site, "passed-on")
    assert outputs_of(site, "passed-on")["text"]["scalar"]["blob"]["uri"] == address


def test_a_bundle_that_leaves_its_folder_writes_nowhere_else(site: FlyteSite) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in ("../escaped", "../../../../../../../../../../tmp/yard-escaped"):
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"evil"))
    address = upload(site, buffer.getvalue(), "fast.tar.gz")
    args = ["pyflyte-fast-execute", "--additional-distribution", address, "--dest-dir", "/root", "--", "true"]
    register(site, "bundle.evil", args, outputs={})
    assert start(site, "bundle.evil", "bundle-evil").code == "OK"
    assert end_of(site, "bundle-evil")["phase"] == "FAILED"
    assert list(site.folder.rglob("escaped")) == []
    assert not Path("/tmp/yard-escaped").exists()


def test_a_bundle_that_grows_a_thousandfold_fills_only_the_folder_of_its_job(site: FlyteSite) -> None:
    """The server keeps the bundle as it came, and nobody but the task unpacks it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        member = tarfile.TarInfo("bomb")
        member.size = BOMB_BYTES
        tar.addfile(member, Zeros())
    assert len(buffer.getvalue()) < BOMB_BYTES / 500
    address = upload(site, buffer.getvalue(), "fast.tar.gz")
    args = ["pyflyte-fast-execute", "--additional-distribution", address, "--dest-dir", "/root", "--", "true"]
    register(site, "bundle.bomb", args, outputs={})
    assert start(site, "bundle.bomb", "bundle-bomb").code == "OK"
    assert end_of(site, "bundle-bomb")["phase"] in ("SUCCEEDED", "FAILED")
    until(lambda: list(site.folder.rglob("bomb")) == [], PATIENCE_S, "it is gone with the folder of its job")


class Zeros(io.RawIOBase):
    def read(self, size: int = -1) -> bytes:
        return bytes(size)


def a_file(address: str) -> dict[str, Any]:
    return {"scalar": {"blob": {"uri": address, "metadata": {"type": {"dimensionality": "SINGLE"}}}}}


def upload(site: FlyteSite, content: bytes, name: str) -> str:
    address = upload_location(site.doors, name, content, **HERE)
    assert put_file(address, content).status == 200
    return str(address.native_url)


def download(site: FlyteSite, address: str) -> bytes:
    request = dataproxy_pb2.CreateDownloadLocationRequest(native_url=address)
    return call("GET", ask_data_proxy(site.doors, "CreateDownloadLocation", request).signed_url).body
