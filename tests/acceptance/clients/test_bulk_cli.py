"""Thousands of jobs from one file or one call: forms, all or none, each by itself, repeated, and progress."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard import Client, JobHandle, YardError, as_completed
from switchyard.errors import EXIT_OK, EXIT_REJECTED, EXIT_USAGE, BadRequest, KeyReused, Malformed
from tests.acceptance.stage import Stage, staged
from tests.cli.conftest import Terminal
from tests.processes import PATIENCE_S

pytestmark = pytest.mark.xdist_group("bulk-cli")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage")) as made, made.agent("alpha", cores=4):
        yield made


def lines(count: int, **fields: object) -> str:
    return "".join(json.dumps({"command": ["true"], "name": f"n{number}", **fields}) + "\n" for number in range(count))


def count(stage: Stage, label: str) -> int:
    return len(stage.yard("ls", "--all", "-l", label, "-o", "name", check=True).stdout.split())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("jobs.jsonl", '{"command": ["true"]}\n\n{"spec": {"command": ["true"]}, "name": "nested"}\n'),
        ("jobs.json", '[{"command": ["true"]}, {"spec": {"command": ["true"]}, "name": "nested"}]'),
        ("jobs.yaml", "- command: 'true'\n- {command: [true-ish], name: nested}\n".replace("true-ish", "'true'")),
        ("flow.yaml", "[{command: ['true']}, {command: ['true'], name: nested}]"),
    ],
)
def test_every_form_of_a_file(stage: Stage, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    flags = ("--label", f"form={name}", "--priority", "3", "--wait")
    made = stage.read("submit", "--bulk", str(tmp_path / name), *flags)
    assert [item["problem"] for item in made] == [None, None]
    jobs = [stage.job(item["job"]["id"]) for item in made]
    assert [(job["state"], job["priority"], job["labels"]) for job in jobs] == [
        ("SUCCEEDED", 3, {"form": name}),
        ("SUCCEEDED", 3, {"form": name}),
    ]
    assert jobs[1]["name"] == "nested"
    piped = stage.yard("submit", "--bulk", "-", "-o", "name", stdin=text, check=True)
    assert len(piped.stdout.split()) == 2


def test_thousands_from_a_file_in_several_requests(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_text(lines(5000, hold=True))
    done = stage.yard("submit", "--bulk", str(file), "-l", "many=1", "--key", "run-42", check=True)
    assert done.stdout.startswith("5,000 jobs submitted: 5,000 PENDING\n")
    assert done.stderr == ""
    again = stage.yard("submit", "--bulk", str(file), "-l", "many=1", "--key", "run-42", check=True)
    assert again.stdout == done.stdout, "the same key and file: the same jobs"
    assert count(stage, "many=1") == 5000
    assert stage.yard("submit", "--bulk", str(file), "-l", "many=2", "--key", "run-42").returncode == 6
    stage.yard("cancel", "-l", "many=1", "--force", check=True)


def test_one_bad_job_among_thousands_is_found_before_anything_is_sent(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    good = lines(2500, labels={"bad": "one"})
    file.write_text(good + '{"comand": ["true"]}\n{"command": ["true"], "cores": "many"}\n' + good)
    done = stage.yard("submit", "--bulk", str(file))
    assert done.returncode == EXIT_USAGE
    assert "2 of 5002 jobs are not well-formed" in done.stderr
    assert f"{file}, line 2501" in done.stderr
    assert count(stage, "bad=one") == 0


def test_what_only_the_server_can_refuse(stage: Stage, tmp_path: Path) -> None:
    """A project that does not exist: all or none in each request, or each by itself."""
    file = tmp_path / "jobs.jsonl"
    file.write_text(lines(4) + lines(1, project="nowhere") + lines(1))
    all_or_none = ("submit", "--bulk", str(file), "-l", "refused=all")
    done = stage.yard(*all_or_none)
    assert done.returncode == EXIT_USAGE
    assert "none was made" in done.stderr
    assert count(stage, "refused=all") == 0
    some = stage.yard(*all_or_none, "--batch", "2")
    assert some.returncode == EXIT_USAGE
    assert "The first 4 of 6 jobs were made" in some.stderr
    assert count(stage, "refused=all") == 4
    each = stage.yard("submit", "--bulk", str(file), "-l", "refused=each", "--each", "--key", "each-1")
    assert each.returncode == EXIT_USAGE
    assert "jobs[4]: " in each.stderr
    assert each.stdout.startswith("5 jobs submitted")
    again = stage.yard("submit", "--bulk", str(file), "-l", "refused=each", "--each", "--key", "each-1", "-o", "json")
    problems = [item["problem"] for item in json.loads(again.stdout)]
    assert [problem["code"] if problem else None for problem in problems] == [None] * 4 + ["unknown-name", None]
    assert count(stage, "refused=each") == 5
    rejected = stage.yard("submit", "--bulk", "-", stdin=lines(2, cores=999))
    assert (rejected.returncode, "2 were REJECTED" in rejected.stderr) == (EXIT_REJECTED, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no jobs"),
        ("[]", "has no jobs"),
        ("{}", "has no command"),
        ("command: true\n", "expected a list"),
        ("- just text\n", "expected fields"),
        ('{"command": ["true"]\n', "not valid JSON"),
        ('{"command": ["true"], "command": ["false"]}\n', "given twice"),
        ('[{"command": ["true"], "after": ["#0"]}]', "waits for itself"),
        ('[{"command": ["true"], "after": ["#1"]}, {"command": ["true"], "after": ["#0"]}]', "round through others"),
        ('[{"command": ["true"], "after": ["#9"]}]', "#9"),
        ('[{"command": ["true"], "array": "5-1"}]', "backwards"),
    ],
)
def test_bad_files(stage: Stage, text: str, words: str) -> None:
    done = stage.yard("submit", "--bulk", "-", stdin=text)
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert words in done.stderr


def test_with_each_only_the_malformed_jobs_stay_behind(stage: Stage, tmp_path: Path) -> None:
    """And those that wait for one. The others keep whom they wait for, under the number that is sent."""
    file = tmp_path / "jobs.jsonl"
    bad = ['{"comand": ["true"]}', '{"command": ["true"]', '{"command": "a", "command": "b"}', '"text"']
    rest = ({"after": ["#1"]}, {"after": ["#5:any"]}, {"hold": True}, {"after": ["#0", "#7:ok"]})
    file.write_text(lines(1) + "\n".join([*bad, *(json.dumps({"command": ["true"], **job}) for job in rest)]))
    done = stage.yard("submit", "--bulk", str(file), "--each", "-o", "json")
    assert done.returncode == EXIT_USAGE
    items = json.loads(done.stdout)
    assert [bool(item["job"]) for item in items] == [True, *[False] * 6, True, True]
    for place, words in enumerate(("comand", "not valid JSON", "given twice", "expected fields"), start=1):
        assert f"jobs[{place}]: {file}, line {place + 1}" in done.stderr
        assert words in done.stderr
    assert "jobs[5]: It is to begin after job #1, which is not sent." in done.stderr
    assert "jobs[6]: It is to begin after job #5, which is not sent." in done.stderr
    assert "next: Submit the corrected jobs alone" in done.stderr
    _, held, last = (item["job"]["id"] for item in items if item["job"])
    stage.yard("cancel", held, "--force", check=True)
    assert held in stage.ended(last)["reason"]
    nothing = stage.yard("submit", "--bulk", "-", "--each", stdin="\n".join(bad[:1]))
    assert (nothing.returncode, "nothing was sent" in nothing.stderr) == (EXIT_USAGE, True)


def test_bulk_goes_with_no_other_file(stage: Stage, tmp_path: Path) -> None:
    assert stage.yard("submit", "--bulk", str(tmp_path / "missing")).returncode == EXIT_USAGE
    assert stage.yard("submit", "--bulk", "-", "-f", "-", stdin="x").returncode == EXIT_USAGE
    assert stage.yard("submit", "--bulk", "-", "--batch", "0", stdin=lines(1)).returncode == EXIT_USAGE


def test_a_terminal_sees_how_far_it_is(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_text(lines(2000, hold=True, labels={"bar": "yes"}))
    env = {**stage.env, "YARD_URL": stage.url}
    submitting = Terminal("submit", "--bulk", str(file), "--batch", "200", env=env)
    assert submitting.end() == EXIT_OK
    assert "2000/2000" in submitting.shown
    asking = Terminal("cancel", "--label", "bar=yes", env=env)
    asking.until("Cancel 2,000 jobs?")
    asking.press("y\n")
    assert asking.end() == EXIT_OK
    assert "Asked for the end of 2,000 jobs." in asking.shown


# --- the SDK ---


def test_submit_many_gives_handles_in_order(client: Client) -> None:
    seen: list[tuple[int, int]] = []
    made = client.submit_many(
        [["sh", "-c", f"exit {number}"] for number in range(5)],
        batch=2,
        labels={"many": "sdk"},
        on_progress=lambda done, total: seen.append((done, total)),
    )
    handles = [each for each in made if isinstance(each, JobHandle)]
    assert len(list(as_completed(handles, timeout_s=PATIENCE_S))) == 5
    assert [handle.exit_code for handle in handles] == [0, 1, 2, 3, 4]
    assert seen == [(2, 5), (4, 5), (5, 5)]


def test_references_hold_across_requests(client: Client) -> None:
    chain = [{"command": ["true"], "after": [f"#{number - 1}"] if number else []} for number in range(5)]
    made = client.submit_many(chain, batch=2)
    ends = [handle.wait(timeout_s=PATIENCE_S) for handle in made if isinstance(handle, JobHandle)]
    assert [job.state for job in ends] == ["SUCCEEDED"] * 5
    begun = [job.started_us or 0 for job in ends]
    assert begun == sorted(begun)


def test_submit_many_refuses_all_or_says_each(client: Client) -> None:
    jobs: list[dict[str, Any]] = [{"command": ["true"]}, {"command": ["true"], "project": "nowhere"}]
    with pytest.raises(YardError, match="none was made"):
        client.submit_many(jobs)
    first, second = client.submit_many(jobs, each=True)
    assert isinstance(first, JobHandle)
    assert isinstance(second, YardError)
    with pytest.raises(Malformed, match=r"jobs\[1\]"):
        client.submit_many([["true"], []])
    with pytest.raises(BadRequest):
        client.submit_many([["true"]], batch=0)
    assert client.submit_many([]) == []


def test_a_key_makes_many_jobs_once(client: Client) -> None:
    jobs = [["true"], ["true"], ["true"]]
    first = client.submit_many(jobs, key="once", batch=2)
    again = client.submit_many(jobs, key="once", batch=2)
    assert [each.id for each in first if isinstance(each, JobHandle)] == [
        each.id for each in again if isinstance(each, JobHandle)
    ]
    with pytest.raises(KeyReused):
        client.submit_many([["false"], ["true"], ["true"]], key="once", batch=2)
