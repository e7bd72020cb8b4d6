"""Two servers on one PostgreSQL register at the same time: one of two equal ids wins, and nobody blocks anybody."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from switchyard.errors import YardError
from switchyard.features.flyte.service.entities import entity_changes, registration
from switchyard.features.flyte.store.tables import entities_tables
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind
from switchyard.model.wire.api import ProjectRequest
from switchyard.service.access import projects
from tests.service.entities.requests import DOMAIN, PROJECT, plan_request, task_request, workflow_request
from tests.service.rig import ADMIN, Rig, running

ROUNDS = 20


def at_once(*works: Any) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_two_servers_register_the_same_and_in_other_orders(postgres_url: str, tmp_path: Path) -> None:
    answers: list[str] = []
    with running(postgres_url, tmp_path / "a") as first, running(postgres_url, tmp_path / "b") as second:
        for name in ("p1", "p2"):
            projects.project_create(first.context, ADMIN, ProjectRequest(name))

        def work(rig: Rig, order: tuple[str, str]) -> None:
            for number in range(ROUNDS):
                for project in order:
                    try:
                        registration.create_task(rig.context, ADMIN, task_request(f"t{number}", project=project))
                        answers.append("made")
                    except YardError as exc:
                        answers.append(type(exc).__name__)

        orders = [("p1", "p2"), ("p2", "p1")]
        at_once(*(lambda rig=rig, order=order: work(rig, order) for rig in (first, second) for order in orders))
        with first.context.database.read() as tx:
            usage = entities_tables.entity_usage
            counted = tx.execute(sa.select(usage).order_by(usage.c.project)).all()
    assert sorted(set(answers)) == ["NameTaken", "made"]
    assert answers.count("made") == 2 * ROUNDS
    assert [(row.project, row.entities) for row in counted] == [("p1", ROUNDS), ("p2", ROUNDS)]


def test_two_servers_activate_other_versions(postgres_url: str, tmp_path: Path) -> None:
    failures: list[YardError] = []
    with running(postgres_url, tmp_path / "a") as first, running(postgres_url, tmp_path / "b") as second:
        registration.create_task(first.context, ADMIN, task_request())
        registration.create_workflow(first.context, ADMIN, workflow_request())
        for version in ("v1", "v2"):
            registration.create_launch_plan(first.context, ADMIN, plan_request(version=version))

        def work(rig: Rig, version: str) -> None:
            plan = EntityId(EntityKind.LAUNCH_PLAN, PROJECT, DOMAIN, "wf", version)
            for _ in range(ROUNDS):
                try:
                    entity_changes.set_active(rig.context, ADMIN, plan, is_active=True)
                except YardError as exc:
                    failures.append(exc)

        at_once(lambda: work(first, "v1"), lambda: work(second, "v2"))
        with first.context.database.read() as tx:
            entities = entities_tables.entities
            active = sa.select(sa.func.count()).select_from(entities).where(entities.c.is_active)
            assert tx.execute(active).scalar_one() == 1
    assert failures == []
