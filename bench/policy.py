"""Effective policy: a scope seen before, a new one, the same question asked of the database; and what a change costs.

CPU time of this process, so that a noisy neighbour does not count; the database is asked over its own connection, and
there the time on the wall counts too.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import sqlalchemy as sa

from bench import bed
from bench.table import Table
from switchyard.model.rules.scope import LEVEL_RANK, ScopeKey, level_of
from switchyard.policy.kinds import BUILTIN_KINDS, Kinds
from switchyard.policy.platform import Platform
from switchyard.policy.resolve import Policy, RuleRow, empty_policy
from switchyard.service.core.snapshots.snapshots import Snapshots
from switchyard.store.engine.clock import wall_us
from switchyard.store.engine.database import Database, Tx, upgrade_schema
from switchyard.store.jobs.events import counter_take
from switchyard.store.rules.attributes import WrittenValue, attribute_put
from switchyard.store.tables.rules_tables import attributes

PROJECTS, DOMAINS, WORKFLOWS, ROWS = 1000, ("development", "staging", "production"), 20, 50_000
ASKED = 2000  # scopes asked of the database
AGAIN = 200_000  # looks at scopes seen before
TASK, CONFIG, LABEL = "task-resource-attribute", "workflow-execution-config", "execution-cluster-label"
KINDS = Kinds(BUILTIN_KINDS)
PLATFORM = Platform(
    domains={name: name for name in DOMAINS},
    labels=frozenset({"near", "far"}),
    values={TASK: KINDS.get(TASK).read({"defaults": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "8"}})},
)


def measure(folder: Path) -> list[Table]:
    resolving = Table(
        "Resolving a scope's effective policy",
        f"{PROJECTS:,} projects x {len(DOMAINS)} domains x {WORKFLOWS} workflows, {ROWS:,} rows. CPU time of one "
        "question, in µs; *database*: one query for the rows that hold, then the same merge.",
        ["database", "seen before µs", "new µs", "database µs (wall)", "times, new", "times, seen"],
    )
    changing = Table(
        "A changed row",
        "Wall time, in ms. *Load*: all rows, at a server's start. *Refresh*: one changed row from the database into a "
        "new snapshot. *Copy*: the part of it that makes the snapshot.",
        ["database", "load ms", "refresh ms", "copy ms"],
    )
    for kind in bed.DATABASES:
        with bed.database(kind) as url, closing(Database(url or f"sqlite:///{folder / 'policy.db'}")) as database:
            upgrade_schema(database)
            _fill(database)
            _measure_on(kind, database, resolving, changing)
    return [resolving, changing]


def _measure_on(kind: str, database: Database, resolving: Table, changing: Table) -> None:
    snapshots = Snapshots(database, policy=empty_policy(PLATFORM, KINDS), now_us=wall_us, silent_after_us=10**18)
    load_ms = _wall_ms(lambda: snapshots.refresh(force=True))
    keys = _scopes()
    policy = snapshots.policy
    gc.collect()
    gc.freeze()  # as the server does once it has started
    new_us = _cpu_us(lambda: [policy.effective(key) for key in keys], len(keys))
    few = keys[:1000]
    seen_us = _cpu_us(lambda: [policy.effective(key) for _ in range(AGAIN // len(few)) for key in few], AGAIN)
    asked = random.Random(7).sample(keys, ASKED)
    with database.read() as tx:
        _check(tx, policy, asked[:50])
        began = time.perf_counter()
        for key in asked:
            _ask(tx, key)
        database_us = (time.perf_counter() - began) / ASKED * 1e6
    resolving.add(
        kind,
        f"{seen_us:.2f}",
        f"{new_us:.1f}",
        f"{database_us:.0f}",
        f"{database_us / new_us:.0f}x",
        f"{database_us / seen_us:.0f}x",
    )
    _change(database)
    refresh_ms = _wall_ms(snapshots.refresh)
    assert snapshots.policy is not policy
    copy_ms = _wall_ms(lambda: policy.changed(policy.version + 1, [_row(keys[0])]))
    changing.add(kind, f"{load_ms:.0f}", f"{refresh_ms:.1f}", f"{copy_ms:.1f}")


def _scopes() -> list[ScopeKey]:
    found = [
        (domain, f"p{project}", f"w{workflow}", "")
        for project in range(PROJECTS)
        for domain in DOMAINS
        for workflow in range(WORKFLOWS)
    ]
    random.Random(1).shuffle(found)
    return found


def _fill(database: Database) -> None:
    """Three rows of domains, one per project, one per project and domain, the rest at workflows."""
    rows: list[tuple[ScopeKey, str, str]] = [
        ((domain, "", "", ""), CONFIG, '{"envs":{"STAGE":"' + domain + '"},"interruptible":true}') for domain in DOMAINS
    ]
    for project in range(PROJECTS):
        rows.append((("", f"p{project}", "", ""), TASK, '{"limits":{"cpu":"16","memory":"64Gi"}}'))
        rows += [((domain, f"p{project}", "", ""), LABEL, '{"value":"near"}') for domain in DOMAINS]
    rows += [(key, TASK, '{"defaults":{"cpu":"2"}}') for key in _scopes()[: ROWS - len(rows)]]
    with database.write() as tx:
        counter_take(tx, "policy", 1)
        tx.execute(sa.insert(attributes), [_stored(number, *row) for number, row in enumerate(rows)])
    if not database.is_sqlite:
        with database.write() as tx:
            tx.execute(sa.text("ANALYZE"))


def _stored(number: int, key: ScopeKey, kind: str, value: str) -> dict[str, object]:
    domain, project, workflow, launch_plan = key
    return {
        "id": f"{number:026}",
        "kind": kind,
        "domain": domain,
        "project": project,
        "workflow": workflow,
        "launch_plan": launch_plan,
        "rank": LEVEL_RANK[level_of(key)],
        "value": value,
        "etag": str(number),
        "serial": 1,
        "changed_us": 0,
        "changed_by": "bench",
    }


def _ask(tx: Tx, key: ScopeKey) -> dict[tuple[str, str], object]:
    """What a server without a snapshot would do for each job: the rows of all kinds that hold, then the merge."""
    columns = (attributes.c.domain, attributes.c.project, attributes.c.workflow, attributes.c.launch_plan)
    within = [column.in_(sorted({"", part})) for column, part in zip(columns, key, strict=True)]
    query = sa.select(attributes).where(
        attributes.c.kind.in_(list(KINDS.by_name)), *within, attributes.c.value.is_not(None)
    )
    found: dict[tuple[str, str], object] = {}
    for row in tx.execute(query.order_by(attributes.c.rank)):
        kind = KINDS.get(row.kind)
        fields = kind.flatten(kind.read(msgspec.json.decode(row.value)))
        found.update({(row.kind, path): value for path, value in fields.items()})
    return found


def _check(tx: Tx, policy: Policy, keys: list[ScopeKey]) -> None:
    """Both say the same, or the comparison would be about nothing."""
    for key in keys:
        flat = {at: entry.value for at, entry in policy.effective(key).flat.items() if entry.source.row}
        assert flat == _ask(tx, key), key


def _change(database: Database) -> None:
    with database.write() as tx:
        counter_take(tx, "policy", 1)
        written = WrittenValue("x", 4, '{"defaults":{"cpu":"3"}}', "new", changed_us=1, changed_by="bench")
        attribute_put(tx, TASK, _scopes()[0], written)


def _row(key: ScopeKey) -> RuleRow:
    return RuleRow("x", TASK, key, KINDS.get(TASK).read({"defaults": {"cpu": "3"}}))


def _cpu_us(work: Callable[[], object], count: int) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / count * 1e6


def _wall_ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000
