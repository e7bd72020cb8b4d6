"""As whom: with a map of accounts each job is its user's own account's on the cluster, by --uid or by sudo.

The accounts are made for the test and removed after it; so this needs root, as the clusters of two accounts do.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from switchyard.model.job.job import State
from tests.acceptance.files.job_files import assert_files_travel
from tests.acceptance.slurm.slurm_stage import END_S, write_site
from tests.acceptance.stage import Stage, staged, submitters
from tests.people import local_accounts, open_way
from tests.programs import YARD, Agent, start_agent
from tests.slurm_bed import SlurmBed

pytestmark = pytest.mark.xdist_group("slurm-accounts")
DOCS = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "add-a-slurm-cluster.md"


@dataclass(frozen=True)
class People:
    """Two local accounts for users, and one for an agent that is not root."""

    ada: str
    grace: str
    agent: str


@pytest.fixture(scope="module")
def people() -> Iterator[People]:
    with local_accounts("ada", "grace", "agent") as names:
        yield People(*names)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("accounts"), auth=True) as made:
        yield made


@pytest.fixture(scope="module")
def tokens(stage: Stage) -> dict[str, str]:
    """A token of each of three users; mallory is in no map."""
    return submitters(stage, "ada", "grace", "mallory")


def site_of(stage: Stage, slurm: SlurmBed, people: People, *, way: str, spool: Path, **more: Any) -> Path:
    accounts = stage.folder / "accounts.yaml"
    accounts.write_text(f"ada: {people.ada}\ngrace: {people.grace}\n", encoding="utf-8")
    accounts.chmod(0o644)
    site = {"accounts": {"map": str(accounts), "way": way}, "slurm": {"folder": str(spool)}, **more}
    return write_site(stage, slurm["beta"], **site)


@pytest.fixture
def spool(slurm: SlurmBed) -> Iterator[Path]:
    """Where the accounts can go: pytest's own folders belong to who runs it alone."""
    folder = slurm.folder / "spool"
    folder.mkdir(mode=0o711)
    folder.chmod(0o711)
    yield folder
    slurm["beta"].heal()
    shutil.rmtree(folder)


WHO = 'id -un; id -gn; id -Gn; echo "$HOME"; umask >/dev/null; touch "$HOME/was-here"'


def who(stage: Stage, token: str, **fields: Any) -> list[str]:
    """What a job says of who it is."""
    job = stage.submitted("/bin/sh", "-c", WHO, token=token, cluster="beta", **fields)["id"]
    ended = stage.ended(job, timeout_s=END_S)
    assert ended["state"] == State.SUCCEEDED, ended
    return stage.raw("logs", job)[0].decode().splitlines()


def assert_each_is_themselves(stage: Stage, people: People, tokens: dict[str, str]) -> None:
    for user, account in (("ada", people.ada), ("grace", people.grace)):
        home = pwd.getpwnam(account).pw_dir
        assert who(stage, tokens[user]) == [account, account, account, home]
        assert (Path(home) / "was-here").stat().st_uid == pwd.getpwnam(account).pw_uid
    job = stage.submitted("true", token=tokens["mallory"], cluster="beta")["id"]
    ended = stage.ended(job, timeout_s=END_S)
    assert (ended["state"], ended["reason"]) == (State.FAILED, "The user mallory has no account on this cluster.")


def cancel_works(stage: Stage, slurm: SlurmBed, token: str) -> None:
    job = stage.submitted("sleep", "600", token=token, cluster="beta")["id"]
    running = stage.until_state(job, State.RUNNING, timeout_s=END_S)
    stage.yard("cancel", job, check=True)
    stage.until_state(job, State.CANCELLED, timeout_s=END_S)
    assert slurm["beta"].field(running["native_id"], "JobState") == "CANCELLED"


def start(stage: Stage, site: Path, **more: Any) -> Agent:
    token = stage.invite("beta", is_reusable=True)
    extra = ["--config", str(site)]
    return start_agent(
        stage.folder,
        stage.url,
        "beta",
        graph=None,
        backend="slurm",
        extra=extra,
        token=token,
        reader=stage.token,
        **more,
    )


def test_a_root_agent_submits_by_uid(
    stage: Stage, slurm: SlurmBed, people: People, tokens: dict[str, str], spool: Path
) -> None:
    site = site_of(stage, slurm, people, way="uid", spool=spool)
    with start(stage, site):
        assert_each_is_themselves(stage, people, tokens)
        cancel_works(stage, slurm, tokens["ada"])
        assert_files_travel(stage, tokens["ada"], "beta", owner=people.ada)


def test_what_a_user_links_in_the_place_of_output_is_not_read(
    stage: Stage, slurm: SlurmBed, people: People, tokens: dict[str, str], spool: Path
) -> None:
    secret = stage.folder / "secret"
    secret.write_text("for root alone", encoding="utf-8")
    secret.chmod(0o600)
    site = site_of(stage, slurm, people, way="uid", spool=spool)
    swap = f'cd "$(dirname "$PWD")"; rm -f stdout; ln -s {secret} stdout; sleep 2'
    with start(stage, site):
        job = stage.submitted("/bin/sh", "-c", swap, token=tokens["ada"], cluster="beta")["id"]
        stage.ended(job, timeout_s=END_S)
        assert "for root alone" not in stage.raw("logs", job)[0].decode()


def test_what_a_site_allows_is_what_runs(
    stage: Stage, slurm: SlurmBed, people: People, tokens: dict[str, str], spool: Path
) -> None:
    allow = {"users": ["ada"], "projects": ["default"], "options": ["--nice"]}
    site = site_of(stage, slurm, people, way="uid", spool=spool, allow=allow)
    with start(stage, site):
        assert who(stage, tokens["ada"], spec={"native": {"options": ["--nice=5"]}})[0] == people.ada
        for token, options, why in (
            (tokens["grace"], [], "This site does not take jobs of the user grace."),
            (tokens["ada"], ["--mail-user=x"], "This site does not allow the option --mail-user: it allows --nice."),
        ):
            spec = {"native": {"options": options}}
            job = stage.submitted("true", token=token, cluster="beta", spec=spec)["id"]
            ended = stage.ended(job, timeout_s=END_S)
            assert (ended["state"], ended["reason"]) == (State.FAILED, why)


def sudoers(people: People, slurm: SlurmBed) -> str:
    """The lines that the how-to gives, with the names and places of this test."""
    text = DOCS.read_text(encoding="utf-8")
    lines = text.split("```sudoers\n")[1].split("```")[0]
    lines = lines.replace("switchyard ", f"{people.agent} ").replace("ada, grace", f"{people.ada}, {people.grace}")
    return lines.replace("/usr/bin/", f"{slurm['beta'].bin}/")


@pytest.fixture
def may_sudo(people: People, slurm: SlurmBed) -> Iterator[None]:
    file = Path("/etc/sudoers.d") / f"yard-test-{os.getpid()}"
    draft = slurm.folder / "sudoers"
    draft.write_text(sudoers(people, slurm), encoding="utf-8")
    subprocess.run(["visudo", "-cf", str(draft)], check=True, capture_output=True)
    shutil.copyfile(draft, file)
    file.chmod(0o440)
    try:
        yield
    finally:
        file.unlink()


@pytest.mark.usefixtures("may_sudo")
def test_an_agent_with_an_account_of_its_own_submits_by_sudo(
    stage: Stage, slurm: SlurmBed, people: People, tokens: dict[str, str], spool: Path
) -> None:
    """Nothing but sbatch and scancel as these accounts: the agent can be neither them otherwise nor anybody else."""
    agent = pwd.getpwnam(people.agent)
    folder = slurm.folder / "agent"
    folder.mkdir(mode=0o700)
    for path in (folder, spool):
        os.chown(path, agent.pw_uid, agent.pw_gid)
    site = site_of(stage, slurm, people, way="sudo", spool=spool)
    for path in (site, stage.folder / "accounts.yaml"):
        os.chown(shutil.copy(path, folder), agent.pw_uid, agent.pw_gid)
    own_site = folder / site.name
    own_site.write_text(own_site.read_text().replace(str(stage.folder), str(folder)), encoding="utf-8")
    with as_account(stage, folder, own_site, people.agent):
        assert_each_is_themselves(stage, people, tokens)
        cancel_works(stage, slurm, tokens["grace"])
        # The agent cannot give files away: it shares them by an access list.
        assert_files_travel(stage, tokens["grace"], "beta", owner=people.agent)
    for words in (["-u", people.ada, "--", "/bin/id"], ["-u", "root", "--", str(slurm["beta"].bin / "sbatch")]):
        command = [
            "setpriv",
            f"--reuid={agent.pw_uid}",
            f"--regid={agent.pw_gid}",
            "--clear-groups",
            "sudo",
            "-n",
            *words,
        ]
        assert subprocess.run(command, capture_output=True, check=False).returncode != 0, words


def as_account(stage: Stage, folder: Path, site: Path, account: str) -> Agent:
    """An agent under another account; the test's own folder is not its to enter, so its home is `folder`."""
    who = pwd.getpwnam(account)
    identity = [*open_way(folder / "way"), "setpriv", f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}"]
    identity += ["--clear-groups", "--"]
    words = ["agent", "--server", stage.url, "--cluster", "beta", "--backend", "slurm", "--config", str(site)]
    words += ["--data", str(folder / "data"), "--token", stage.invite("beta", is_reusable=True)]
    words += ["--name", "by-sudo"]
    env = {"HOME": who.pw_dir, "USER": account, "LOGNAME": account, "LANG": "C.UTF-8", "PATH": os.environ["PATH"]}
    agent = Agent([*identity, *YARD, *words], stage.folder, name="agent-by-sudo", env=env, cwd=folder)
    agent.start()
    agent.wait_for(lambda: "event=synced" in agent.log, END_S, "it has joined")
    return agent
