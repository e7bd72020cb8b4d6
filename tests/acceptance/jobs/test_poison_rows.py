"""What one user submits, or a disk damages, is no other user's trouble: arrays of any form, and broken rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from switchyard import State
from tests.acceptance.stage import END_S, Fields, Stage
from tests.processes import until
from tests.programs import Server, start_agent, start_server
from tests.services import Postgres
from tests.soak import SOAKED
from tests.store.prepared import migrated

NODES = {"nodes": 1, "each": {"core": 4, "memory": "8GiB"}}
# The database keeps an array as text: another one changes nothing about it.
ON_SQLITE = pytest.mark.parametrize("database", ["sqlite", SOAKED("postgresql")], indirect=True)
LOOP_S = 10.0  # a healthy server answers within milliseconds; 0-1999998:2 once took 18 s

# What is sent, what is shown, how many tasks that is.
ARRAYS = [
    ("0-30000:2", "0-30000:2", 15_001),
    ("0-1999998:2", "0-1999998:2", 1_000_000),
    ("1-2000000000:2000", "1-1999998001:2000", 1_000_000),
    ("0-998:2,1-999:2", "0-999", 1000),
    ("0-90000:3,1-90001:3,2-90002:3", "0-90002", 90_003),
    ("7,5,3,1", "1-7:2", 4),
    ("0-9,20-40:5,100,1000-900000:1000", "0-9,20-40:5,100,1000-900000:1000", 916),
    (",".join(f"{index * 7919 % 65_000}" for index in range(9000)), None, 9000),
    ("0-2147483647:2147483647%3", "0,2147483647%3", 2),
]
REFUSED = [
    ("9-3", "backwards"),
    ("0-9:0", "a step is at least 1"),
    ("0-1999999", "at most 1,000,000 tasks"),
    ("0-999999:3,2-999999:5", "lie within each other"),
    ("0-999999:2,4", "twice"),
    ("0-3000000000", "an index at most"),
    (",".join(f"{first}-{first + 900000}:600" for first in range(0, 400, 4)), "lie within each other"),
    ("0-9%" + "9" * 5000, "after %"),
    ("1," * 40_000 + "1", "65536"),
]


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'yard.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return migrated(server)


@pytest.fixture
def stage(database: str, tmp_path: Path) -> Iterator[Stage]:
    server = start_server(tmp_path, database=database)
    try:
        with start_agent(tmp_path, server.url, "alpha", graph=NODES, backend="local"):
            yield Stage(tmp_path, server, None)
    finally:
        server.close()


def execute(database: str, statement: str, **values: object) -> None:
    engine = sa.create_engine(database.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as tx:
        tx.execute(sa.text(statement), values)
    engine.dispose()


def restart(server: Server) -> None:
    server.close()
    server.start().wait_ready()


def others_work(stage: Stage, *, but: set[str]) -> None:
    """Somebody else's job is submitted, listed, leased, run and cancelled as on a server without these rows."""
    job = stage.submit("true", priority=100)  # the arrays have thousands of tasks in line before it
    assert stage.ended(job)["state"] == "SUCCEEDED"
    held = stage.submit("sleep", "600", hold=True)
    listed = {each["id"] for each in stage.walk("/v1/jobs", limit=50)}
    assert {job, held, *but} <= listed
    assert stage.post(f"/v1/jobs/{held}/cancel", {})["state"] == "CANCELLED"
    assert stage.get("/v1/stats/routes?since_s=3600")["jobs"] >= 2
    assert "switchyard_jobs" in stage.call("GET", "/metrics").body.decode()


@ON_SQLITE
def test_arrays_of_any_form_are_taken_or_refused_and_harm_nobody(stage: Stage) -> None:
    jobs: dict[str, tuple[str | None, int]] = {}
    for text, shown, count in ARRAYS:
        began = time.monotonic()
        job = stage.submit("true", array=text, hold=True)
        assert time.monotonic() - began < LOOP_S, text[:40]
        jobs[job] = shown, count
    for text, says in REFUSED:
        answer = stage.call("POST", "/v1/jobs", {"spec": {"command": ["true"]}, "array": text})
        assert answer.status == 400, f"{text[:40]}: {answer.body!r}"
        assert says in answer.json["detail"], answer.json["detail"][:300]
    for _ in range(2):
        for job, (shown, count) in jobs.items():
            found = stage.job(job)
            assert found["tasks"]["total"] == count
            assert shown is None or found["array"] == shown
            page = stage.get(f"/v1/jobs/{job}/tasks?limit=3")
            assert len(page["items"]) == min(3, count)
        others_work(stage, but=set(jobs))
        restart(stage.server)
    assert "0-1999998:2" in stage.yard("ls", "--all", "-o", "json", check=True).stdout
    for job in jobs:  # they go to the cluster now, and are leased
        stage.call("PATCH", f"/v1/jobs/{job}", {"hold": False})
    others_work(stage, but=set(jobs))
    many = stage.post("/v1/jobs/cancel", {"everything": True, "limit": 100})
    assert set(jobs) <= set(many["ids"])
    for job, (_, count) in jobs.items():
        tally = stage.ended(job, timeout_s=2 * END_S)["tasks"]
        assert sum(tally.get(word, 0) for word in ("ok", "failed", "cancelled")) == count


@ON_SQLITE
def test_the_tasks_of_an_array_with_a_step_run_and_come_again(stage: Stage) -> None:
    ledger = stage.folder / "ledger"
    script = f"echo $SWITCHYARD_ARRAY_INDEX >> {ledger}; [ $SWITCHYARD_ARRAY_INDEX != 6 ]"
    job = stage.submit("/bin/sh", "-c", script, array="0-20:3%2", spec={"retry": {"limit": 1, "backoff": 1}})
    done = stage.ended(job, timeout_s=2 * END_S)
    assert (done["state"], done["tasks"]) == ("FAILED", {"total": 7, "ok": 6, "failed": 1})
    assert sorted(map(int, ledger.read_text().split())) == [0, 3, 6, 6, 9, 12, 15, 18]
    again = stage.read("retry", job)
    assert stage.job(again["id"])["array"] == "6%2"
    some = stage.submit("sleep", "600", array="0-20000:2", hold=True)
    few = stage.read("cancel", some, "--tasks", "4-100:4")
    assert few["tasks"]["cancelled"] == 25
    answer = stage.call("POST", f"/v1/jobs/{some}/cancel", {"tasks": "200-20000:2"})
    assert answer.status == 400
    assert "not neighbours" in answer.json["detail"]
    assert stage.call("POST", f"/v1/jobs/{some}/cancel", {"tasks": "5"}).status == 400


@pytest.mark.parametrize(
    ("database", "is_restarted"),
    [("sqlite", False), ("postgresql", True), SOAKED("sqlite", True), SOAKED("postgresql", False)],
    indirect=["database"],
)
def test_a_damaged_row_is_told_set_aside_and_harms_nobody(stage: Stage, database: str, is_restarted: bool) -> None:
    blocker = stage.submit("sleep", "600", spec={"resources": {"cores": 4}})
    stage.until_state(blocker, State.RUNNING)
    waits = {"spec": {"resources": {"cores": 2}}}
    damage = {"labels": "{", "bounds": "[", "todo": "0-", "later": "x", "state": "NOWHERE", "array": "0-9:x"}
    jobs = {column: stage.submit("true", array="0-9", **waits) for column in damage}
    if is_restarted:
        stage.server.close()
    for column, job in jobs.items():
        execute(database, f'UPDATE jobs SET "{column}" = :value WHERE id = :id', value=damage[column], id=job)
    if is_restarted:
        stage.server.start().wait_ready()
    small = stage.submit("true", spec={"resources": {"cores": 0.1}})
    listed = {each["id"]: each for each in stage.walk("/v1/jobs", limit=50)}
    assert {*jobs.values(), small, blocker} <= set(listed)
    stage.post(f"/v1/jobs/{blocker}/cancel", {})
    others_work(stage, but=set(jobs.values()))

    def look() -> list[Fields] | None:
        found = [stage.job(job) for job in jobs.values()]
        return found if all(each["reason"].startswith("unreadable: column ") for each in found) else None

    until(look, END_S, "each damaged job says that it cannot be read")
    log = stage.server.log
    for column, job in jobs.items():
        assert log.count(f"row={job}") + log.count(f'"row": "{job}"') <= 2  # once in each process
        answer = stage.call("GET", f"/v1/jobs/{job}/explain")
        assert answer.status < 500, f"{column}: {answer.body!r}"
        answer = stage.call("PATCH", f"/v1/jobs/{job}", {"hold": False})
        # How it stands was made PENDING when it was set aside: nothing else is the matter with that one.
        assert (answer.status, answer.json.get("code")) == ((200, None) if column == "state" else (409, "unreadable"))
    metrics = stage.call("GET", "/metrics").body.decode()
    assert 'switchyard_jobs_pending{reason="unreadable"}' in metrics
    assert f'switchyard_unreadable_rows{{table="jobs"}} {len(jobs)}.0' in metrics
    execute(database, "UPDATE jobs SET labels = '{}' WHERE id = :id", id=jobs["labels"])
    assert stage.call("PATCH", f"/v1/jobs/{jobs['labels']}", {"hold": False}).status == 200
    for column in ("labels", "state"):
        assert stage.ended(jobs.pop(column))["state"] == "SUCCEEDED"
    many = stage.post("/v1/jobs/cancel", {"everything": True, "limit": 100})
    assert set(many["ids"]) >= set(jobs.values())
    for job in jobs.values():
        assert stage.ended(job)["state"] == "CANCELLED"
