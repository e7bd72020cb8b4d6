"""Files travel with a job: from a user's folder to a cluster on another data folder, and back."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from switchyard import Client, FunctionFailed, FunctionRun, JobFiles
from switchyard.errors import EXIT_CONFLICT, EXIT_NOT_FOUND, EXIT_OK, EXIT_USAGE, BadRequest, YardError
from tests.acceptance.files.job_files import yard_in as yard
from tests.acceptance.stage import Stage
from tests.processes import PATIENCE_S

TRAIN = """\
import os, pathlib, sys
pathlib.Path("results/deep").mkdir(parents=True)
pathlib.Path("results/score.csv").write_text(pathlib.Path("data/x").read_text() * 2)
pathlib.Path("results/deep/run.sh").write_text("#!/bin/sh")
os.chmod("results/deep/run.sh", 0o755)
print(sorted(os.listdir(".")))
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module", autouse=True)
def _cluster(stage: Stage) -> Iterator[None]:
    with stage.agent("alpha", cores=8):
        yield


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "data").mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    (folder / "data" / "x").write_text("12\n")
    (folder / "noise.log").touch()
    (folder / ".yardignore").write_text("*.log\n")
    return folder


def test_files_go_there_and_results_come_back(stage: Stage, work: Path) -> None:
    words = ["submit", "--in", "train.py", "--in", "data", "--out", "results", "--out", "none-*", "--wait", "--"]
    done = yard(stage, work, *words, sys.executable, "train.py", "3")
    assert done.returncode == 3, "the exit code is the job's own, and files of a failed job come too"
    assert done.stdout.strip() == str(["data", "results", "train.py"]), done.stderr
    assert (work / "results" / "score.csv").read_text() == "12\n12\n"
    assert os.access(work / "results" / "deep" / "run.sh", os.X_OK)
    assert "Fetched 2 files" in done.stderr
    assert "no file for: none-*" in done.stderr

    done = yard(stage, work, *words, sys.executable, "train.py", "0")
    assert (done.returncode, "2 were there already" in done.stderr) == (EXIT_OK, True), done.stderr
    (work / "data" / "x").write_text("34\n")
    done = yard(stage, work, *words, sys.executable, "train.py", "0")
    assert done.returncode == EXIT_OK, "results of an earlier run are replaced"
    assert (work / "results" / "score.csv").read_text() == "34\n34\n"
    (work / "data" / "x").write_text("56\n")
    changed_later = time.time() + 3600
    os.utime(work / "results" / "score.csv", (changed_later, changed_later))
    done = yard(stage, work, *words, sys.executable, "train.py", "0")
    assert done.returncode == EXIT_CONFLICT
    assert "other files already: results/score.csv" in done.stderr
    assert (work / "results" / "score.csv").read_text() == "34\n34\n"

    job = yard(stage, work, "ls", "--limit", "1", "-o", "name").stdout.strip()
    assert "2 files" in yard(stage, work, "show", job).stdout
    done = yard(stage, work, "fetch", job, "**/*.csv", "--to", "elsewhere")
    assert done.returncode == EXIT_OK, done.stderr
    fetched = [str(path.relative_to(work)) for path in (work / "elsewhere").rglob("*.*")]
    assert fetched == ["elsewhere/results/score.csv"]
    done = yard(stage, work, "fetch", job, "--force")
    assert (work / "results" / "score.csv").read_text() == "56\n56\n", done.stderr


def test_a_folder_an_array_and_a_job_file(stage: Stage, work: Path) -> None:
    done = yard(stage, work, "submit", "--workdir", ".", "--wait", "--", "ls", "-A")
    assert done.stdout.split() == [".yardignore", "data", "train.py"], done.stderr

    for index in (0, 1, 2):
        (work / f"part-{index}").write_text(f"part {index}")
    words = ["--array", "0-2", "--in", "data", "--in", "part-{index}:part", "--out", "copy", "--wait"]
    done = yard(stage, work, "submit", *words, "--", "sh", "-c", "cat part data/x > copy; ls | wc -l >> copy")
    assert done.returncode == EXIT_OK, done.stderr
    expected = {str(index): f"part {index}12\n3\n" for index in (0, 1, 2)}
    assert {folder: (work / folder / "copy").read_text() for folder in expected} == expected
    job = yard(stage, work, "ls", "--limit", "1", "-o", "name").stdout.strip()
    yard(stage, work, "fetch", f"{job}[1]", "--to", "one")
    assert (work / "one" / "copy").read_text() == expected["1"]

    (work / "jobs").mkdir()
    (work / "jobs" / "job.yaml").write_text(
        "command: [sh, -c, 'cat here/x > out.txt']\nin: {here: ../data}\nout: out.txt\nout_required: true\n"
    )
    done = yard(stage, work, "submit", "-f", "jobs/job.yaml", "--wait")
    assert (done.returncode, (work / "out.txt").read_text()) == (EXIT_OK, "12\n"), done.stderr
    done = yard(stage, work, "submit", "-f", "jobs/job.yaml", "--wait", "--", "true")
    assert done.returncode != EXIT_OK, "a required file is not there"
    assert "out.txt" in done.stderr

    lines = [json.dumps({"command": ["cat", name], "in": [f"../data/x:{name}"]}) for name in ("a", "b")]
    (work / "jobs" / "all.jsonl").write_text("\n".join(lines))
    done = yard(stage, work, "submit", "--bulk", "jobs/all.jsonl", "--wait")
    assert done.returncode == EXIT_OK, done.stderr
    done = yard(stage, work, "usage", "--files", "--project", "default")
    assert "project default" in done.stdout, done.stderr


@pytest.mark.parametrize("flags", [[], ["--each"]], ids=["all or none", "each"])
def test_a_missing_file_of_a_bulk_job_is_told_with_its_line_and_that_job_is_not_sent(
    stage: Stage, work: Path, flags: list[str]
) -> None:
    (work / "jobs").mkdir()
    good = {"command": ["true"], "in": ["../data/x"], "labels": {"missing": str(len(flags))}}
    shared, own = {**good, "in": ["../data/gone"]}, {**good, "in": ["../part-{index}"], "array": "0-1"}
    (work / "part-0").touch()
    lines = [json.dumps(form) for form in (good, shared, own)]
    (work / "jobs" / "all.jsonl").write_text("\n".join(lines))
    done = yard(stage, work, "submit", "--bulk", "jobs/all.jsonl", *flags)
    assert done.returncode == EXIT_USAGE
    assert "jobs/all.jsonl, line 2: the file jobs/../data/gone cannot be read: No such file" in done.stderr
    assert "jobs/all.jsonl, line 3: the file jobs/../part-1 cannot be read: No such file" in done.stderr
    assert ("2 of 3 jobs are not well-formed" in done.stderr) == (not flags)
    assert ("nothing was sent" in done.stderr) == (not flags)
    assert "present folder" not in done.stderr
    sent = yard(stage, work, "ls", "--all", "--label", f"missing={len(flags)}", "-o", "name").stdout.split()
    assert len(sent) == len(flags), "with --each the job whose file is there"


def test_the_index_of_a_task_may_stand_in_the_name_alone(stage: Stage, work: Path) -> None:
    words = ["--array", "0-1", "--in", "data/x:part-{index:02}", "--out", "names", "--wait"]
    done = yard(stage, work, "submit", *words, "--", "sh", "-c", "ls part-* > names")
    assert done.returncode == EXIT_OK, done.stderr
    assert [(work / task / "names").read_text() for task in ("0", "1")] == ["part-00\n", "part-01\n"]
    with Client(stage.url) as client:
        files = {"part-{index}": work / "data" / "x"}
        job = client.submit(["sh", "-c", "ls part-* > names"], array="7", files=files, out=["names"])
        job.wait(timeout_s=PATIENCE_S)
        client.fetch(job.id, to=work / "sdk", timeout_s=PATIENCE_S)
        assert (work / "sdk" / "7" / "names").read_text() == "part-7\n"
        with pytest.raises(BadRequest, match="bytes are one file"):
            client.submit(["true"], array="0-1", files={"part-{index}": b"x"})


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--in", "none.py"], EXIT_USAGE, "none.py cannot be read"),
        (["--in", "train.py:../x"], EXIT_USAGE, "leaves the job's folder"),
        (["--in", "train.py:/x"], EXIT_USAGE, "is absolute"),
        (["--in", "/dev/null"], EXIT_USAGE, "is a device file"),
        (["--in", "part-{index}"], EXIT_USAGE, "the job is no array"),
        (["--out", "../x"], EXIT_USAGE, "leaves the job's folder"),
        (["--out", "/etc/passwd"], EXIT_USAGE, "'/etc/passwd' is no pattern of files: it begins with /"),
        (["--out", ""], EXIT_USAGE, "'' is no pattern of files: it names no file"),
        (["--out", "x" * 2000], EXIT_USAGE, "more than 1024 characters"),
        (["--in", ""], EXIT_USAGE, "names no file"),
        (["--in", "train.py:"], EXIT_USAGE, "names no file"),
        (["--out-required"], EXIT_USAGE, "none is named"),
        (["--workdir", "train.py"], EXIT_USAGE, "is a file, where a folder"),
        (["--in", "train.py", "--in", "data/x:train.py"], EXIT_USAGE, "two different files would be train.py"),
        (["--in", "train.py", "--array", "0-1", "--in", "no-{index}"], EXIT_USAGE, "no-0 cannot be read"),
    ],
)
def test_bad_words_are_refused_before_anything_is_sent(
    stage: Stage, work: Path, words: list[str], code: int, says: str
) -> None:
    done = yard(stage, work, "submit", *words, "--", "true")
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "next: " in done.stderr
    assert "matches" not in done.stderr, "words, not a regular expression"


def test_bytes_that_are_no_utf8_are_refused_before_anything_is_sent(stage: Stage, work: Path) -> None:
    for words, says in (
        (["submit", "--in", "no-such-file", "--out", "n\udcff", "--", "true"], "Write ? for each such byte"),
        (["submit", "--in", "no-such-file", "--", "echo", "\udcff"], r"command: '\udcff' has bytes that are no UTF-8"),
        (["submit", "--name", "\udcff", "--", "true"], "name: "),
        (["submit", "--env", "X=\udcff", "--", "true"], "env: "),
        (["submit", "--label", "X=\udcff", "--", "true"], "labels: "),
        (["show", "\udcff"], r"'\udcff' has bytes that are no UTF-8"),
    ):
        done = yard(stage, work, *words)
        assert (done.returncode, says in done.stderr) == (EXIT_USAGE, True), done.stderr
        assert "next: " in done.stderr
        assert "Traceback" not in done.stderr
    done = yard(stage, work, "submit", "--out", "n?", "--wait", "--", "sh", "-c", "touch \"$(printf 'n\\377')\"")
    assert done.returncode == EXIT_OK, done.stderr
    assert (work / "n\udcff").exists()


def test_what_cannot_be_fetched_is_told(stage: Stage, work: Path, client: Client) -> None:
    job = client.submit(["true"])
    job.wait(PATIENCE_S)
    done = yard(stage, work, "fetch", job.id)
    assert (done.returncode, "without output files" in done.stderr) == (EXIT_USAGE, True)
    held = client.submit(["true"], out=["x"], hold=True)
    done = yard(stage, work, "fetch", held.id)
    assert (done.returncode, "come at its end" in done.stderr) == (EXIT_CONFLICT, True), done.stderr
    held.cancel()
    done = yard(stage, work, "fetch", held.id)
    assert done.returncode == EXIT_NOT_FOUND, done.stderr
    done = yard(stage, work, "show", "../clusters")
    assert (done.returncode, "'/v1/jobs/..%2Fclusters'" in done.stderr) == (EXIT_NOT_FOUND, True), done.stderr
    unknown = "0" * 64
    with pytest.raises(YardError) as refused:
        client.submit(["true"], files=JobFiles(tree=unknown))
    assert refused.value.next_step


def test_the_sdk_sends_files_and_functions(client: Client, work: Path, tmp_path: Path) -> None:
    tree = client.upload({"x": b"in memory", "data": work / "data"})
    job = client.submit(["sh", "-c", "cat x data/x > y"], files=JobFiles(tree=tree), out=["y"])
    job.wait(PATIENCE_S)
    assert job.fetch(to=tmp_path / "fetched", timeout_s=PATIENCE_S).files == 1
    assert (tmp_path / "fetched" / "y").read_text() == "in memory12\n"

    offset = 3
    run: FunctionRun[int] = client.run(lambda number, *, times: (number + offset) * times, 4, times=2)
    assert run.result(PATIENCE_S) == 14
    assert run.done()
    empty: dict[str, int] = {}
    failing = client.function(lambda: empty["absent"], name="failing")()
    error = failing.exception(PATIENCE_S)
    assert isinstance(error, KeyError)
    assert "It was raised in the job" in error.__notes__[0]
    with pytest.raises(BadRequest, match="cannot be sent"):
        client.run(list, (each for each in "abc"))
    unsendable = client.run(lambda: (each for each in "abc"))
    with pytest.raises(TypeError, match="cannot be sent back"):
        unsendable.result(PATIENCE_S)


class Odd(Exception):
    """An exception whose unpickling fails: its arguments are not those of its __init__."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class Unpicklable(Exception):
    def __reduce__(self) -> str:
        raise OSError("not me")


class Stubborn:
    """A value that is written, and cannot be read again."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (int, ("no number",))


def _raise(error: BaseException) -> None:
    raise error


def _local_class() -> object:
    import types

    module = types.ModuleType("only_there")
    exec("class Here(Exception): pass", module.__dict__)
    sys.modules["only_there"] = module
    raise module.Here("of that module")


FUNCTION_ENDS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "sys.exit(3)": (lambda: sys.exit(3), FunctionFailed, "exited with code 3"),
    "sys.exit()": (lambda: sys.exit(), FunctionFailed, "exited with code 0"),
    "sys.exit(text)": (lambda: sys.exit("no input"), FunctionFailed, "exited with the message: no input"),
    "os._exit": (lambda: os._exit(5), FunctionFailed, "is FAILED and left no result"),
    "interrupted": (lambda: _raise(KeyboardInterrupt()), FunctionFailed, "ended by KeyboardInterrupt"),
    "GeneratorExit": (lambda: _raise(GeneratorExit()), FunctionFailed, "ended by GeneratorExit"),
    "odd exception": (lambda: _raise(Odd("one", "two")), FunctionFailed, "raised Odd: one and two"),
    "unpicklable exception": (lambda: _raise(Unpicklable("text")), RuntimeError, "Unpicklable: text"),
    "class of another module": (_local_class, FunctionFailed, "raised Here: of that module"),
    "unreadable result": (Stubborn, FunctionFailed, "The result cannot be read here: ValueError"),
    "result that cannot be written": (lambda: (each for each in "abc"), TypeError, "cannot be sent back"),
    "plain exception": (lambda: _raise(ValueError("plain")), ValueError, "plain"),
}


def test_whatever_a_function_does_is_told_and_never_ends_the_caller(client: Client) -> None:
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        runs = {name: client.run(row[0]) for name, row in FUNCTION_ENDS.items()}
        large = client.run(lambda: b"x" * (20 * 2**20))  # in several chunks
        elsewhere = client.run(lambda: os.chdir("/") or str(Path.cwd()))
        for name, (_, kind, says) in FUNCTION_ENDS.items():
            with pytest.raises(kind, match=says) as raised:
                runs[name].result(PATIENCE_S)
            assert type(raised.value) is kind, name
        assert len(large.result(PATIENCE_S)) == 20 * 2**20
        assert elsewhere.result(PATIENCE_S) == "/"
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_another_python_is_told_plainly(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchyard.features.functions.sdk.function_calls.python_version", lambda: "2.99")
    with pytest.raises(RuntimeError, match=r"sent from Python 2\.99, but this cluster runs it with Python 3"):
        client.run(len, "abc").result(PATIENCE_S)
