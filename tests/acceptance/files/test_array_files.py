"""Output files of an array on several clusters: all of them come, or the tasks whose files do not are named."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from switchyard.cli.jobs import fetch
from switchyard.errors import EXIT_ERROR, EXIT_TIMED_OUT, NotFound, TimedOut
from switchyard.sdk.files import file_calls
from tests.acceptance.files.job_files import outputs_of, yard_in
from tests.acceptance.stage import Stage, staged
from tests.processes import PATIENCE_S, until

CORES = 2
TASKS = 12


def test_the_files_of_every_task_come_although_the_array_lost_its_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with staged(tmp_path) as stage, stage.agent("alpha", cores=CORES), stage.agent("beta", cores=CORES):
        job = _cordoned_array(stage)
        assert {output["state"] for output in outputs_of(stage, job, TASKS)} == {"ready"}
        done = yard_in(stage, tmp_path, "fetch", job, "--to", "all")
        assert done.returncode == 0, done.stderr
        fetched = {int(file.parent.name): file.read_text() for file in (tmp_path / "all").glob("*/out")}
        assert fetched == {task: f"{task}\n" for task in range(TASKS)}

        _change_outputs(stage, "DELETE FROM file_outputs WHERE task IN (3, 5, 6)")
        monkeypatch.setenv("YARD_URL", stage.url)
        for name, tasks in ((job, "tasks 3,5-6"), (f"{job}[5]", "task 5")):
            with pytest.raises(TimedOut) as late:
                fetch.main([name, "--to", str(tmp_path / "late"), "--timeout", "1"])
            assert late.value.exit_code == EXIT_TIMED_OUT
            assert f"The output files of {tasks} of job {job} are not there after 1 s" in late.value.detail
            assert "once they are there" not in (late.value.next_step or ""), "nobody has said that the files exist"

        assert fetch.main([f"{job}[0-2]", "--to", str(tmp_path / "there"), "--timeout", "1"]) == 0
        _files_are_told(stage, job)
        monkeypatch.setattr(file_calls, "OUTPUTS_SILENCE_S", 0.2)
        assert fetch.main([job, "--to", str(tmp_path / "some")]) == EXIT_ERROR
        told = capsys.readouterr().err
        assert "Fetched 9 files" in told
        for task in (3, 5, 6):
            assert f"error: no files: task {task}: cluster " in told
        assert fetch.main([f"{job}[3-4]", "--to", str(tmp_path / "two")]) == EXIT_ERROR
        told = capsys.readouterr().err
        assert ("task 3: cluster" in told, "task 5" in told) == (True, False), "only the tasks that were asked for"
        with pytest.raises(NotFound, match="no output files of tasks 3"):
            fetch.main([f"{job}[3]", "--to", str(tmp_path / "one")])


def _files_are_told(stage: Stage, job: str) -> None:
    """`yard show` and `yard tasks` say of which tasks the files are there, on their way, or not known."""
    _change_outputs(stage, "UPDATE file_outputs SET state = 'uploading', error = 'disk full' WHERE task = 7")
    shown = stage.yard("show", job, check=True).stdout
    assert f"8 files, 18B: yard fetch {job}; on their way; none yet from tasks 3,5-6\n" in shown
    title, *lines = stage.yard("tasks", job, check=True).stdout.splitlines()
    assert "FILES" in title
    words = ("1 file", "on their way", "none yet")
    told = {int(line.split()[0]): next(word for word in words if word in line) for line in lines}
    late = {**dict.fromkeys((3, 5, 6), "none yet"), 7: "on their way"}
    assert told == {**dict.fromkeys(range(TASKS), "1 file"), **late}
    texts = {2: f"1 file, 2B: yard fetch '{job}[2]'", 3: "none yet: its cluster", 7: "on their way; delayed: disk full"}
    for task, text in texts.items():
        assert text in stage.yard("show", f"{job}[{task}]", check=True).stdout
    _change_outputs(stage, "UPDATE file_outputs SET state = 'ready', error = '' WHERE task = 7")


def _change_outputs(stage: Stage, statement: str) -> None:
    with closing(sqlite3.connect(stage.folder / "server-data/switchyard.db", timeout=PATIENCE_S)) as db, db:
        db.execute(statement)


def _cordoned_array(stage: Stage) -> str:
    """An ended array whose cluster was cordoned while both clusters ran tasks of it."""
    ledger, go = stage.folder / "ledger", stage.folder / "go"
    wait = f"while [ ! -e {go} ]; do sleep 0.05; done"
    script = f"echo $SWITCHYARD_ARRAY_INDEX | tee out >> {ledger}; {wait}"
    job = stage.submit("sh", "-c", script, array=f"0-{TASKS - 1}", spec={"files": {"out": ["out"]}})
    until(lambda: ledger.exists() and len(ledger.read_text().split()) == 2 * CORES, PATIENCE_S, "all cores are in use")
    cluster = stage.job(job)["cluster"]
    stage.yard("cluster", "cordon", cluster, check=True)
    until(lambda: "unassigned" in _event_kinds(stage, job), PATIENCE_S, "the array leaves its cluster")
    go.touch()
    stage.ended(job)
    assert stage.job(job)["tasks"]["ok"] == TASKS
    return job


def _event_kinds(stage: Stage, job: str) -> set[str]:
    return {event["kind"] for event in stage.get(f"/v1/jobs/{job}/events")["items"]}
