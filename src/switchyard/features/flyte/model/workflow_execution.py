"""Executions of Flyte's workflows and tasks, as our own API shows and creates them. Phases are Flyte's words."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from switchyard.model.cluster.verdict import Verdict
from switchyard.model.executions.execution import EnvName, EnvValue
from switchyard.model.rules.attributes import JobPolicy
from switchyard.model.rules.names import SHOWN_TEXT_PATTERN, Name
from switchyard.model.wire.schema import field_given, not_both

EXECUTION_NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9-]{0,62}(?!\n)$"
ExecutionName = Annotated[str, Meta(pattern=EXECUTION_NAME_PATTERN, min_length=1, max_length=63)]
EntityName = Annotated[str, Meta(pattern=SHOWN_TEXT_PATTERN, min_length=1, max_length=255)]
PHASES = ("QUEUED", "RUNNING", "SUCCEEDED", "FAILING", "FAILED", "ABORTING", "ABORTED")
INPUTS_MAX = 1000  # names of one request


_EXECUTION_NAME = re.compile(EXECUTION_NAME_PATTERN)


def is_execution_name(text: str) -> bool:
    return _EXECUTION_NAME.match(text) is not None


class WorkflowExecution(Struct, frozen=True, omit_defaults=True):
    """An execution in a list.

    `launched`: the launch plan or task. `pool`, `label`: what bounds it, by its own spec or by a rule. `clusters`: its
    cluster; of one whose nodes are routed by themselves, those that ran its jobs, as far as the reader may see them.
    """

    project: str
    domain: str
    name: str
    phase: str
    owner: str
    kind: str  # launch_plan or task
    launched: str
    version: str
    workflow: str
    mode: str
    created_us: int
    pool: str = ""
    label: str = ""
    clusters: list[str] = []
    is_archived: bool = False
    started_us: int | None = None
    ended_us: int | None = None


class ExecutionFailure(Struct, frozen=True, omit_defaults=True):
    """Why an execution failed. `kind`: whose fault it is, USER or SYSTEM."""

    code: str
    message: str
    kind: str = ""


class ExecutionDetails(Struct, frozen=True, omit_defaults=True):
    """One execution. `inputs`, `outputs`: as plain values; a large one is a note in its place.

    `asked_pool`, `asked_label`: what the execution itself asks for. `nodes`: how many are in each phase; those that
    have not begun are not among them.
    """

    execution: WorkflowExecution
    namespace: str
    asked_pool: str = ""
    asked_label: str = ""
    is_spread: bool = False
    parent: str = ""  # the execution that started it, and its node
    reference: str = ""  # the execution that it relaunches or recovers
    max_parallelism: int = 0
    data_prefix: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    inputs: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    error: ExecutionFailure | None = None
    abort_cause: str = ""
    abort_by: str = ""
    nodes: dict[str, int] = {}


class WorkflowNodeKind(StrEnum):
    """What a node does."""

    TASK = "task"
    DYNAMIC = "dynamic"
    MAP = "map"
    WORKFLOW = "workflow"
    LAUNCH_PLAN = "launch plan"
    BRANCH = "branch"
    GATE = "gate"


class NodeAttempt(Struct, frozen=True, omit_defaults=True):
    """One attempt of a node. `job`: empty while it waits for room under a limit. `phase`: Flyte's, of the task."""

    number: int
    phase: str
    job: str = ""
    cluster: str = ""
    reason: str = ""
    created_us: int = 0
    started_us: int | None = None
    ended_us: int | None = None


class MapElements(Struct, frozen=True):
    """How many elements a map has, and how many have ended."""

    size: int
    succeeded: int
    failed: int


class ExecutionNode(Struct, frozen=True, omit_defaults=True):
    """A node of an execution, begun or not. Nodes inside another one follow it.

    `parent`: the node around it. `runs`: the task, workflow or launch plan. `phase`: empty if it has not begun.
    `after`: the ids of the nodes that come before it. `waits`: why it does not go on. `is_behind`: it waits for nothing
    but nodes before it. `child`: the execution that it started.
    """

    id: str
    kind: WorkflowNodeKind
    parent: str = ""
    runs: str = ""
    phase: str = ""
    after: list[str] = []
    waits: str = ""
    is_behind: bool = False
    attempts: list[NodeAttempt] = []
    elements: MapElements | None = None
    child: str = ""
    cache: str = ""
    error: str = ""
    is_failure_node: bool = False
    created_us: int | None = None
    ended_us: int | None = None


class ClusterWeight(Struct, frozen=True):
    """A candidate of the draw."""

    cluster: str
    weight: float


class TaskVerdicts(Struct, frozen=True, omit_defaults=True):
    """Where one task of an execution could run now. `refused`: the rule that refuses it, in words."""

    node: str
    task: str
    verdicts: list[Verdict] = []
    refused: str = ""
    reason: str = ""  # why no cluster takes it


class NodeWait(Struct, frozen=True, omit_defaults=True):
    """A node that has begun or could begin, and why it does not go on."""

    node: str
    reason: str
    job: str = ""


class ExecutionExplanation(Struct, frozen=True, omit_defaults=True):
    """Where an execution runs and why. Verdicts and candidates are those of now.

    `how`: how its cluster was chosen. `drawn`: the cluster that the draw gives now. `seed`: what is drawn on.
    """

    execution: WorkflowExecution
    how: str
    seed: str
    candidates: list[ClusterWeight] = []
    drawn: str = ""
    tasks: list[TaskVerdicts] = []
    policy: JobPolicy | None = None  # the rules of the first task's scope
    waits: list[NodeWait] = []
    notes: list[str] = []


class LaunchRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Create an execution of a launch plan or a task, or run another execution again.

    `inputs`: plain values; the server turns them into those of the types that are expected. `version`: if not given,
    the active one of a launch plan, else the newest. `entity_project`, `entity_domain`: where the launch plan or task
    is registered, if it is elsewhere. `relaunch`, `recover`: the name of an execution in the same project and domain.
    """

    SCHEMA: ClassVar[dict[str, Any]] = {
        "allOf": [
            {"oneOf": [field_given(word) for word in ("launch_plan", "task", "relaunch", "recover")]},
            *(not_both(again, word) for again in ("relaunch", "recover") for word in ("inputs", "version")),
        ]
    }
    project: Name = "default"
    domain: Name = "development"
    name: ExecutionName | None = None
    launch_plan: EntityName | None = None
    task: EntityName | None = None
    relaunch: ExecutionName | None = None
    recover: ExecutionName | None = None
    version: EntityName | None = None
    entity_project: Name | None = None
    entity_domain: Name | None = None
    inputs: Annotated[dict[str, Any], Meta(max_length=INPUTS_MAX)] | None = None
    pool: Name | None = None
    label: Name | None = None
    envs: Annotated[dict[EnvName, EnvValue], Meta(max_length=INPUTS_MAX)] | None = None
    labels: Annotated[dict[str, str], Meta(max_length=64)] | None = None
    annotations: Annotated[dict[str, str], Meta(max_length=INPUTS_MAX)] | None = None
    service_account: EntityName | None = None
    iam_role: EntityName | None = None
    overwrite_cache: bool = False
    max_parallelism: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0

    def __post_init__(self) -> None:
        given = [word for word in ("launch_plan", "task", "relaunch", "recover") if getattr(self, word) is not None]
        if len(given) != 1:
            raise ValueError("give one of `launch_plan`, `task`, `relaunch` and `recover`")
        if given[0] in ("relaunch", "recover"):
            for word in ("inputs", "version"):
                if getattr(self, word) is not None:
                    raise ValueError(f"{word} is that of the execution before; leave it out")


class CreatedExecution(Struct, frozen=True):
    """The execution that a request made, or had made before."""

    project: str
    domain: str
    name: str


class TerminateRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """End an execution. `cause`: why, for the people who look at it later."""

    cause: Annotated[str, Meta(max_length=1000)] = ""
