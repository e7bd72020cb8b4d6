"""What every store must do, the same on SQLite and PostgreSQL: jobs, keys, leases, agents, counters, output."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from switchyard.model.job.job import State
from switchyard.store.access import access
from switchyard.store.clusters import clusters
from switchyard.store.engine import leaders
from switchyard.store.engine.database import Database, Tx
from switchyard.store.files import database_logs
from switchyard.store.jobs import events, jobs, leases
from switchyard.store.jobs.job_rows import IdempotencyClaim
from switchyard.store.jobs.job_update import JobUpdate
from switchyard.store.jobs.jobs import JobFilter
from tests.store import prepared
from tests.store.rows import NOW_US, SPEC, an_id, job_row, put_agent, put_cluster, put_jobs

store, store_url = prepared.store, prepared.store_url


# --- jobs


def test_a_job_is_read_back_as_it_was_put(store: Database) -> None:
    row = job_row(
        1, labels='{"größe":"日本"}', memory_bytes=2**63 - 1, fence=2**63 - 1, cancel_us=NOW_US, lost_after_s=9
    )
    with store.write() as tx:
        put_cluster(tx)
        put_jobs(tx, row)
    with store.read() as tx:
        found = jobs.job_get(tx, an_id(1))
        assert found is not None
        assert {name: getattr(found, name) for name in row} == row
        assert (found.cluster, found.spec) == ("name-c1", SPEC["spec-1"])
        assert jobs.job_get(tx, an_id(2)) is None


def test_a_job_put_again_stays_as_it_is(store: Database) -> None:
    with store.write() as tx:
        put_jobs(tx, job_row(1, state="RUNNING"))
        put_jobs(tx, job_row(1, state="PENDING"), job_row(2))
    with store.read() as tx:
        assert {row.id: row.state for row in jobs.job_states(tx, [an_id(1), an_id(2)]).values()} == {
            an_id(1): "RUNNING",
            an_id(2): "ASSIGNED",
        }


def test_nothing_of_a_transaction_that_failed_stays(store: Database) -> None:
    with pytest.raises(sa.exc.IntegrityError), store.write() as tx:  # noqa: PT012 - the end of the block commits
        put_jobs(tx, job_row(1))
        put_jobs(tx, job_row(2, spec_hash=None))
    with store.read() as tx:
        assert jobs.job_get(tx, an_id(1)) is None


def test_locking_finds_the_known_ones_of_any_number(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    assert jobs.IDS_PER_STATEMENT_MAX < 32_766, "more parameters than SQLite takes in one statement"
    monkeypatch.setattr(jobs, "IDS_PER_STATEMENT_MAX", 10)
    with store.write() as tx:
        put_jobs(tx, *(job_row(number) for number in (33, 1, 12)))
        many = [an_id(number) for number in range(40, 0, -1)]
        assert list(jobs.job_lock(tx, many)) == [an_id(1), an_id(12), an_id(33)]
        assert jobs.job_lock(tx, []) == {}


def test_a_change_touches_its_columns_and_its_jobs_only(store: Database) -> None:
    with store.write() as tx:
        put_jobs(tx, *(job_row(number) for number in (1, 2, 3)))
        jobs.job_update_many(
            tx, {an_id(2): JobUpdate(state=State.RUNNING, agent_id=None), an_id(1): JobUpdate(exit_code=-9)}
        )
        jobs.job_update_many(tx, {})
        found = jobs.job_lock(tx, [an_id(1), an_id(2), an_id(3)])
    assert [(row.state, row.exit_code) for row in found.values()] == [
        ("ASSIGNED", -9),
        ("RUNNING", None),
        ("ASSIGNED", None),
    ]


def test_waiting_jobs_come_in_the_order_of_their_arrival(store: Database) -> None:
    with store.write() as tx:
        put_jobs(
            tx, *(job_row(number, state="PENDING") for number in (4, 2, 3)), job_row(1), job_row(5, state="FAILED")
        )
    with store.read() as tx:
        assert [row.id for row in jobs.job_list_routable(tx, after="", limit=2)] == [an_id(2), an_id(3)]
        (last,) = jobs.job_list_routable(tx, after=an_id(3), limit=2)
        assert (last.id, last.spec_hash) == (an_id(4), "spec-1")


def test_a_prefix_finds_its_jobs_only(store: Database) -> None:
    with store.write() as tx:
        put_jobs(tx, *(job_row(1, id=name) for name in ("AAAAAA" + "0" * 20, "AAAAAB" + "Z" * 20, "AAAAAC" + "0" * 20)))
    with store.read() as tx:
        assert jobs.job_ids_by_prefix(tx, "AAAAAB") == ["AAAAAB" + "Z" * 20]
        assert jobs.job_ids_by_prefix(tx, "AAAAA") == ["AAAAAA" + "0" * 20, "AAAAAB" + "Z" * 20]
        assert jobs.job_ids_by_prefix(tx, "AAAAAD") == []


# --- lists


def listed(tx: Tx, *, limit: int = 100, budget: int = 1000, before: str | None = None, **wanted: Any) -> list[str]:
    rows, _ = jobs.job_list(tx, JobFilter(**wanted), before=before, limit=limit, budget=budget, with_spec=False)
    return [row.id for row in rows]


def test_lists_keep_to_their_filter(store: Database) -> None:
    with store.write() as tx:
        put_cluster(tx)
        put_jobs(
            tx,
            job_row(1, state="RUNNING"),
            job_row(2, state="FAILED", owner="bob"),
            job_row(3, project="web", cluster_id=None),
            job_row(4, domain="production", owner="bob", project="web"),
        )
    one, two, three, four = (an_id(number) for number in (1, 2, 3, 4))
    with store.read() as tx:
        assert listed(tx) == [four, three, two, one]
        assert listed(tx, states=["RUNNING", "FAILED"]) == [two, one]
        assert listed(tx, cluster="name-c1") == [four, two, one]
        assert listed(tx, project="web", owner="bob") == [four]
        assert listed(tx, domain="production") == [four]
        assert listed(tx, projects=["web"], reader="ann") == [four, three, one], "of a project, or one's own"
        assert listed(tx, projects=[], reader="nobody") == []
        assert listed(tx, before=three, limit=1) == [two]


@pytest.mark.parametrize(
    ("labels", "key", "value", "is_found"),
    [
        ('{"team":"red"}', "team", "red", True),
        ('{"team":"red"}', "team", "Red", False),
        ('{"team":"red"}', "TEAM", "red", False),
        ('{"team":"red"}', "team", "re", False),
        ('{"team":"red"}', "eam", "red", False),
        ('{"a":"b","team":"red","z":""}', "team", "red", True),
        ('{"a":"b","team":"red","z":""}', "z", "", True),
        ('{"p":"100%"}', "p", "100%", True),
        ('{"p":"1000"}', "p", "100%", False),
        ('{"p":"a_c"}', "p", "a_c", True),
        ('{"p":"abc"}', "p", "a_c", False),
        ('{"p":"a\\\\c"}', "p", "a\\c", True),
        ('{"x":"\\"team\\":\\"red\\""}', "team", "red", False),
        ('{"größe":"日本"}', "größe", "日本", True),
    ],
)
def test_a_label_is_found_exactly(store: Database, labels: str, key: str, value: str, is_found: bool) -> None:
    with store.write() as tx:
        put_jobs(tx, job_row(1, labels=labels))
    with store.read() as tx:
        assert listed(tx, labels={key: value}) == ([an_id(1)] if is_found else [])


@pytest.mark.parametrize("budget", [1, 3, 7, 50])
def test_a_walk_within_a_budget_sees_each_job_once(store: Database, budget: int) -> None:
    with store.write() as tx:
        put_jobs(tx, *(job_row(number, owner="bob" if number % 5 == 0 else "ann") for number in range(1, 21)))
    seen: list[str] = []
    cursor: str | None = None
    with store.read() as tx:
        for _ in range(30):
            rows, cursor = jobs.job_list(
                tx, JobFilter(owner="bob"), before=cursor, limit=2, budget=budget, with_spec=True
            )
            assert all(row.spec == SPEC["spec-1"] for row in rows)
            seen += [row.id for row in rows]
            if cursor is None:
                break
    assert seen == [an_id(number) for number in (20, 15, 10, 5)]
    assert cursor is None


# --- idempotency keys


def claim(owner: str, key: str, job: str, body: str = "h1", at_us: int = NOW_US) -> IdempotencyClaim:
    return IdempotencyClaim(owner, key, body, job, at_us)


def test_a_key_belongs_to_who_claimed_it_first(store: Database) -> None:
    with store.write() as tx:
        mine = jobs.idempotency_claim(
            tx, [claim("ann", "k", "job-1"), claim("bob", "k", "job-2"), claim("ann", "k", "job-3")]
        )
        assert {key: row.job_id for key, row in mine.items()} == {("ann", "k"): "job-1", ("bob", "k"): "job-2"}
    with store.write() as tx:
        again = jobs.idempotency_claim(tx, [claim("ann", "k", "job-4", body="h2"), claim("ann", "l", "job-5")])
    assert {key: (row.job_id, row.body_hash) for key, row in again.items()} == {
        ("ann", "k"): ("job-1", "h1"),
        ("ann", "l"): ("job-5", "h1"),
    }


def test_old_keys_are_cleaned_a_few_at_a_time(store: Database) -> None:
    with store.write() as tx:
        jobs.idempotency_claim(tx, [claim("ann", f"k{number}", "job", at_us=NOW_US + number) for number in range(10)])
        assert jobs.idempotency_clean(tx, before_us=NOW_US + 6, limit=4) == 4
        assert jobs.idempotency_clean(tx, before_us=NOW_US + 6, limit=4) == 2
        assert jobs.idempotency_clean(tx, before_us=NOW_US + 6, limit=4) == 0


# --- leases


def test_heads_come_by_lane_priority_and_arrival(store: Database) -> None:
    with store.write() as tx:
        put_cluster(tx)
        put_cluster(tx, "c2")
        put_jobs(
            tx,
            job_row(1),
            job_row(2, priority=5),
            job_row(3, priority=5),
            job_row(4, lane="default/web"),
            job_row(5, lane="default/web", priority=-1),
            job_row(6, cluster_id="c2"),
            job_row(7, state="PENDING", cluster_id=None),
            job_row(8, agent_id="a1"),
            job_row(9, state="RUNNING", agent_id="a1"),
            job_row(10, state="CANCELLED"),
        )
        found = leases.lease_candidates(tx, {"c1": 2})
        by_lane = {
            lane: [row.id for row in found["c1"] if row.lane == lane] for lane in ("default/default", "default/web")
        }
        assert by_lane == {"default/default": [an_id(2), an_id(3)], "default/web": [an_id(4), an_id(5)]}
        assert {row.id for row in leases.lease_candidates(tx, {"c1": 9, "c2": 1})["c2"]} == {an_id(6)}
        assert found["c1"][0].spec == SPEC["spec-1"]
        assert leases.lease_candidates(tx, {"nowhere": 3}) == {"nowhere": []}


def test_no_lease_is_given_at_a_cluster_that_is_cordoned_or_gone(store: Database) -> None:
    with store.write() as tx:
        put_cluster(tx, is_cordoned=True)
        put_cluster(tx, "c2", deleted_us=NOW_US)
        put_jobs(tx, job_row(1), job_row(2, cluster_id="c2"))
        assert leases.lease_candidates(tx, {"c1": 5, "c2": 5}) == {"c1": [], "c2": []}
        clusters.cluster_change(tx, "c1", clusters.ClusterUpdate(is_cordoned=False))
        assert len(leases.lease_candidates(tx, {"c1": 5})["c1"]) == 1


def test_what_is_leased_is_held_and_no_longer_ready(store: Database) -> None:
    with store.write() as tx:
        put_cluster(tx)
        put_jobs(tx, *(job_row(number) for number in (1, 2, 3)))
        leases.lease_give(tx, [(an_id(2), "a1"), (an_id(1), "a2")], at_us=NOW_US)
        leases.lease_give(tx, [(an_id(1), "a3")], at_us=NOW_US + 1)
        leases.lease_give(tx, [], at_us=NOW_US)
        assert [row.id for row in leases.lease_candidates(tx, {"c1": 9})["c1"]] == [an_id(3)]
        assert [(row.id, row.leased_us) for row in leases.leased_by(tx, "a1")] == [(an_id(2), NOW_US)]
        assert [row.id for row in leases.leased_by(tx, "a2")] == [an_id(1)], "a job that is leased stays with its agent"
        assert leases.ready_job_ids(tx, ["c1"], 9) == [an_id(3)]
        assert leases.cluster_ids_with_ready(tx) == ["c1"]
        jobs.job_update_many(
            tx, {an_id(2): JobUpdate(state=State.RUNNING, cancel_us=NOW_US), an_id(1): JobUpdate(cancel_us=NOW_US)}
        )
        cancels = leases.leased_cancels(tx, ["a1", "a2", "a9"])
        assert {agent: [row.id for row in rows] for agent, rows in cancels.items()} == {
            "a1": [an_id(2)],
            "a2": [an_id(1)],
        }
        jobs.job_update_many(tx, {an_id(1): JobUpdate(state=State.FAILED), an_id(2): JobUpdate(state=State.CANCELLED)})
        assert leases.leased_by(tx, "a1") == leases.leased_by(tx, "a2") == []
        assert leases.leased_cancels(tx, ["a1", "a2"]) == {}


# --- agents


def test_an_agent_is_never_seen_earlier_than_before(store: Database) -> None:
    with store.write() as tx:
        put_cluster(tx)
        put_agent(tx)
        put_agent(tx, "a2")
        clusters.agent_set_seen(tx, {"a2": (NOW_US, None), "a1": (NOW_US + 5, '{"running":1}'), "gone": (1, None)})
        clusters.agent_set_seen(tx, {"a1": (NOW_US + 3, '{"running":9}')})
        clusters.agent_set_seen(tx, {"a1": (NOW_US + 7, None)})
        clusters.agent_set_seen(tx, {})
        assert clusters.agent_last_seen(tx) == {"a1": NOW_US + 7, "a2": NOW_US}
        assert {row.id: row.load for row in clusters.agent_all(tx)} == {"a1": '{"running":1}', "a2": None}


def test_each_sync_begins_a_session_and_a_removed_agent_has_none(store: Database) -> None:
    with store.write() as tx:
        put_cluster(tx)
        put_agent(tx)
        put_agent(tx, "a2", deleted_us=NOW_US)
        begun = clusters.AgentUpdate(incarnation="i1", writes=3)
        assert [clusters.agent_begin_session(tx, "a1", begun, at_us=NOW_US) for _ in range(2)] == [1, 2]
        assert clusters.agent_lock(tx, "a2") is None
        [(agent_id, row)] = clusters.agent_sessions(tx, ["a2", "a1", "a9"]).items()
        assert (agent_id, row.session, row.is_paused, row.incarnation, row.rival) == ("a1", 2, False, "i1", None)
        for incarnation, writes in (("i1", 5), ("i2", 9), ("i1", 4)):
            clusters.agent_set_writes(tx, {"a1": (incarnation, writes), "a9": ("i1", 1)})
        locked = clusters.agent_lock(tx, "a1")
        assert locked is not None
        assert locked.writes == 5, "never fewer, and only of the process that has the place"


def test_a_name_is_taken_only_while_its_registration_lives(store: Database) -> None:
    with store.write() as tx:
        put_cluster(tx, "c1", name="alpha")
        put_agent(tx, "a1", name="node")
        clusters.cluster_change(tx, "c1", clusters.ClusterUpdate(deleted_us=NOW_US))
        clusters.agent_delete_of(tx, "c1", at_us=NOW_US)
        put_cluster(tx, "c2", name="alpha")
        found = clusters.cluster_by_name(tx, "alpha")
        assert found is not None
        assert found.id == "c2"
        assert clusters.agent_all(tx) == []
    with pytest.raises(sa.exc.IntegrityError), store.write() as tx:
        put_cluster(tx, "c3", name="alpha")


# --- counters and leaders


def test_numbers_are_taken_once_and_undone_with_their_transaction(store: Database) -> None:
    with store.write() as tx:
        assert [events.counter_take(tx, "events", count) for count in (1, 5, 1)] == [1, 2, 7]
        assert events.counter_take(tx, "other", 3) == 1
    with pytest.raises(ZeroDivisionError), store.write() as tx:  # noqa: PT012 - the end of the block would commit
        events.counter_take(tx, "events", 100)
        raise ZeroDivisionError
    with store.write() as tx:
        assert events.counter_take(tx, "events", 1) == 8


def test_a_counter_that_holds_a_time_is_never_set_back(store: Database) -> None:
    with store.write() as tx:
        for value, after in ((NOW_US, NOW_US), (NOW_US + 9, NOW_US + 9), (NOW_US + 5, NOW_US + 9)):
            events.counter_raise(tx, "amnesty_us", value)
            assert events.counters_read(tx)["amnesty_us"] == after


def test_one_leads_until_its_term_ends(store: Database) -> None:
    with store.write() as tx:

        def take(holder: str, now_us: int) -> int | None:
            return leaders.leader_take(tx, "upkeep", holder, now_us=now_us, for_us=10)

        assert take("x", 100) == 1
        assert take("y", 109) is None
        assert take("x", 105) == 1, "it stays the leader under the same epoch"
        assert take("y", 114) is None
        assert take("y", 115) == 2
        assert leaders.leader_has_epoch(tx, "upkeep", 2)
        assert not leaders.leader_has_epoch(tx, "upkeep", 1)
        assert not leaders.leader_has_epoch(tx, "other", 0)
        leaders.leader_leave(tx, "upkeep", "x", now_us=116)
        assert leaders.leader_has_epoch(tx, "upkeep", 2), "one that does not lead cannot leave"
        leaders.leader_leave(tx, "upkeep", "y", now_us=116)
        assert leaders.leader_lock(tx, "upkeep").expires_us == 116, "when its term ended stays known"
        assert take("x", 116) == 3
        assert not leaders.leader_has_epoch(tx, "upkeep", 2)


def test_a_term_that_ends_later_than_any_could_is_over(store: Database) -> None:
    hour_us = 3_600_000_000
    with store.write() as tx:
        assert leaders.leader_take(tx, "upkeep", "x", now_us=NOW_US + hour_us, for_us=10) == 1
        assert leaders.leader_take(tx, "upkeep", "y", now_us=NOW_US, for_us=10) == 2
        assert leaders.leader_take(tx, "upkeep", "x", now_us=NOW_US, for_us=10) is None


# --- output, access


def test_output_is_taken_only_from_the_agent_that_leased_the_attempt(store: Database) -> None:
    with store.write() as tx:
        put_jobs(tx, job_row(1, agent_id="a1", fence=3, owner="ann"), job_row(2, agent_id=None, fence=1))
        asked = [(an_id(1), 3), (an_id(1), 2), (an_id(2), 1), (an_id(9), 1)]
        assert database_logs.leased_attempt_owners(tx, "a1", asked) == {(an_id(1), 3): "ann"}
        assert database_logs.leased_attempt_owners(tx, "a2", asked) == {}
        assert database_logs.leased_attempt_owners(tx, "a1", []) == {}


def test_a_project_is_made_once(store: Database) -> None:
    with store.write() as tx:
        row = access.ProjectRow("web", "", "", "{}", NOW_US, None)
        assert [access.project_put(tx, row) for _ in range(2)] == [True, False]


def test_a_reader_cannot_write(store: Database) -> None:
    if store.is_sqlite:
        with pytest.raises(Exception, match="readonly"), store.read() as tx:
            events.counter_take(tx, "events", 1)
