"""A job's image on a site: rules of the site file, the runtimes' command lines row by row, and how containers end."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from switchyard.agent.backends.shared.containers import (
    ContainerAccount,
    ContainerFolders,
    ContainerJob,
    ContainerLimits,
    apptainer_command,
    apptainer_variables,
    container_command,
    variables_text,
)
from switchyard.agent.loop.clock import Stamp
from switchyard.agent.site.images import graph_with_images, image_offers, rule_of
from switchyard.agent.site.site import ContainerGpus, ContainersSite, ImagePull, ImageRule, Site, read_site
from switchyard.errors import Malformed, PolicyRefused
from switchyard.features.doctor.agent.doctor import check_images
from switchyard.features.local.agent.jobdir import ExitRecord
from switchyard.features.local.agent.launch import start_files
from switchyard.features.local.agent.local_status import container_end
from switchyard.model.job.image_rules import ImageRun
from switchyard.model.job.retry import Cause
from tests.agent.builders import a_graph, a_lease, a_setting

SITE = """\
images:
  - {match: "ghcr.io/team/*", run: podman}
  - {match: "*/evil*", run: refuse}
  - {match: "host/*", run: host, path: /opt/tools}
containers: {pull: never, mounts: ["/data:ro", "/srv/x:/x"], gpus: nvidia}
"""


def a_site(tmp_path: Path, text: str) -> Site:
    file = tmp_path / "site.yaml"
    file.write_text(text)
    return read_site(file)


def test_the_site_file_has_rules_and_what_containers_get(tmp_path: Path) -> None:
    site = a_site(tmp_path, SITE)
    assert [rule.run for rule in site.images] == [ImageRun.PODMAN, ImageRun.REFUSE, ImageRun.HOST]
    assert rule_of("ghcr.io/team/sim:7", site).match == "ghcr.io/team/*"
    assert rule_of("host/evil", Site(images=[ImageRule("*", ImageRun.HOST)])).run is ImageRun.HOST
    assert site.containers == ContainersSite(
        pull=ImagePull.NEVER, mounts=["/data:ro", "/srv/x:/x"], gpus=ContainerGpus.NVIDIA
    )
    for image, reason in (("x/evil", "refuses the image x/evil (rule */evil*"), ("other", "No rule of this site")):
        with pytest.raises(PolicyRefused) as caught:
            rule_of(image, site)
        assert reason in caught.value.detail


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("containers: ignore", "`containers: ignore` is no longer known: the rules for images are under `images`"),
        ('images: [{match: "*", run: singularity}]', "singularity"),
        ('images: [{match: "", run: host}]', "match"),
        ("images: [{run: host}]", "match"),
        ('images: [{match: "*"}]', "run"),
        ('images: [{match: "*", run: podman, path: /opt}]', "path: only `run: host` has one"),
        ('images: [{match: "*", run: host, path: opt}]', "path"),
        ('images: [{match: "*", run: host, path: "/a:/b"}]', "path: one folder"),
        ("images: host", "images"),
        ("containers: {pull: sometimes}", "pull"),
        ('containers: {mounts: ["data"]}', "mounts"),
        ('containers: {mounts: ["/data:/x:z"]}', "mounts"),
        ('containers: {mounts: ["/data,ro"]}', "mounts"),
        ("containers: {network: host}", "network"),
    ],
)
def test_a_wrong_site_file_names_the_key(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(Malformed) as caught:
        a_site(tmp_path, text)
    assert problem in caught.value.detail


def test_the_old_word_is_answered_by_the_new_one(tmp_path: Path) -> None:
    with pytest.raises(Malformed) as caught:
        a_site(tmp_path, "containers: ignore")
    assert 'images: [{match: "*", run: host}]' in caught.value.next_step


def test_a_machine_without_the_runtime_says_so(tmp_path: Path) -> None:
    tool = tmp_path / "podman"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    rules = [
        ImageRule("a", ImageRun.PODMAN),
        ImageRule("b", ImageRun.DOCKER),
        ImageRule("c", ImageRun.HOST, path=str(tmp_path)),
        ImageRule("d", ImageRun.HOST, path=str(tmp_path / "gone")),
        ImageRule("e", ImageRun.REFUSE),
    ]
    images = graph_with_images(a_graph(), Site(images=rules), {"PATH": str(tmp_path)}).images
    assert images is not None
    problems = {offer.match: offer.problem.rpartition(" on ")[0] for offer in images if offer.problem}
    assert problems == {"b": "docker is not installed", "d": f"there is no folder {tmp_path / 'gone'}"}
    # Slurm's nodes are not this machine: there the rule counts as it stands.
    assert not any(offer.problem for offer in image_offers(Site(images=rules)))
    assert graph_with_images(a_graph(), Site(), {}).images == ()
    findings = check_images(Site(images=rules), "local", {"PATH": str(tmp_path)})
    assert [finding.detail.partition(":")[0] for finding in findings if not finding.is_ok] == ["b", "d"]
    assert [finding.is_ok for finding in check_images(Site(images=rules[:1]), "local", {"PATH": str(tmp_path)})] == [
        True
    ]
    assert check_images(Site(images=rules), "slurm", {}) == check_images(Site(), "local", {}) == []


def a_container(**fields: Any) -> ContainerJob:
    defaults: dict[str, Any] = {
        "name": "yard-1-1-1",
        "image": "ghcr.io/team/sim:7",
        "command": ("sim", "--fast"),
        "home": "/w",
        "workdir": "/w",
        "uid": 1000,
        "gid": 100,
    }
    plain = defaults | fields
    parts: dict[str, Any] = {
        part: kind(**{field.name: plain.pop(field.name) for field in dataclasses.fields(kind) if field.name in plain})
        for part, kind in (
            ("folders", ContainerFolders),
            ("account", ContainerAccount),
            ("limits", ContainerLimits),
        )
    }
    return ContainerJob(**plain, **parts)


def options(words: list[str]) -> dict[str, list[str]]:
    """The options of a command line, up to the entry point."""
    found: dict[str, list[str]] = {}
    for name, value in zip(words[2::2], words[3::2], strict=False):
        found.setdefault(name, []).append(value)
        if name == "--entrypoint":
            break
    return found


def test_the_whole_command_line_of_podman() -> None:
    assert container_command("podman", a_container(), ContainersSite()) == [
        *("podman", "run", "--name", "yard-1-1-1", "--user", "1000:100", "--workdir", "/w", "--volume", "/w:/w:rw"),
        *("--log-driver", "none", "--stop-timeout", "0", "--security-opt", "label=disable", "--pull", "missing"),
        *("--entrypoint", "sim", "ghcr.io/team/sim:7", "--fast"),
    ]


@pytest.mark.parametrize(
    ("job", "site", "given"),
    [
        ({"groups": (5, 6)}, {}, {"--group-add": ["5", "6"]}),
        ({"is_rootless": True}, {}, {"--userns": ["keep-id"]}),
        (
            {"is_mapped": True},
            {},
            {"--cap-drop": ["all"], "--security-opt": ["no-new-privileges", "label=disable"]},
        ),
        ({"workdir": "/in/the/image"}, {}, {"--workdir": ["/in/the/image"], "--volume": ["/w:/w:rw"]}),
        ({"mounts": {"/var/in": "io/in"}}, {}, {}),  # the supervisor mounts them
        ({"memory_bytes": 1024}, {}, {"--memory": ["1024b"]}),
        ({"cpus": 2.0}, {}, {"--cpus": ["2"]}),
        ({"cpus": 0.5}, {}, {"--cpus": ["0.5"]}),
        ({"variables_file": "/j/container.env"}, {}, {"--env-file": ["/j/container.env"]}),
        (
            {},
            {"mounts": ["/data", "/ro:ro", "/s:/d", "/s:/d:ro"]},
            {"--volume": ["/w:/w:rw", "/data:/data:rw", "/ro:/ro:ro", "/s:/d", "/s:/d:ro"]},
        ),
        ({}, {"pull": ImagePull.ALWAYS}, {"--pull": ["always"]}),
        ({"gpus": 1}, {"gpus": ContainerGpus.NVIDIA}, {"--device": ["nvidia.com/gpu=all"]}),
        ({"gpus": 1}, {"gpus": ContainerGpus.AMD}, {"--device": ["/dev/kfd", "/dev/dri"]}),
        ({}, {"gpus": ContainerGpus.NVIDIA}, {}),  # only for jobs that ask for GPUs
    ],
)
def test_a_job_and_a_site_give_these_options(job: dict[str, Any], site: dict[str, Any], given: dict[str, Any]) -> None:
    plain = options(container_command("podman", a_container(), ContainersSite()))
    assert options(container_command("podman", a_container(**job), ContainersSite(**site))) == plain | given


def test_docker_differs_in_gpus_and_has_no_user_namespace_of_its_own() -> None:
    words = container_command(
        "docker", a_container(gpus=2, is_rootless=True), ContainersSite(gpus=ContainerGpus.NVIDIA)
    )
    assert words[0] == "docker"
    assert options(words)["--gpus"] == ["all"]
    assert "--userns" not in words


IMAGES = ["busybox", "busybox:1", "localhost/a/b:x", "r.io:5000/a", "a@sha256:" + "0" * 64, "r.io:5000/a:1"]


@pytest.mark.parametrize("image", IMAGES)
def test_usual_images_are_taken_as_they_are(image: str) -> None:
    assert image in container_command("podman", a_container(image=image), ContainersSite())
    assert f"docker://{image}" in apptainer_command(a_container(image=image), ContainersSite())


@pytest.mark.parametrize(
    "image",
    [
        "-v",
        "--privileged",
        "dir:/etc",
        "dir:x",
        "oci:/x:1",
        "docker-archive:/x",
        "docker://x",
        "/x",
        "../x",
        "a b",
        "a\nb",
    ],
)
def test_no_image_is_an_option_or_a_file_of_the_host(image: str) -> None:
    with pytest.raises(PolicyRefused, match="NAME"):
        container_command("podman", a_container(image=image), ContainersSite())


def test_apptainer_gets_variables_under_other_names() -> None:
    job = a_container(image="/images/sim.sif", gpus=1, workdir="/elsewhere")
    assert apptainer_command(job, ContainersSite(mounts=["/data:ro"], gpus=ContainerGpus.NVIDIA)) == [
        *("apptainer", "exec", "--pwd", "/elsewhere", "--home", "/w", "--cleanenv", "--no-eval"),
        *("--bind", "/data:/data:ro", "--nv", "/images/sim.sif", "sim", "--fast"),
    ]
    # Its documentation: HOME cannot be set so.
    variables = {"A": "1", "PATH": "/x", "HOME": "/w"}
    assert apptainer_variables(variables) == {"APPTAINERENV_A": "1", "APPTAINERENV_PATH": "/x"}
    with pytest.raises(PolicyRefused, match="apptainer runs"):
        apptainer_command(a_container(image="--bind=/"), ContainersSite())
    with pytest.raises(PolicyRefused, match="colon"):
        apptainer_command(a_container(home="/w:/etc"), ContainersSite())


@pytest.mark.parametrize("command", [lambda j, s: container_command("podman", j, s), apptainer_command])
def test_gpus_are_refused_where_containers_get_none(command: Any) -> None:
    with pytest.raises(PolicyRefused, match="asks for GPUs"):
        command(a_container(gpus=1), ContainersSite())


def test_a_file_of_variables_has_them_all_or_the_job_is_refused() -> None:
    assert variables_text("podman", {"A": "1 2", "EMPTY": "", "A-B.c": "#"}) == b"A=1 2\nEMPTY=\nA-B.c=#\n"
    for name, value, why in (
        ("LINES", "x\ny", "several lines"),
        ("RETURN", "x\r", "several lines"),
        ("#C", "1", "begins with #"),
        ("A B", "1", "has a blank"),
        ("LONG", "x" * 70_000, "has 70006 bytes"),
    ):
        with pytest.raises(PolicyRefused) as refused:
            variables_text("podman", {"A": "1", name: value})
        assert name in refused.value.detail
        assert why in refused.value.detail


def test_the_client_of_a_runtime_gets_no_variable_of_the_job(tmp_path: Path) -> None:
    """It may run as root: PATH or LD_PRELOAD of a job would be root's."""
    site = Site(images=[ImageRule("*", ImageRun.PODMAN)])
    lease = a_lease("env", image="busybox", env={"PATH": "/evil", "LD_PRELOAD": "/evil.so", "CONTAINERS_CONF": "/evil"})
    files = start_files(lease, tmp_path, a_setting(tmp_path, site=site), None, directory=tmp_path)
    environment = [word for word in files.words if word.startswith(b"env=")]
    assert not any(b"evil" in word or b"SWITCHYARD" in word for word in environment)
    assert files.variables is not None
    assert b"LD_PRELOAD=/evil.so\n" in files.variables
    assert any(word.startswith(b"cleanup=") for word in files.words)
    assert not any(word.startswith((b"data_bytes=", b"uid=")) for word in files.words)


def test_on_the_host_the_rules_folder_goes_before_path(tmp_path: Path) -> None:
    site = Site(images=[ImageRule("*", ImageRun.HOST, path="/opt/tools")])
    lease = a_lease("env", image="busybox", env={"PATH": "/mine"})
    files = start_files(lease, tmp_path, a_setting(tmp_path, site=site), None, directory=tmp_path)
    assert b"env=PATH=/opt/tools:/mine" in files.words
    assert files.variables is None


STARTED, NEVER = "2026-01-02 03:04:05 +0000 UTC", "0001-01-01 00:00:00 +0000 UTC"


@pytest.mark.parametrize(
    ("code", "signal", "container", "expected"),
    [
        (0, None, f"{STARTED}|0|false", ("exit", 0, None, Cause.JOB)),
        (7, None, f"{STARTED}|7|false", ("exit", 7, None, Cause.JOB)),
        (125, None, f"{STARTED}|125|false", ("exit", 125, None, Cause.JOB)),  # the command's own
        (127, None, f"{STARTED}|127|false", ("exit", 127, None, Cause.JOB)),
        (125, None, "", ("start", None, None, Cause.CLUSTER)),  # no image: there is no container
        (126, None, f"{NEVER}|126|false", ("start", 126, None, Cause.JOB)),
        (127, None, f"{NEVER}|127|false", ("start", 127, None, Cause.JOB)),
        (127, None, "0001-01-01T00:00:00Z|127|false", ("start", 127, None, Cause.JOB)),  # as docker says it
        (137, None, f"{STARTED}|137|false", ("exit", None, 9, Cause.JOB)),
        (143, None, f"{STARTED}|143|false", ("exit", None, 15, Cause.JOB)),
        (137, None, f"{STARTED}|137|true", ("exit", None, 9, Cause.JOB)),
        (200, None, f"{STARTED}|200|false", ("exit", 200, None, Cause.JOB)),
        (None, 9, f"{STARTED}|0|false", ("exit", None, 9, Cause.JOB)),  # the client was killed
        (None, 9, "", ("exit", None, 9, Cause.JOB)),
        (5, None, "", ("exit", 5, None, Cause.JOB)),  # no code of a runtime's own
    ],
)
def test_the_runtimes_own_codes_are_told_from_the_commands(
    code: int | None, signal: int | None, container: str, expected: tuple[str, int | None, int | None, Cause]
) -> None:
    record = ExitRecord("exit", code, signal, "", 0, Stamp("", 0), container=container)
    end, cause = container_end(record, last_words="Error: no such image")
    assert (end.cause, end.code, end.signal, cause) == expected
    assert ("no such image" in end.reason) == (end.cause == "start")
    assert ("memory" in end.reason) == container.endswith("|true")


def test_a_kill_under_a_memory_limit_says_what_it_may_mean() -> None:
    record = ExitRecord("exit", 137, None, "", 0, Stamp("", 0), container=f"{STARTED}|137|false")
    end, _ = container_end(record, last_words="", memory_bytes=2**25)
    assert (end.signal, end.reason) == (9, "perhaps it used more memory than its 32MiB")


def test_a_runtime_that_does_not_answer_proves_nothing() -> None:
    record = ExitRecord("exit", 125, None, "", 0, Stamp("", 0), container="", is_container_left=True)
    end, cause = container_end(record, last_words="Error: no daemon")
    assert (end.cause, end.code, cause) == ("doubt", 125, Cause.CLUSTER)  # it is told, and not run again
    assert end.reason.endswith("the container's runtime does not answer: Error: no daemon")
