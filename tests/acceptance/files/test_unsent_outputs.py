"""Output files of agents that are silent or removed: whoever waits hears why, and nothing waits for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from switchyard import Client
from switchyard.errors import EXIT_CONFLICT, EXIT_ERROR, EXIT_TIMED_OUT, TimedOut
from switchyard.sdk.files import file_calls
from tests.acceptance.files.job_files import outputs_of, read_tree, yard_in
from tests.acceptance.stage import Stage, staged
from tests.processes import PATIENCE_S, until
from tests.programs import Agent

SPEC = {"files": {"out": ["result"]}}


@contextmanager
def store_away(stage: Stage) -> Iterator[None]:
    """The server's folder of files is replaced by a file: every upload is answered 503."""
    folder = stage.folder / "server-data" / "files"
    aside = folder.with_name("aside")
    if folder.exists():
        folder.rename(aside)
    folder.touch()
    try:
        yield
    finally:
        folder.unlink()
        if aside.exists():
            aside.rename(folder)


def job_with_unsent_files(stage: Stage, agent: Agent) -> str:
    """A job that ended, and whose agent was killed before it could send the files."""
    with store_away(stage):
        job = stage.submit("sh", "-c", "echo 1 > result", spec=SPEC)
        stage.ended(job)
        until(lambda: "delayed" in agent.log, PATIENCE_S, "the upload is delayed")
        agent.kill()
    [output] = stage.get(f"/v1/jobs/{job}/files")["outputs"]
    assert output["state"] == "uploading"
    return job


def test_a_silent_agent_is_named_while_somebody_waits_and_its_return_brings_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with staged(tmp_path) as stage, stage.agent("local") as agent:
        job = job_with_unsent_files(stage, agent)
        until(lambda: stage.health("local") == "down", 2 * PATIENCE_S, "the agent is silent")
        done = yard_in(stage, tmp_path, "fetch", job, "--timeout", "4")
        assert done.returncode != 0
        words = "output files are on their way from cluster local; its agent has been silent since 20"
        assert f"waiting: {words}" in done.stderr
        assert f"are not there after 4 s: {words}" in done.stderr
        drained = stage.yard("cluster", "drain", "local", "--deadline", "1s")
        assert drained.returncode == EXIT_TIMED_OUT
        assert "still sends output files of 1 ended" in drained.stderr
        stage.yard("cluster", "uncordon", "local", check=True)

        monkeypatch.setattr(file_calls, "SILENT_AGENT_S", 0.5)
        with Client(stage.url) as client, pytest.raises(TimedOut, match="its agent has been silent since"):
            client.fetch(job, to=tmp_path)
        agent.start()
        [output] = outputs_of(stage, job)
        assert read_tree(stage, job, output["root"]) == {b"result": b"1\n"}


@pytest.mark.parametrize("is_cluster", [False, True])
def test_a_removal_tells_how_many_files_are_unsent_and_says_so_to_the_user(tmp_path: Path, is_cluster: bool) -> None:
    with staged(tmp_path) as stage, stage.agent("local") as agent:
        job = job_with_unsent_files(stage, agent)
        words = ["cluster", "rm", "local"] if is_cluster else ["agent", "rm", stage.get("/v1/agents")["items"][0]["id"]]
        done = stage.yard(*words, "--force")
        assert done.returncode == EXIT_CONFLICT
        assert "has not sent the output files of 1 attempt yet" in done.stderr
        done = stage.yard(*words, "--force", "--abandon", check=True)
        assert "The output files of 1 attempt were not sent and are given up." in done.stderr
        done = yard_in(stage, tmp_path, "fetch", job)
        assert done.returncode == EXIT_ERROR
        assert "was removed before it sent them" in done.stderr
        if is_cluster:
            return
        for file in agent.data.glob("*credential*"):
            file.unlink()
        with stage.agent("local"):  # joins again, with the same data folder
            until(lambda: outputs_of(stage, job)[0]["state"] == "ready", 2 * PATIENCE_S, "the files are sent after all")
