"""Register, read, list and activate on both databases: contents are stored once, versions never change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from switchyard.errors import BadRequest, Denied, LimitReached, NameTaken, NotFound, TooLarge, YardError
from switchyard.features.flyte.service.entities import entity_changes, entity_reads, registration
from switchyard.features.flyte.service.entities.entity_changes import NameQuery
from switchyard.features.flyte.service.entities.entity_reads import EntityQuery
from switchyard.features.flyte.store.entities.entity_names import EntityNameKey
from switchyard.features.flyte.store.tables import entities_tables
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, read_id
from switchyard.features.flyte.workflow.lists.filters import ENTITY_COLUMNS, NAME_COLUMNS, read_filters
from switchyard.features.flyte.workflow.lists.list_query import ListOrder
from switchyard.features.flyte.workflow.values.limits import WorkflowLimits
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.model.wire.api import ProjectChange, ProjectRequest
from switchyard.service.access import projects
from switchyard.service.core.rights import Actor
from switchyard.store.tables import schema
from tests.service.entities.requests import (
    DOMAIN,
    PROJECT,
    placed,
    plan_request,
    task_request,
    workflow_request,
)
from tests.service.rig import ADMIN, Rig, running
from tests.workflow.builders import INT, TEXT, interface, task_node

CREATE = {
    EntityKind.TASK: registration.create_task,
    EntityKind.WORKFLOW: registration.create_workflow,
    EntityKind.LAUNCH_PLAN: registration.create_launch_plan,
}


def create(rig: Rig, request: Any, actor: Actor = ADMIN) -> None:
    rig.clock.wait(1)
    kind = {"Task": EntityKind.TASK, "Work": EntityKind.WORKFLOW, "Laun": EntityKind.LAUNCH_PLAN}
    CREATE[kind[type(request).__name__[:4]]](rig.context, actor, request)


def entity(kind: EntityKind, name: str, version: str = "v1", project: str = PROJECT) -> EntityId:
    return EntityId(kind, project, DOMAIN, name, version)


def registered(rig: Rig) -> None:
    for request in (task_request(), workflow_request(), plan_request()):
        create(rig, request)


def listed(rig: Rig, kind: EntityKind, filters: str = "", **query: Any) -> list[tuple[str, str]]:
    asked = EntityQuery(kind, PROJECT, DOMAIN, filters=read_filters(filters, ENTITY_COLUMNS[kind], kind.value), **query)
    page = entity_reads.list_entities(rig.context, ADMIN, asked, with_content=True)
    return [(item.id.name, item.id.version) for item in page.items]


def test_what_was_registered_comes_back(rig: Rig) -> None:
    registered(rig)
    task = entity_reads.get_entity(rig.context, ADMIN, entity(EntityKind.TASK, "add"))
    assert entity_reads.read_task(task.body, task.id).container.image == "i"
    workflow = entity_reads.get_entity(rig.context, ADMIN, entity(EntityKind.WORKFLOW, "wf"))
    closure = entity_reads.get_workflow_closure(rig.context, workflow)
    assert [node.id for node in closure.primary.template.nodes] == ["start-node", "end-node", "n0"]
    assert read_id(closure.primary.template.id, EntityKind.WORKFLOW) == workflow.id
    assert [(one.template.id.name, one.template.container.image) for one in closure.tasks] == [("add", "i")]
    plan = entity_reads.get_entity(rig.context, ADMIN, entity(EntityKind.LAUNCH_PLAN, "wf"))
    assert (plan.row.workflow_name, plan.row.schedule_type, bool(plan.row.is_active)) == ("wf", "NONE", False)
    with pytest.raises(NotFound, match="missing entity of type TASK"):
        entity_reads.get_entity(rig.context, ADMIN, entity(EntityKind.TASK, "add", "v2"))


@pytest.mark.parametrize("name", ["task", "workflow", "plan"])
def test_the_same_again_and_something_else(rig: Rig, name: str) -> None:
    registered(rig)
    requests: dict[str, Callable[[], Any]] = {"task": task_request, "workflow": workflow_request, "plan": plan_request}
    again = requests[name]
    other = {
        "task": task_request(image="j"),
        "workflow": workflow_request(nodes=[task_node("n0", a=1, b=2)]),
        "plan": plan_request(max_parallelism=7),
    }[name]
    before = rows(rig)
    with pytest.raises(NameTaken, match="identical structure already exists"):
        create(rig, again())
    with pytest.raises(BadRequest, match="different structure already exists") as refused:
        create(rig, other)
    shown = {
        "task": "container.image: 'i' → 'j'",
        "workflow": "integer: '1' → '2'",
        "plan": "max_parallelism: nothing → 7",
    }[name]
    assert shown in refused.value.detail
    assert rows(rig) == before


def test_a_description_takes_no_part_in_the_comparison(rig: Rig) -> None:
    create(rig, task_request(description="adds"))
    with pytest.raises(NameTaken):
        create(rig, task_request(description="adds two numbers"))
    assert entity_reads.get_entity(rig.context, ADMIN, entity(EntityKind.TASK, "add")).row.description == "adds"


def rows(rig: Rig) -> dict[str, int]:
    tables = (entities_tables.entities, entities_tables.entity_contents, entities_tables.entity_names, schema.audit)
    with rig.context.database.read() as tx:
        return {table.name: tx.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() for table in tables}


def test_equal_contents_are_stored_once(rig: Rig) -> None:
    for name, version in (("add", "v1"), ("add", "v2"), ("plus", "v1")):
        create(rig, task_request(name, version))
    counted = rows(rig)
    assert (counted["entities"], counted["entity_contents"], counted["entity_names"]) == (3, 1, 2)


def test_two_at_once_under_one_id_are_one(rig: Rig) -> None:
    """One is registered; all others are told that it is there, or that theirs differs."""
    answers: list[str] = []

    def work(number: int) -> None:
        try:
            registration.create_task(rig.context, ADMIN, task_request(image="even" if number % 2 == 0 else "odd"))
            answers.append("made")
        except YardError as exc:
            answers.append(type(exc).__name__)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["BadRequest"] * 4 + ["NameTaken"] * 3 + ["made"]
    assert rows(rig)["entities"] == 1


def test_only_one_version_of_a_plan_is_active(rig: Rig) -> None:
    registered(rig)
    create(rig, plan_request(version="v2"))
    create(rig, plan_request("other"))

    def active() -> list[str]:
        return [version for name, version in listed(rig, EntityKind.LAUNCH_PLAN, only_active=True) if name == "wf"]

    def switch(version: str, *, is_active: bool = True) -> None:
        rig.clock.wait(1)
        plan = entity(EntityKind.LAUNCH_PLAN, "wf", version)
        entity_changes.set_active(rig.context, ADMIN, plan, is_active=is_active)

    assert active() == []
    with pytest.raises(NotFound, match="No active launch plan"):
        entity_reads.get_active(rig.context, ADMIN, PROJECT, DOMAIN, "wf")
    switch("v1")
    switch("v2")
    assert active() == ["v2"]
    found = entity_reads.get_active(rig.context, ADMIN, PROJECT, DOMAIN, "wf")
    assert (found.id.version, found.row.updated_us) == ("v2", rig.clock.at_us)
    entity_changes.set_active(rig.context, ADMIN, entity(EntityKind.LAUNCH_PLAN, "other"), is_active=True)
    assert listed(rig, EntityKind.LAUNCH_PLAN, "eq(state,1)") == [("other", "v1"), ("wf", "v2")]
    switch("v1", is_active=False)
    assert active() == ["v2"], "another version was not the active one"
    switch("v2", is_active=False)
    assert active() == []
    with pytest.raises(NotFound):
        switch("v9")


def test_swaps_at_once_leave_one_active(rig: Rig) -> None:
    registered(rig)
    versions = [f"w{number}" for number in range(6)]
    for version in versions:
        create(rig, plan_request(version=version))
    failures: list[YardError] = []

    def work(version: str) -> None:
        try:
            plan = entity(EntityKind.LAUNCH_PLAN, "wf", version)
            entity_changes.set_active(rig.context, ADMIN, plan, is_active=True)
        except YardError as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(version,)) for version in versions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(listed(rig, EntityKind.LAUNCH_PLAN, only_active=True)) == 1


def test_the_database_itself_allows_one_active_version(rig: Rig) -> None:
    registered(rig)
    create(rig, plan_request(version="v2"))
    entities = entities_tables.entities
    with rig.context.database.write() as tx, pytest.raises(sa.exc.IntegrityError):
        tx.execute(sa.update(entities).where(entities.c.kind == "launch_plan").values(is_active=True))


FILTERS: list[tuple[str, list[str]]] = [
    ("", ["b.Two:v2", "b.two:v1", "a_one:v2", "a_one:v1"]),
    ("eq(name,a_one)", ["a_one:v2", "a_one:v1"]),
    ("ne(name,a_one)", ["b.Two:v2", "b.two:v1"]),
    ("eq(version,v1)+contains(name,two)", ["b.two:v1"]),
    ("contains(name,TWO)", []),
    ("contains(name,%)", []),
    ("contains(name,_)", ["a_one:v2", "a_one:v1"]),
    ("not_like(name,b%)", ["a_one:v2", "a_one:v1"]),
    ("not_like(name,b.two)", ["b.Two:v2", "a_one:v2", "a_one:v1"]),
    ("not_like(name,b._wo)", ["a_one:v2", "a_one:v1"]),
    ("not_like(name,a\\_one)", ["b.Two:v2", "b.two:v1", "a_one:v2", "a_one:v1"]),
    ("not_like(name,*)+not_like(name,[a]%)+not_like(name,\\)", ["b.Two:v2", "b.two:v1", "a_one:v2", "a_one:v1"]),
    ("value_in(version,v2;v3)", ["b.Two:v2", "a_one:v2"]),
    ("value_not_in(version,v2;v3)", ["b.two:v1", "a_one:v1"]),
    ("eq(type,sql)", ["b.Two:v2"]),
    ("gt(version,v1)", ["b.Two:v2", "a_one:v2"]),
    ("eq(named_entity_metadata.state,1)", ["b.two:v1"]),
    ("ne(named_entity_metadata.state,1)+eq(version,v1)", ["a_one:v1"]),
    ("gte(created_at,2000-01-01T00:00:00Z)+lt(created_at,2001-01-01T00:00:00Z)", []),
]


@pytest.fixture
def four(rig: Rig) -> Rig:
    """Four versions of three names, one name archived."""
    for name, version, kind in (
        ("a_one", "v1", "x"),
        ("a_one", "v2", "x"),
        ("b.two", "v1", "x"),
        ("b.Two", "v2", "sql"),
    ):
        create(rig, task_request(name, version, type=kind))
    key = EntityNameKey("task", PROJECT, DOMAIN, "b.two")
    entity_changes.change_name(rig.context, ADMIN, key, description="old", state=1)
    return rig


def test_lists_are_filtered_alike_on_both_databases(four: Rig) -> None:
    found = {text: [":".join(one) for one in listed(four, EntityKind.TASK, text)] for text, _ in FILTERS}
    assert found == dict(FILTERS)


def test_lists_have_orders_and_pages(four: Rig) -> None:
    by_name = ListOrder("name", is_descending=False)
    assert [name for name, _ in listed(four, EntityKind.TASK, order=ListOrder("created_us", False))][:2] == [
        "a_one"
    ] * 2
    assert listed(four, EntityKind.TASK, name="a_one") == [("a_one", "v2"), ("a_one", "v1")]

    def page(offset: int, limit: int) -> tuple[list[str], str]:
        query = EntityQuery(EntityKind.TASK, PROJECT, DOMAIN, order=by_name, offset=offset, limit=limit)
        found = entity_reads.list_entities(four.context, ADMIN, query, with_content=True)
        return [item.id.version for item in found.items], found.token

    first, token = page(0, 3)
    second, last = page(int(token), 3)
    assert (len(first), token, len(second), last) == (3, "3", 1, "")
    assert page(0, 4)[1] == "4", "a full page has a token, although nothing follows"
    assert page(4, 4) == ([], "")
    assert page(10**9, 4) == ([], "")
    assert len(page(0, 2**31)[0]) == 4


def test_a_page_ends_before_it_is_too_large(rig: Rig) -> None:
    for number in range(3):
        create(rig, task_request(f"t{number}", args=["x" * 2**20, str(number)]))
    query = EntityQuery(EntityKind.TASK, PROJECT, DOMAIN, limit=100)
    page = entity_reads.list_entities(rig.context, ADMIN, query, with_content=True)
    assert (len(page.items), page.token) == (2, "2")
    rest = entity_reads.list_entities(rig.context, ADMIN, replace_offset(query, 2), with_content=True)
    assert (len(rest.items), rest.token) == (1, "")


def replace_offset(query: EntityQuery, offset: int) -> EntityQuery:
    return EntityQuery(query.kind, query.project, query.domain, offset=offset, limit=query.limit)


def test_names_are_listed_described_and_archived(four: Rig) -> None:
    def names(filters: str = "") -> list[str]:
        query = NameQuery(
            EntityKind.TASK, PROJECT, DOMAIN, filters=read_filters(filters, NAME_COLUMNS, "named_entity"), limit=9
        )
        return sorted(row.name for row in entity_changes.list_names(four.context, ADMIN, query)[0])

    assert names() == ["a_one", "b.Two", "b.two"]
    assert names("eq(state,1)") == ["b.two"]
    assert names("eq(named_entity_metadata.description,old)+contains(name,two)") == ["b.two"]
    key = EntityNameKey("task", PROJECT, DOMAIN, "b.two")
    assert entity_changes.get_name(four.context, ADMIN, key).name_description == "old"
    for bad in (7, -1):
        with pytest.raises(BadRequest):
            entity_changes.change_name(four.context, ADMIN, key, description="", state=bad)
    with pytest.raises(BadRequest):
        entity_changes.change_name(four.context, ADMIN, key, description="x" * 1001, state=0)
    with pytest.raises(NotFound):
        entity_changes.change_name(four.context, ADMIN, replace(key, name="nobody"), description="", state=0)


def test_references_lead_into_other_projects_that_one_may_view(rig: Rig) -> None:
    projects.project_create(rig.context, ADMIN, ProjectRequest("lib"))
    projects.project_create(rig.context, ADMIN, ProjectRequest("app"))
    rig.context.snapshots.refresh(force=True)
    create(rig, task_request(project="lib"))
    both = rig.user("ann", (Role.SUBMIT, GrantTarget.PROJECT, "app"), (Role.VIEW, GrantTarget.PROJECT, "lib"))
    one = rig.user("bob", (Role.SUBMIT, GrantTarget.PROJECT, "app"))
    request = workflow_request(nodes=[placed(task_node("n0", a=1, b=2), "lib")], project="app")
    request.spec.template.nodes[0].task_node.reference_id.project = "lib"
    with pytest.raises(BadRequest, match="TaskReferenceNotFound"):
        create(rig, request, one)
    create(rig, request, both)
    workflow = entity_reads.get_entity(rig.context, one, entity(EntityKind.WORKFLOW, "wf", project="app"))
    assert entity_reads.get_workflow_closure(rig.context, workflow).tasks[0].template.id.project == "lib"
    with pytest.raises(Denied):
        create(rig, task_request("mine", project="lib"), both)


def test_a_project_must_be_there_and_active(rig: Rig) -> None:
    with pytest.raises(BadRequest, match=r"project \[nowhere\] not found"):
        create(rig, task_request(project="nowhere"))
    projects.project_create(rig.context, ADMIN, ProjectRequest("old"))
    create(rig, task_request(project="old"))
    projects.project_change(rig.context, ADMIN, "old", ProjectChange(is_archived=True))
    with pytest.raises(BadRequest, match=r"project \[old\] is not active"):
        create(rig, task_request(version="v2", project="old"))
    assert entity_reads.get_entity(rig.context, ADMIN, entity(EntityKind.TASK, "add", project="old"))
    request = task_request()
    request.id.domain = "nowhere"
    with pytest.raises(BadRequest, match="unrecognized by system"):
        create(rig, request)


def test_limits_of_a_project_are_named(lite: Rig) -> None:
    lite.context.settings[WorkflowLimits] = WorkflowLimits(nodes=5, project_entities=2, project_bytes=0)
    create(lite, task_request("a"))
    create(lite, task_request("add"))
    with pytest.raises(LimitReached, match=r"limit `workflows.project_entities` of 2 is reached") as refused:
        create(lite, task_request("c"))
    assert refused.value.limit == "workflows.project_entities"
    with pytest.raises(NameTaken):
        create(lite, task_request("a"))
    assert rows(lite)["entities"] == 2, "nothing was stored"
    lite.context.settings[WorkflowLimits] = WorkflowLimits(nodes=5, project_entities=0, project_bytes=1000)
    create(lite, workflow_request(nodes=[task_node(f"n{number}", a=1, b=2) for number in range(5)][:1]))
    with pytest.raises(BadRequest, match=r"6 nodes .* limit `workflows.nodes` .* is 5"):
        create(lite, workflow_request("big", nodes=[task_node(f"n{number}", a=1, b=2) for number in range(6)]))
    with pytest.raises(LimitReached, match=r"workflows\.project_bytes"):
        create(lite, task_request("d", args=["x" * 2000]))


def test_an_entity_of_five_mebibytes_is_refused(lite: Rig) -> None:
    with pytest.raises(TooLarge):
        create(lite, task_request(args=["x" * 5 * 2**20]))


def test_a_workflow_that_no_client_could_read_with_its_tasks_is_refused(lite: Rig) -> None:
    for number in range(5):
        create(lite, task_request(f"t{number}", args=["x" * (4 * 2**20 - 1000)]))
    nodes = [task_node(f"n{number}", f"t{number}", a=1, b=2) for number in range(5)]
    create(lite, workflow_request("fits", nodes=nodes[:3]))
    with pytest.raises(BadRequest, match="the most is"):
        create(lite, workflow_request("large", nodes=nodes))


def test_every_change_is_in_the_audit(lite: Rig) -> None:
    registered(lite)
    entity_changes.set_active(lite.context, ADMIN, entity(EntityKind.LAUNCH_PLAN, "wf"), is_active=True)
    with lite.context.database.read() as tx:
        actions = list(tx.execute(sa.select(schema.audit.c.action).order_by(schema.audit.c.id)).scalars())
    wanted = ["task.register", "workflow.register", "launch_plan.register", "launch_plan.activate"]
    assert [action for action in actions if action in wanted] == wanted


def test_a_plan_needs_its_workflow(lite: Rig) -> None:
    with pytest.raises(NotFound, match="missing entity of type WORKFLOW"):
        create(lite, plan_request(workflow="nobody"))
    create(lite, task_request(interface=interface({"a": TEXT}, {"o0": INT})))
    with pytest.raises(BadRequest, match="MismatchingTypes"):
        create(lite, workflow_request(nodes=[task_node("n0", a=1)]))


def test_registered_entities_outlive_the_server(sqlite_url: str, tmp_path: Any) -> None:
    with running(sqlite_url, tmp_path) as first:
        registered(first)
    with running(sqlite_url, tmp_path) as second:
        with pytest.raises(NameTaken):
            create(second, workflow_request())
        assert listed(second, EntityKind.WORKFLOW) == [("wf", "v1")]
