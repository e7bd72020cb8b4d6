"""Local jobs under accounts of their own: what a hostile job of one user can reach of the agent and of other users.

The accounts are made for the test and removed after it, so this needs root.
"""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import EXIT_UNAVAILABLE
from switchyard.model.job.job import State
from tests.acceptance.files.job_files import assert_files_travel
from tests.acceptance.stage import END_S, Stage, staged, submitters
from tests.people import as_account, local_accounts
from tests.processes import end_strays, until
from tests.programs import COMMAND_S, YARD, Agent, isolated_env, yard

pytestmark = pytest.mark.xdist_group("local_accounts")

SECRET = "graces-own-secret"
# Tries to read every file it is given the name of, every environment, and to list every folder; tells what worked.
HOSTILE = """
for file in "$@"; do
    if [ -d "$file" ]; then ls "$file" >/dev/null 2>&1 && echo "listed $file"
    else cat "$file" >/dev/null 2>&1 && echo "read $file"; fi
done
for process in /proc/[0-9]*; do
    tr '\\0' '\\n' <$process/environ 2>/dev/null | grep -q "^WORD=graces" && echo "read an environment"
done
kill -STOP $PPID 2>/dev/null && echo "stopped its supervisor"
echo over
"""


@pytest.fixture(scope="module")
def accounts() -> Iterator[dict[str, str]]:
    """A local account for each of two users."""
    with local_accounts("ada", "grace") as (ada, grace):
        yield {"ada": ada, "grace": grace}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage"), auth=True) as made:
        yield made


@pytest.fixture(scope="module")
def tokens(stage: Stage) -> dict[str, str]:
    """A token of each of three users; mallory is in no map."""
    return submitters(stage, "ada", "grace", "mallory")


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder that every account can pass through: pytest's own folders belong to who runs it alone."""
    folder = Path(tempfile.mkdtemp(prefix="yard-accounts-", dir="/var/tmp"))
    folder.chmod(0o711)
    yield folder
    end_strays(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def admins_file(stage: Stage, open_folder: Path) -> Path:
    """Where the platform administrator's token is, after a login on the agent's machine."""
    assert stage.token is not None
    env = isolated_env(open_folder, url=stage.url)
    yard("login", "--token-stdin", env=env, stdin=stage.token, check=True)
    return Path(env["YARD_CONFIG"])


@pytest.fixture(scope="module")
def mapped(stage: Stage, open_folder: Path, accounts: dict[str, str]) -> Iterator[Agent]:
    """An agent of root's with an account map."""
    with stage.agent("mapped", cores=8, data=open_folder / "mapped", extra=site_of(open_folder, accounts)) as agent:
        yield agent


def site_of(folder: Path, accounts: dict[str, str]) -> list[str]:
    """The options of an agent whose site has this map."""
    users, site = folder / "accounts.yaml", folder / "site.yaml"
    users.write_text("".join(f"{user}: {account}\n" for user, account in accounts.items()), encoding="utf-8")
    users.chmod(0o644)
    site.write_text(f"accounts: {{map: {users}}}\n", encoding="utf-8")
    return ["--config", str(site)]


def output_of(stage: Stage, token: str, cluster: str, *command: str, **spec: Any) -> list[str]:
    job = stage.submitted(*command, token=token, cluster=cluster, spec=spec)["id"]
    ended = stage.ended(job)
    assert ended["state"] == State.SUCCEEDED, ended
    return stage.raw("logs", job)[0].decode().splitlines()


def victim_of(stage: Stage, tokens: dict[str, str], cluster: str) -> str:
    """A job of grace's that runs, has a secret in its environment, and keeps a file in its folder."""
    text = "echo $WORD; echo $WORD > kept; exec sleep 600"
    job = stage.submitted("sh", "-c", text, token=tokens["grace"], cluster=cluster, spec={"env": {"WORD": SECRET}})
    stage.until_state(job["id"], State.RUNNING)
    return str(job["id"])


def prey(agent: Agent, victim: str, admins_file: Path) -> list[str]:
    """Everything that another user's job must not read."""
    (folder,) = agent.data.glob(f"jobs/*{victim}*")
    agents = [path for path in agent.data.rglob("*") if path.is_file() and "jobs" not in path.parts]
    assert {"credential.json", "journal.db", "supervisor.key"} <= {path.name for path in agents}
    found = [path for path in agents if path.stat().st_mode & stat.S_IROTH == 0]
    return [
        str(path) for path in (admins_file, *found, *folder.iterdir(), folder / "work" / "kept", agent.data / "jobs")
    ]


def test_a_hostile_job_reads_nothing_of_the_agent_or_of_others(
    stage: Stage, mapped: Agent, tokens: dict[str, str], admins_file: Path
) -> None:
    victim = victim_of(stage, tokens, "mapped")
    names = prey(mapped, victim, admins_file)
    assert len(names) > 10
    assert output_of(stage, tokens["ada"], "mapped", "sh", "-c", HOSTILE, "sh", *names) == ["over"]
    stage.yard("cancel", victim, check=True)
    assert stage.ended(victim)["state"] == State.CANCELLED


def test_a_job_owns_its_files(stage: Stage, mapped: Agent, tokens: dict[str, str], accounts: dict[str, str]) -> None:
    assert_files_travel(stage, tokens["ada"], "mapped", owner=accounts["ada"])


def test_each_file_of_the_agent_is_closed_to_jobs(stage: Stage, mapped: Agent, tokens: dict[str, str]) -> None:
    """By a look at the whole folder as the job sees it: what is new there must be closed, too."""
    find = f"find {mapped.data} -type f -readable 2>/dev/null; ls {mapped.data} 2>&1; true"
    said = output_of(stage, tokens["ada"], "mapped", "sh", "-c", find)
    assert len(said) == 1, said
    assert "Permission denied" in said[0]
    readable = {path.name for path in mapped.data.iterdir() if path.is_file() and path.stat().st_mode & stat.S_IROTH}
    assert not readable, "a job can open these by their names, and lock them"


def test_the_same_attack_succeeds_where_jobs_share_the_agents_account(
    stage: Stage, tokens: dict[str, str], open_folder: Path, admins_file: Path
) -> None:
    """So the two tests above can fail. This agent was told to do so, and says what is shared."""
    with stage.brief_agent("shared", cores=8, data=open_folder / "shared", extra=["--allow-root"]) as agent:
        victim = victim_of(stage, tokens, "shared")
        names = prey(agent, victim, admins_file)
        said = output_of(stage, tokens["ada"], "shared", "sh", "-c", HOSTILE, "sh", *names)
        assert {f"read {admins_file}", f"read {agent.data}/supervisor.key", "read an environment"} <= set(said)
        stage.yard("cancel", victim, check=True)
        stage.ended(victim)
        warning = next(line for line in agent.log.splitlines() if "event=shared-account" in line)
        assert "root" in warning
        assert "credential" in warning


def test_a_job_is_its_users_account_in_its_own_folder(
    stage: Stage, mapped: Agent, accounts: dict[str, str], tokens: dict[str, str]
) -> None:
    who = 'id -un; id -gn; id -Gn; echo "$USER $LOGNAME"; touch "$HOME/x"; [ "$HOME" = "$PWD" ] && stat -c "%a %U" .'
    for user, account in accounts.items():
        expected = [account, account, account, f"{account} {account}", f"700 {account}"]
        assert output_of(stage, tokens[user], "mapped", "sh", "-c", who) == expected


def test_a_job_has_only_named_variables(stage: Stage, mapped: Agent, tokens: dict[str, str]) -> None:
    said = output_of(stage, tokens["ada"], "mapped", "env", env={"MINE": "1"})
    names = {line.partition("=")[0] for line in said}
    ours = {name for name in names if name.startswith("SWITCHYARD_")}
    assert names - ours <= {"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "MINE"}


def test_a_job_writes_to_its_output_by_name(stage: Stage, mapped: Agent, tokens: dict[str, str]) -> None:
    said = output_of(
        stage, tokens["ada"], "mapped", "sh", "-c", "echo one; echo two >> /dev/stdout; echo 3 >> /dev/stderr"
    )
    assert said == ["one", "two"]


def test_a_job_cannot_enter_a_folder_that_its_account_may_not(
    stage: Stage, mapped: Agent, tokens: dict[str, str], tmp_path: Path
) -> None:
    job = stage.submitted("true", token=tokens["ada"], cluster="mapped", spec={"cwd": str(tmp_path)})["id"]
    ended = stage.ended(job)
    assert (ended["state"], "Permission denied" in ended["reason"]) == (State.FAILED, True), ended


def test_who_is_not_in_the_map_is_refused(stage: Stage, mapped: Agent, tokens: dict[str, str]) -> None:
    for token, user in ((tokens["mallory"], "mallory"), (stage.token, "admin")):
        job = stage.submitted("true", token=token, cluster="mapped")["id"]
        ended = stage.ended(job)
        assert (ended["state"], ended["reason"]) == (State.FAILED, f"The user {user} has no account on this cluster.")


def test_who_is_not_in_the_map_is_run_by_another_cluster(
    stage: Stage, mapped: Agent, tokens: dict[str, str], open_folder: Path
) -> None:
    with stage.brief_agent("open", cores=8, data=open_folder / "open", extra=["--allow-root"]):
        stage.yard("cluster", "cordon", "open", check=True)
        job = stage.submitted("true", token=tokens["mallory"])["id"]
        until(lambda: "refused" in kinds(stage, job), END_S, "the mapped cluster has refused it")
        until(lambda: "open: cordoned" in stage.job(job).get("reason", ""), END_S, "it waits for the other cluster")
        stage.yard("cluster", "uncordon", "open", check=True)
        ended = stage.ended(job)
        assert (ended["state"], ended["cluster"], ended.get("tries", 0)) == (State.SUCCEEDED, "open", 0)
        told = stage.yard("explain", job, check=True).stdout
        assert "refused it before its start: The user mallory has no account on this cluster." in " ".join(told.split())


def kinds(stage: Stage, job: str) -> set[str]:
    return {event["kind"] for event in stage.get(f"/v1/jobs/{job}/events")["items"]}


def test_a_killed_agent_finds_jobs_of_other_accounts_again(
    stage: Stage, mapped: Agent, tokens: dict[str, str], open_folder: Path
) -> None:
    gate = open_folder / "gate"
    text = f"until [ -e {gate} ]; do sleep 0.1; done; exit 7"
    job = stage.submitted("sh", "-c", text, token=tokens["ada"], cluster="mapped")["id"]
    stage.until_state(job, State.RUNNING)
    mapped.kill()
    mapped.start()
    gate.touch()
    ended = stage.ended(job)
    assert (ended["state"], ended["exit_code"]) == (State.FAILED, 7)


def test_root_without_a_map_runs_jobs_of_administrators_alone(
    stage: Stage, tokens: dict[str, str], open_folder: Path
) -> None:
    with stage.agent("unmapped", data=open_folder / "unmapped", is_root_allowed=False) as agent:
        assert output_of(stage, stage.token or "", "unmapped", "id", "-un") == ["root"]
        job = stage.submitted("touch", str(open_folder / "ran"), token=tokens["ada"], cluster="unmapped")["id"]
        ended = stage.ended(job)
        assert ended["state"] == State.FAILED
        for words in ("runs as root", "platform administrators", "ada", "accounts: {map: FILE}", "--allow-root"):
            assert words in ended["reason"]
        assert not (open_folder / "ran").exists()
        assert "event=root-without-map" in agent.log


def test_who_administers_a_cluster_makes_no_submit_token_for_others(stage: Stage, tokens: dict[str, str]) -> None:
    """Jobs of that token would run there under the other's account; as root, if the other administers the platform."""
    stage.invite("adas")
    stage.yard("grant", "add", "admin", "--to", "user:ada", "--on", "cluster:adas", check=True)
    path = "/v1/clusters/adas/submit-token"
    for account in ("admin", "grace"):
        assert stage.call("POST", f"{path}?account={account}", token=tokens["ada"]).status == 403
    assert stage.call("POST", f"{path}?account=ada", token=tokens["ada"]).status in (200, 201)
    assert stage.call("POST", f"{path}?account=grace").status in (200, 201)


def test_a_map_needs_folders_that_accounts_can_pass_through(
    stage: Stage, accounts: dict[str, str], tmp_path: Path
) -> None:
    """Said at the start, with the folder that is closed; not at each job."""
    tmp_path.chmod(0o700)
    agent = stage.agent("closed", data=tmp_path / "closed", extra=site_of(tmp_path, accounts), wait=False)
    with agent:
        assert agent.wait(COMMAND_S) == EXIT_UNAVAILABLE
    assert str(tmp_path) in agent.log
    assert "--data" in agent.log


def test_an_agent_that_is_not_root_says_what_its_jobs_share(
    stage: Stage, accounts: dict[str, str], open_folder: Path
) -> None:
    """In its log at the start, and by the doctor."""
    account, folder = accounts["ada"], open_folder / "own"
    folder.mkdir(mode=0o700)
    shutil.chown(folder, account, account)
    env = {**isolated_env(open_folder, url=stage.url), "HOME": str(folder)}
    yard_as = [*as_account(account, open_folder / "way"), *YARD]
    words = ["agent", "--cluster", "own", "--backend", "local", "--data", str(folder / "data")]
    words += ["--token", stage.invite("own")]
    with Agent([*yard_as, *words], stage.folder, name="own", env=env, cwd=folder) as agent:
        agent.wait_for(lambda: "event=synced" in agent.log, END_S, "it has joined")
        warning = next(line for line in agent.log.splitlines() if "event=shared-account" in line)
        assert f"the agent's own account {account}" in warning
        said = output_of(stage, stage.token or "", "own", "sh", "-c", 'echo "$USER"; [ "$HOME" = "$PWD" ] && echo own')
        assert said == [account, "own"]
    examine = [*yard_as, "agent", "doctor", "--backend", "local", "-o", "json"]
    done = subprocess.run(examine, env=env, capture_output=True, timeout=COMMAND_S, check=False, cwd=folder)
    (found,) = [each for each in json.loads(done.stdout) if each["check"] == "accounts"]
    assert (found["is_ok"], account in found["detail"], "map" in found["advice"]) == (None, True, True)
    site = [*yard_as, *words, *site_of(open_folder, accounts)]
    refused = subprocess.run(site, env=env, capture_output=True, timeout=COMMAND_S, check=False, cwd=folder)
    assert (refused.returncode, b"cannot start jobs as others" in refused.stderr) == (EXIT_UNAVAILABLE, True), refused
