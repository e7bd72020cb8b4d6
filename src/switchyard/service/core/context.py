"""The context of every use case: the database, the committer, the snapshots, settings, time and ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from switchyard.policy.namespace_names import NAMESPACE_TEMPLATE
from switchyard.route.moving import MovingSettings
from switchyard.route.probation import ProbationTerms
from switchyard.service.core.file_storage import FileStorage
from switchyard.service.core.log_store import LogStore
from switchyard.service.core.process_metrics import ProcessMetrics
from switchyard.service.core.snapshots.graph_compiler import GraphCompiler
from switchyard.service.core.snapshots.selection_settings import Engines, SelectionSettings
from switchyard.service.core.snapshots.snapshots import Snapshots
from switchyard.service.core.snapshots.token_settings import TokenSettings
from switchyard.service.core.user_usage import UserUsage
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.core.writes.change_budget import ChangeBudget
from switchyard.service.core.writes.committer import Committer
from switchyard.store.engine.database import Database, Tx
from switchyard.store.files.database_logs import DatabaseLogs
from switchyard.store.jobs.events import counter_take

Setting = TypeVar("Setting")


@dataclass(frozen=True)
class Context:
    """Built once by the server and passed to every use case."""

    database: Database
    committer: Committer
    snapshots: Snapshots
    now_us: Callable[[], int]  # the database's clock: for stored times, and for times compared with them
    steady_us: Callable[[], int]  # a monotonic clock: for durations within this process
    is_clock_right: Callable[[Tx], bool]  # whether `now_us` still agrees with the database
    new_id: Callable[[], str]
    list_budget: int = 5000
    logs: LogStore = field(default_factory=DatabaseLogs)
    compiler: GraphCompiler = field(default_factory=GraphCompiler)
    engines: Engines = field(default_factory=Engines)
    selections: SelectionSettings = field(default_factory=SelectionSettings)
    tally: ProcessMetrics = field(default_factory=ProcessMetrics)
    moving: MovingSettings = field(default_factory=MovingSettings)
    probation: ProbationTerms = field(default_factory=ProbationTerms)
    tokens: TokenSettings = field(default_factory=TokenSettings)
    usage: UserUsage = field(default_factory=UserUsage)
    changes: ChangeBudget = field(default_factory=ChangeBudget)
    files: FileStorage = field(default_factory=FileStorage)
    namespace_template: str = NAMESPACE_TEMPLATE  # of a project and domain, on Kubernetes
    settings: dict[type, Any] = field(default_factory=dict)  # of features, by their types

    def setting(self, kind: type[Setting]) -> Setting:
        """The settings of a feature, by their type. Where nobody set any: the defaults of the type."""
        if kind not in self.settings:
            self.settings.setdefault(kind, kind())
        value: Setting = self.settings[kind]
        return value


def bump_version(batch: Batch, topic: Topic) -> None:
    """Make every server reload this snapshot after the commit."""
    if topic not in batch.topics:
        counter_take(batch.tx, topic.value, 1)
        batch.topics.add(topic)
