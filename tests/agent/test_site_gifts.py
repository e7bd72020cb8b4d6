"""What a site file gives to an attempt: credentials of stores and secrets, as files of the job's folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from switchyard.agent.site.site import Site, site_type
from switchyard.agent.site.site_gifts import site_gifts, site_offer
from switchyard.errors import PolicyRefused
from switchyard.features.flyte.workflow.tasks.task_command import RUN
from switchyard.model.cluster.poll import Lease
from switchyard.model.files.files import JobFiles
from switchyard.model.job.job import JobSpec
from switchyard.model.job.site_needs import SecretNeed, SiteNeeds, role_note

AGENT = {"AGENT_WORD": "it's $HOME"}


def a_site(folder: Path, **more: Any) -> Site:
    (folder / "key").write_text("two\nlines\n")
    store = {
        "prefix": "s3://bucket",
        "projects": ["kit"],
        "variables": {
            "FLYTE_AWS_ENDPOINT": {"value": "http://x"},
            "FLYTE_AWS_SECRET_ACCESS_KEY": {"env": "AGENT_WORD"},
        },
    }
    values = {
        "data": {"folder": "/shared", "stores": [store]},
        "secrets": [
            {"group": "vault", "key": "word", "file": str(folder / "key")},
            {"key": "Token", "env": "AGENT_WORD", "projects": ["kit"]},
            {"key": "gone", "file": str(folder / "nothing")},
            {"key": "unset", "env": "AGENT_NOTHING"},
            {"group": "user-info", "key": "user.word", "env": "AGENT_WORD"},
        ],
        **more,
    }
    return msgspec.convert(values, site_type())


def a_lease(needs: SiteNeeds | None, project: str = "kit") -> Lease:
    spec = JobSpec(["true"], files=JobFiles(), site=needs)
    return Lease(job="J", attempt=1, fence=1, name="n", owner="o", project=project, domain="d", spec=spec)


def variables(text: bytes, folder: Path, *names: str) -> list[str]:
    """The variables as a shell reads them."""
    (folder / "env").write_bytes(text)
    script = f'. {folder / "env"}; for n; do eval "printf \'%s|\' \\"\\${{$n-unset}}\\""; done'
    done = subprocess.run(["/bin/sh", "-c", script, "sh", *names], capture_output=True, text=True, check=True)
    return done.stdout.split("|")[:-1]


def test_a_job_without_needs_gets_nothing(tmp_path: Path) -> None:
    assert site_gifts(a_lease(None), a_site(tmp_path), AGENT, tmp_path) == {}


def test_a_job_gets_the_variables_of_its_store_and_its_secrets_alone(tmp_path: Path) -> None:
    needs = SiteNeeds(
        data="s3://bucket/x",
        secrets=(SecretNeed("word", "vault", as_file=True), SecretNeed("Token", variable="PLAIN")),
    )
    gifts = site_gifts(a_lease(needs), a_site(tmp_path), AGENT, tmp_path)
    text = gifts.pop((b".switchyard", b"env"))
    assert gifts == {
        (b".switchyard", b"secrets", b"vault", b"word"): b"two\nlines",
        (b".switchyard", b"secrets", b"token"): b"it's $HOME",
    }
    names = ("FLYTE_AWS_ENDPOINT", "FLYTE_AWS_SECRET_ACCESS_KEY", "_FSEC_TOKEN", "PLAIN", "_FSEC_VAULT_WORD")
    assert variables(text, tmp_path, *names) == ["http://x", "it's $HOME", "it's $HOME", "it's $HOME", "unset"]
    assert variables(text, tmp_path, "FLYTE_SECRETS_DEFAULT_DIR") == [f"{tmp_path}/.switchyard/secrets"]


@pytest.mark.parametrize("has_python", [True, False])
def test_a_secret_with_a_hyphen_in_its_name_reaches_the_command(tmp_path: Path, has_python: bool) -> None:
    """A shell cannot set such a variable. The words of the command and its other variables stay as they are."""
    lease = a_lease(SiteNeeds(secrets=(SecretNeed("user.word", "user-info"), SecretNeed("Token"))))
    gifts = site_gifts(lease, a_site(tmp_path), AGENT, tmp_path)
    for path, content in gifts.items():
        file = tmp_path / os.fsdecode(b"/".join(path))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    if not has_python:
        (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "python3").chmod(0o755)
    command = ["/bin/sh", "-c", f". {tmp_path}/.switchyard/env; {RUN.format(before='')}", "sh"]
    given = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OWN": "two\nlines"}
    done = subprocess.run([*command, "env", "-0"], env=given, capture_output=True, text=True, check=True)
    shown = dict(pair.split("=", 1) for pair in done.stdout.split("\0") if pair)
    shown.pop("PWD", None)  # the shell's own
    shown.pop("_", None)
    word = {"_FSEC_USER-INFO_USER.WORD": "it's $HOME", "_FSEC_TOKEN": "it's $HOME"}
    assert shown == {**given, **word, "FLYTE_SECRETS_DEFAULT_DIR": f"{tmp_path}/.switchyard/secrets"}
    assert not (tmp_path / ".switchyard" / "odd-env").exists()
    done = subprocess.run([*command, "no-such-command"], env=given, capture_output=True, text=True, check=False)
    assert (done.returncode, "no-such-command" in done.stderr) == (127, True)


def test_data_in_the_folder_needs_no_variables_of_a_store(tmp_path: Path) -> None:
    gifts = site_gifts(a_lease(SiteNeeds(data="/shared/kit/x")), a_site(tmp_path), AGENT, tmp_path)
    assert gifts == {(b".switchyard", b"env"): b""}


@pytest.mark.parametrize(
    ("needs", "project", "words"),
    [
        (SiteNeeds(data="s3://bucket"), "other", "may not write data at s3://bucket"),
        (SiteNeeds(data="s3://elsewhere"), "kit", "names no store"),
        (SiteNeeds(secrets=(SecretNeed("Token"),)), "other", "may not have the secret Token"),
        (SiteNeeds(secrets=(SecretNeed("absent"),)), "kit", "does not have the secret absent"),
        (SiteNeeds(secrets=(SecretNeed("gone"),)), "kit", "The secret gone cannot be read by the agent"),
        (SiteNeeds(secrets=(SecretNeed("unset"),)), "kit", "is not in the environment of the agent"),
    ],
)
def test_what_the_site_does_not_give_is_refused(tmp_path: Path, needs: SiteNeeds, project: str, words: str) -> None:
    with pytest.raises(PolicyRefused) as refused:
        site_gifts(a_lease(needs, project), a_site(tmp_path), AGENT, tmp_path)
    assert words in refused.value.detail
    assert str(tmp_path) not in refused.value.detail, "users read it"


def test_the_server_is_told_which_service_account_comes_with_a_role(tmp_path: Path) -> None:
    offer = site_offer(msgspec.convert({"kubernetes": {"iam_roles": {"arn:role": "trainer"}}}, site_type()))
    assert role_note("arn:role", offer) == "the IAM role arn:role comes with the service account trainer"
    assert role_note("arn:other", offer) == "the IAM role arn:other is told to the job alone (SWITCHYARD_IAM_ROLE)"
    assert role_note("arn:role", None) == "the IAM role arn:role is told to the job alone (SWITCHYARD_IAM_ROLE)"


def test_the_server_is_told_names_and_no_values(tmp_path: Path) -> None:
    told = msgspec.json.encode(site_offer(a_site(tmp_path))).decode()
    assert "vault" in told
    assert "AGENT_WORD" not in told
    assert str(tmp_path) not in told
    assert site_offer(Site()) is None


@pytest.mark.parametrize(
    "values",
    [
        {"data": {"folder": "relative"}},
        {"data": {"folder": "/"}},
        {"data": {"folder": "/a/../b"}},
        {"data": {"stores": [{"prefix": "file:///x"}]}},
        {"data": {"stores": [{"prefix": "/x"}]}},
        {"data": {"stores": [{"prefix": "s3://b", "variables": {"A": {"value": "x", "env": "Y"}}}]}},
        {"data": {"stores": [{"prefix": "s3://b", "variables": {"A B": {"value": "x"}}}]}},
        {"secrets": [{"key": "x"}]},
        {"secrets": [{"key": "../x", "env": "X"}]},
        {"secrets": [{"key": "x", "group": "a/b", "env": "X"}]},
        {"data": {"folder": "/shared"}, "images": [{"match": "*", "run": "podman"}]},
    ],
)
def test_site_files_with_mistakes_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(values, site_type())


def test_containers_must_see_the_folder_for_data() -> None:
    mounted = {"data": {"folder": "/shared/x"}, "images": [{"match": "*", "run": "podman"}]}
    msgspec.convert({**mounted, "containers": {"mounts": ["/shared:rw"]}}, site_type())
    msgspec.convert({**mounted, "containers": {"mounts": ["/srv:/shared"]}}, site_type())
    with pytest.raises(msgspec.ValidationError, match="containers do not see it"):
        msgspec.convert({**mounted, "containers": {"mounts": ["/shared:/elsewhere"]}}, site_type())
