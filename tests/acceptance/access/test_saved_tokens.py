"""Submit tokens: a saved one opens its cluster and narrows nothing; clusters named for one submit bound it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from switchyard.errors import EXIT_DENIED, EXIT_OK, EXIT_USAGE
from tests.acceptance.stage import Stage, staged, submitters
from tests.programs import isolated_env, start_server, yard

PUBLIC = {"far", "near"}
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Two clusters for everybody, and two private ones in the group `closed`; `far` and `shut` have agents."""
    with staged(tmp_path_factory.mktemp("saved"), auth=True) as made:
        made.post("/v1/clusters", {"name": "near"})
        for name in ("shut", "shut-too"):
            made.post("/v1/clusters", {"name": name, "is_private": True, "groups": ["closed"]})
        with made.agent("far"), made.agent("shut"):
            yield made


class Person:
    """A user who has a file of their own, and a grant on no private cluster."""

    def __init__(self, stage: Stage, folder: Path, name: str) -> None:
        self.url, self.name, self.token = stage.url, name, submitters(stage, name)[name]
        self.env = isolated_env(folder, url=stage.url, token=self.token)
        self.file = Path(self.env["YARD_CONFIG"])

    def yard(self, *words: str) -> CompletedProcess[str]:
        return yard(*words, env=self.env)

    def read(self, command: str, *words: str) -> Any:
        done = self.yard(command, "-o", "json", *words)
        assert done.returncode == EXIT_OK, done.stderr
        return json.loads(done.stdout)

    def save(self, *entries: tuple[str, str]) -> None:
        self.file.write_text(yaml.safe_dump({"url": self.url, "clusters": as_list(entries)}))

    def clusters_file(self, *entries: tuple[str, str], **others: Any) -> str:
        file = self.file.with_name("two.yaml")
        file.write_text(yaml.safe_dump({"clusters": as_list(entries), **others}))
        return str(file)

    def candidates(self, *words: str) -> set[str]:
        """The clusters that a plan neither leaves out by name nor for want of a grant."""
        return candidates_of(self.read("submit", "--plan", *words, "--", "true")["verdicts"])


def candidates_of(verdicts: list[dict[str, Any]]) -> set[str]:
    return {verdict["cluster"] for verdict in verdicts if verdict["step"] not in ("pin", "grant")}


def as_list(entries: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [{"name": name, "token": token} for name, token in entries]


def new_token(stage: Stage, name: str, *options: str) -> str:
    return stage.yard("cluster", "token", name, *options, check=True).stdout.split()[-1]


def jobs_of(stage: Stage, person: Person) -> list[Any]:
    return [job for job in stage.walk("/v1/jobs", limit=500) if job["owner"] == person.name]


@pytest.fixture
def person(stage: Stage, tmp_path: Path) -> Person:
    return Person(stage, tmp_path, f"person-{next(numbers)}")


def test_a_saved_token_adds_its_cluster_and_takes_none_away(stage: Stage, person: Person) -> None:
    assert person.candidates() == PUBLIC
    person.save(("shut", new_token(stage, "shut")))
    assert person.candidates() == PUBLIC | {"shut"}
    person.save(("shut", new_token(stage, "shut")), ("far", new_token(stage, "far")))
    assert person.candidates() == PUBLIC | {"shut"}, "several"
    person.save(("closed", new_token(stage, "closed", "--group")))
    assert person.candidates() == PUBLIC | {"shut", "shut-too"}, "a token of a group opens each of its clusters"
    assert person.candidates("--cluster", "shut-too") == {"shut-too"}


def test_a_plain_job_an_array_and_a_bulk_have_the_candidates_of_their_plan(stage: Stage, person: Person) -> None:
    person.save(("shut", new_token(stage, "shut")))
    jobs = [person.read("submit", "--hold", *words, "--", "true")["id"] for words in ([], ["--array", "0-3"])]
    file = person.file.with_name("jobs.jsonl")
    file.write_text('{"command": ["true"], "hold": true}\n' * 2)
    jobs += [item["job"]["id"] for item in person.read("submit", "--bulk", str(file))]
    for job in jobs:
        assert candidates_of(person.read("explain", job)["now"]) == PUBLIC | {"shut"}
    done = person.yard("submit", "--wait", "--cluster", "shut", "--", "sh", "-c", "echo $SWITCHYARD_CLUSTER")
    assert (done.returncode, done.stdout) == (EXIT_OK, "shut\n"), done.stderr


def test_a_retry_elsewhere_may_go_where_the_job_may(stage: Stage, person: Person) -> None:
    person.save(("shut", new_token(stage, "shut")))
    job = person.read("submit", "--cluster", "shut", "--", "false")["id"]
    stage.ended(job)
    again = json.loads(person.yard("retry", job, "--elsewhere", "-o", "json").stdout)
    made = again.get("job", again)
    assert candidates_of(person.read("explain", made["id"])["now"]) == PUBLIC | {"shut"}


def test_a_saved_token_that_holds_no_more_breaks_no_submit_and_is_named(stage: Stage, person: Person) -> None:
    valid = new_token(stage, "shut")
    person.save(("shut-too", new_token(stage, "shut-too")), ("shut", valid), ("gone", "submit_x"))
    new_token(stage, "shut-too")  # ends the one that was saved
    file = person.file.with_name("jobs.jsonl")
    file.write_text('{"command": ["true"]}\n' * 3)
    job_file = person.file.with_name("job.yaml")
    job_file.write_text('command: ["true"]\n')
    one = ["submit", "--", "true"]
    for words in (one, ["submit", "--plan", "--", "true"], ["submit", "--bulk", str(file)], ["quote", str(job_file)]):
        done = person.yard(*words)
        # A quote fails if no cluster answers in time, which is for others to test.
        assert done.returncode == EXIT_OK or words[0] == "quote", done.stderr
        for name in ("shut-too", "gone"):
            assert done.stderr.count(f"you saved for {name} opens no cluster any more") == 1, done.stderr
        assert str(person.file) in done.stderr
        assert "for shut opens" not in done.stderr
    assert person.candidates() == PUBLIC | {"shut"}
    pinned = person.yard("submit", "--cluster", "shut-too", "--", "true")
    assert pinned.returncode == EXIT_USAGE
    assert "Of your saved submit tokens, those for shut-too, gone open no cluster any more" in pinned.stderr


def test_clusters_that_are_named_for_one_submit_bound_it(stage: Stage, person: Person) -> None:
    shut, far = new_token(stage, "shut"), new_token(stage, "far")
    person.save(("shut-too", new_token(stage, "shut-too")))
    # The file of Rainbow's client is such a file.
    file = person.clusters_file(("shut", shut), ("far", far), scheduler={"name": "rainbow"})
    assert person.candidates("--clusters", file) == {"shut", "far"}
    assert person.candidates("--clusters", file, "--cluster", "far") == {"far"}
    job = person.read("submit", "--hold", "--clusters", file, "--", "true")["id"]
    assert candidates_of(person.read("explain", job)["now"]) == {"shut", "far"}
    group = person.clusters_file(("closed", new_token(stage, "closed", "--group")))
    assert person.candidates("--clusters", group) == {"shut", "shut-too"}
    before = len(jobs_of(stage, person))
    denied = person.yard(
        "submit", "--clusters", person.clusters_file(("shut", shut), ("far", "submit_x")), "--", "true"
    )
    assert (denied.returncode, "cluster far is not valid" in denied.stderr) == (EXIT_DENIED, True), denied.stderr
    assert len(jobs_of(stage, person)) == before, "one that is not valid denies the whole submit"


def test_saving_a_token_keeps_it_for_its_server_alone(stage: Stage, person: Person, tmp_path: Path) -> None:
    """Whoever has two servers saves a token of each; `yard login` to the other one moves none."""
    env = {**stage.env, "YARD_CONFIG": str(person.file)}
    saved = yard("cluster", "token", "closed", "--group", "--save", env=env)
    assert (saved.returncode, "all clusters of closed, too" in saved.stderr) == (EXIT_OK, True), saved.stderr
    assert person.candidates() == PUBLIC | {"shut", "shut-too"}
    with start_server(tmp_path / "other") as other:
        elsewhere = isolated_env(tmp_path, url=other.url)
        assert yard("cluster", "create", "away", env=elsewhere).returncode == EXIT_OK
        assert yard("cluster", "token", "away", "--save", env=elsewhere).returncode == EXIT_OK
        done = yard("submit", "--", "true", env=elsewhere)
        assert (done.returncode, "saved" in done.stderr) == (EXIT_OK, False), "the token of the first is not shown here"
        assert person.candidates() == PUBLIC | {"shut", "shut-too"}
        assert "saved" not in person.yard("submit", "--plan", "--", "true").stderr
