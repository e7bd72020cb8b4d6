"""What thousands of tasks that end at once may cost: counted calls, lines and look-ups, never time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.agent.backends.shared import shared_files
from switchyard.agent.backends.shared.shared_files import SharedFiles
from switchyard.agent.journal.journal import Journal
from switchyard.agent.log import attempt_lines
from switchyard.agent.loop.runner import Runner
from switchyard.features.fake.agent.backend import FakeBackend
from switchyard.features.slurm.agent.commands.accounting import Accounting
from switchyard.model.cluster.poll import Lease
from tests.agent.builders import a_graph, a_lease, a_setting


def an_array(count: int) -> Lease:
    return replace(a_lease("sleep", "600"), lo=0, hi=count - 1)


@pytest.mark.parametrize(
    ("attempts", "lines"),
    [
        ([], []),
        ([("a", 7, {})], ["x job=a fence=7"]),
        ([("a", 7, {}), ("a", 8, {}), ("a", 9, {})], ["x job=a fence=7-9"]),
        ([("a", 7, {}), ("a", 9, {})], ["x job=a fence=7", "x job=a fence=9"]),
        ([("a", 8, {}), ("a", 7, {})], ["x job=a fence=8", "x job=a fence=7"]),
        ([("a", 7, {}), ("b", 8, {})], ["x job=a fence=7", "x job=b fence=8"]),
        ([("a", 7, {"code": 0}), ("a", 8, {"code": 1})], ["x job=a fence=7 code=0", "x job=a fence=8 code=1"]),
        ([("a", 7, {"code": 1}), ("a", 8, {"code": 1})], ["x job=a fence=7-8 code=1"]),
    ],
)
def test_neighbouring_tasks_share_one_log_line(
    attempts: list[tuple[str, int, dict[str, object]]], lines: list[str]
) -> None:
    assert list(attempt_lines("x", attempts)) == lines


def test_a_cancel_of_many_tasks_is_one_call_and_asks_for_a_refresh(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal, backend = Journal(tmp_path / "journal"), FakeBackend(a_setting(tmp_path / "data", a_graph(cores=64)))
    calls: list[int] = []
    cancel = backend.cancel
    backend.cancel = lambda native_ids: (calls.append(len(native_ids)), cancel(native_ids))  # type: ignore[assignment,return-value]
    refreshes: list[int] = []
    runner = Runner(journal, backend, on_cancel=lambda: refreshes.append(1))
    keys = [attempt.key for attempt in journal.take([an_array(30)])]
    while any(attempt.native_id is None for attempt in journal.attempts()):
        runner.run_once(may_start=True)
    assert (calls, refreshes) == ([], [])
    journal.request_end(keys, cancel=True)
    with caplog.at_level("INFO"):
        runner.run_once(may_start=True)
    assert (calls, refreshes) == ([30], [1])
    assert [record.message for record in caplog.records if record.message.startswith("ended")] == [
        f"ended job={keys[0][0]} fence={keys[0][1]}-{keys[-1][1]} seen=CANCELLED reason=cancelled"
    ]
    journal.close()


def test_only_notes_that_exist_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = shared_files.read_untrusted

    def counted(path: str, *more: Any) -> Any:
        opened.append(Path(path).name)
        return real(path, *more)

    monkeypatch.setattr(shared_files, "read_untrusted", counted)
    files = SharedFiles(tmp_path)
    files.make("array", None)
    (tmp_path / "array/started.3").write_text("3 0 node")
    wanted = [("array", f"started.{index}") for index in range(1000)]
    assert {place: note.text for place, note in files.notes(wanted).items()} == {("array", "started.3"): "3 0 node"}
    assert opened == ["started.3"]
    assert files.notes([("gone", f"started.{index}") for index in range(1000)]) == {}, "a folder that is not there"
    assert files.notes([("array", "started.3"), ("array", "exit.3")]).keys() == {("array", "started.3")}, "a few files"


def test_missing_jobs_are_not_searched_in_a_list() -> None:
    class Unsearchable(list[str]):
        def __contains__(self, _: object) -> bool:
            raise AssertionError("searched from its beginning for every job")

    accounting = Accounting(None, settle_s=1.0)  # type: ignore[arg-type]  # no command is run
    accounting._answered_at = {"1/a": 1.0, "2/b": 1.0}
    accounting.keep_only({"1/a": 0.0, "2/b": 0.0}, Unsearchable(["2/b"]))
    assert accounting._answered_at == {"2/b": 1.0}
