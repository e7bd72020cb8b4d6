"""Whatever is stored can be read: every field of every table as a database keeps it, and every job as we write it."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from switchyard.errors import BadRequest
from switchyard.model.cluster.idset import parse_array
from switchyard.model.job.job import JobRequest, JobSpec, State
from switchyard.model.job.task_states import TaskState, new_task_states, read_task, write_task
from switchyard.route.verdicts import decode_verdicts
from switchyard.service.core import unreadable_rows
from switchyard.service.job import explanation, jobs
from switchyard.service.lifecycle import visibility
from switchyard.service.lifecycle.damage import damage_of
from switchyard.store.feature import all_tables
from switchyard.store.jobs import jobs as job_store
from switchyard.store.jobs import unreadable_jobs
from tests.service.rig import ADMIN, Rig

ONE_RIG = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
PRINTABLE = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=30)
NAME = st.from_regex(r"[a-z][a-z0-9]{0,10}", fullmatch=True)
VALUES: dict[type, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(-(2**31), 2**31 - 1),
    bool: st.booleans(),
    bytes: st.binary(max_size=40),
    float: st.floats(allow_nan=False, allow_infinity=False, width=32),
}


def rows_of(data: st.DataObject) -> dict[str, dict[str, Any]]:
    """A row of each table; where a column refers to another table, to the row of that."""
    found: dict[str, dict[str, Any]] = {}
    for table in all_tables().sorted_tables:
        row: dict[str, Any] = {}
        for column in table.c:
            value = VALUES[column.type.python_type]
            if isinstance(column.type, sa.BigInteger):
                value = st.integers(-(2**63), 2**63 - 1)
            row[column.name] = data.draw(st.none() | value if column.nullable else value)
            for key in column.foreign_keys:
                row[column.name] = found[key.column.table.name][key.column.name]
        found[table.name] = row
    return found


class Undone(Exception):
    """Ends a transaction of which nothing is to stay."""


def put_and_read(tx: Any, rows: dict[str, dict[str, Any]]) -> None:
    for table in reversed(all_tables().sorted_tables):
        tx.execute(sa.delete(table))
    for table in all_tables().sorted_tables:
        row = rows[table.name]
        tx.execute(sa.insert(table), [row])
        mine = [column == row[column.name] for column in table.primary_key.columns]
        assert dict(tx.execute(sa.select(table).where(*mine)).one()._mapping) == row, table.name
    raise Undone


@ONE_RIG
@given(data=st.data())
def test_every_column_of_every_table_gives_back_what_was_put_in(rig: Rig, data: st.DataObject) -> None:
    rows = rows_of(data)
    with contextlib.suppress(Undone), rig.context.database.write() as tx:
        put_and_read(tx, rows)


REQUESTS: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    name=st.none() | PRINTABLE,
    priority=st.integers(-1000, 1000),
    labels=st.dictionaries(NAME, PRINTABLE, max_size=5),
    array=st.none()
    | st.sampled_from(["0-30000:2", "0-1999998:2", "5,3,9-20:4%2", "0-9,20-40:5", "1-2000000000:2000%7"])
    | st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=30, unique=True).map(
        lambda them: ",".join(map(str, them))
    ),
    tags=st.just([]),
    hold=st.booleans(),
    expires_after=st.none() | st.integers(1, 10**6),
    spill=st.sampled_from([[], ["reject after 24h"]]),
    parameters=st.dictionaries(NAME, st.integers(-100, 100) | PRINTABLE, max_size=3),
    spec=st.builds(
        dict,
        command=st.lists(TEXT, min_size=1, max_size=4).map(lambda words: ["true", *words]),
        env=st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), TEXT, max_size=3),
        on_lost=st.sampled_from(["wait", "fail", "requeue"]),
        retry=st.builds(dict, limit=st.integers(0, 5)),
        resources=st.builds(dict, cores=st.integers(1, 4), memory=st.sampled_from(["1GiB", 0, "3.5MB"])),
    ),
)


@ONE_RIG
@given(fields=REQUESTS)
def test_every_accepted_job_can_be_read_in_full(rig: Rig, fields: dict[str, Any]) -> None:
    try:
        request = msgspec.convert(fields, JobRequest)
        made = rig.submit(request)
    except (msgspec.ValidationError, BadRequest):
        return  # refused at the door: nothing is stored
    before = unreadable_rows.unreadable_counts()
    with rig.context.database.read() as tx:
        (row,) = unreadable_jobs.jobs_with_specs(tx, [made.id])
        body = job_store.verdicts_get(tx, row.plan_hash or "")
        assert visibility.policy_of(tx, row) is not None
    assert not damage_of(row)
    assert body is not None
    decode_verdicts(body)
    shown = rig.job(made.id)
    assert unreadable_rows.unreadable_counts() == before
    assert (shown.labels, shown.priority) == (request.labels, request.priority)
    assert isinstance(shown.spec, msgspec.Raw)
    stored = msgspec.json.decode(shown.spec, type=JobSpec)
    assert (stored.command, stored.env, stored.on_lost) == (
        request.spec.command,
        request.spec.env,
        request.spec.on_lost,
    )
    if request.array is not None and shown.array is not None:
        (asked, most), (kept, kept_most) = parse_array(request.array), parse_array(shown.array)
        assert (len(kept), kept_most) == (len(asked), most)
        assert asked.is_within(kept)
        assert len(row.todo or "") <= max(len(request.array), 40)
    explanation.job_explain(rig.context, ADMIN, made.id)
    jobs.job_events(rig.context, ADMIN, made.id, after=0, limit=100)
    if shown.state not in (State.REJECTED,):
        assert jobs.job_cancel(rig.context, ADMIN, made.id, fields["name"] or "").state is State.CANCELLED
    with rig.context.database.read() as tx:
        assert not damage_of(unreadable_jobs.jobs_with_specs(tx, [made.id])[0])


@given(
    st.sampled_from([*(state for state in State if state not in (State.PENDING, State.REJECTED)), None]),
    st.none() | st.integers(0, 255),
    st.none() | st.integers(0, 64),
    st.booleans(),
    st.booleans(),
)
def test_a_task_is_read_as_it_was_written(
    state: State | None, exit_code: int | None, signal: int | None, is_cancelling: bool, is_preempted: bool
) -> None:
    task = TaskState(state, exit_code if signal is None else None, signal, is_cancelling, is_preempted)
    tasks = write_task(new_task_states(3), 1, task)
    assert read_task(tasks, 1) == task
    assert read_task(tasks, 0) == read_task(tasks, 2) == TaskState()


def test_bytes_that_are_no_task_are_one_that_nobody_has() -> None:
    assert [read_task(tasks, 1).state for tasks in (b"", b"\0\0", b"\0\0\x0f\0")] == [None, None, None]
