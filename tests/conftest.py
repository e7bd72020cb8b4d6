"""Fixtures for all tests: real databases, and nothing of the person who runs them. Builders live beside their tests."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from pytest_timeout import timeout_sigalrm

from tests.flux_bed import FluxBed, FluxSpec, flux_running
from tests.kube_bed import KubernetesBed, kubernetes_running
from tests.kube_conf import KubernetesSpec
from tests.order import in_order, is_fast, unit_of
from tests.pace import Limit
from tests.pgbouncer_service import PgBouncer, pgbouncer_running
from tests.processes import end_strays, pids
from tests.programs import isolated_env
from tests.redis_service import RedisServer, redis_running
from tests.service.on_postgresql import is_on_postgresql_too
from tests.services import Postgres, postgres_running
from tests.slurm_bed import SlurmBed, last_words, slurm_running
from tests.slurm_conf import Spec
from tests.times import TimesPlugin
from tests.warm_programs import close_starters

HERE = Path(__file__).resolve().parent
QUICK_S = 2.0  # a test that starts no program
WORKER_BYTES = 2 * 2**30  # of a worker with its PostgreSQL, its Slurm and a browser
LIMIT_LOOK_S = 5.0  # between two looks whether a test takes too long
DATABASES = ("sqlite", "postgresql")
# Words of files whose tests start a whole server.
STARTS_SERVER = ("start_server", "server.flyte_doors", "server.rainbow_door", "server.town")

# `make test` says the same each time it is run on the same code; `make soak` looks further, and prints what it found.
settings.register_profile("test", deadline=None, derandomize=True, database=None)
settings.register_profile("soak", deadline=None, max_examples=2_000, print_blob=True, database=None)
settings.load_profile("soak" if os.environ.get("SOAK") else "test")


def pytest_configure(config: pytest.Config) -> None:
    """A shell that starts the tests in the background has them ignore two signals, and with them all they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    config.pluginmanager.register(TimesPlugin(config.rootpath), "times")


def pytest_unconfigure() -> None:
    close_starters()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from the tests: none is garbage, and each worker has two million objects of them.

    It looked at all of them again and again while they were made, and later whenever a test made many objects.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        file, is_on_postgresql = str(item.path.relative_to(HERE)), "postgresql" in item.name.partition("[")[2]
        if file.startswith("acceptance/"):
            item.add_marker(pytest.mark.acceptance)
        if is_on_postgresql or _starts_server(item.path) or not is_fast(f"tests/{file}::{item.name}"):
            item.add_marker(pytest.mark.long)
        if is_on_postgresql and _is_on_sqlite_first(f"{file}::{item.name}"):
            item.add_marker(pytest.mark.slow)


@cache
def _starts_server(file: Path) -> bool:
    """Whether tests of this file start a whole server: `make fast` leaves them out."""
    text = file.read_text(encoding="utf-8")
    return any(word in text for word in STARTS_SERVER)


def _is_on_sqlite_first(name: str) -> bool:
    """Whether this test runs on PostgreSQL only in `make soak`."""
    return name.startswith("service/") and not is_on_postgresql_too(name.removeprefix("service/"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Five workers per core, as far as there is memory: whole programs are waited for most of the time.

    With three, 23 % of two cores' time was left over. Each further worker costs 10 seconds of a core at its start.
    """
    words = Path("/proc/meminfo").read_text(encoding="ascii").split()
    free = int(words[words.index("MemAvailable:") + 1]) * 1024
    return max(1, min(5 * len(os.sched_getaffinity(0)), free // WORKER_BYTES))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """Files whose tests share something that is made once per module go to one worker each, all other tests anywhere.

    xdist's own `loadgroup` does that by adding the group to the test's id, which pytest no longer lets it since 9.2:
    each worker would then start the shared server, and wait for what the file waits for, once more.
    """
    from xdist.scheduler import LoadScopeScheduling

    if config.getoption("dist") != "loadgroup":
        return None
    config.option.loadscopereorder = False  # the order is that of `pytest_collection_finish` below

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Give the workers of a parallel run the tests in an order that keeps all cores busy until the end."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        session.items[:] = in_order(session.items, lambda item: item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what Slurm said when a test on it fails: its folder is gone afterwards."""
    report = yield
    if report.failed and "slurm" in item.nodeid:
        report.sections += last_words()
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """Fail a test that takes too long by the time of a quiet machine: a busy neighbour fails nothing."""
    limit = Limit(settings.timeout)

    def look(*_: object) -> None:
        if limit.is_over():
            signal.setitimer(signal.ITIMER_REAL, 0)
            timeout_sigalrm(item, settings)

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]  # called by the plugin's own hook
    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_LOOK_S, LIMIT_LOOK_S)
    return True


@pytest.fixture(autouse=True)
def same_umask() -> Iterator[None]:
    """Commands that run in this process set a private umask: tests after them get the one of before."""
    umask = os.umask(0o022)
    os.umask(umask)
    yield
    os.umask(umask)


@pytest.fixture(autouse=True)
def _no_user_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the settings of the person who runs it."""
    for name in [name for name in os.environ if name.startswith("YARD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("YARD_CONFIG", "/nonexistent/yard.yaml")


@pytest.fixture(autouse=True)
def _no_strays(request: pytest.FixtureRequest) -> Iterator[None]:
    """No process outlives the test that started it, by whatever way."""
    before, began = pids(), time.monotonic()
    yield
    folder = getattr(request.node, "funcargs", {}).get("tmp_path")
    if folder is not None:
        # After a long test all are looked at: meanwhile an old pid may have become that of a new process.
        end_strays(folder, before=before if time.monotonic() - began < QUICK_S else frozenset())


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The PostgreSQL that all tests of this worker share: take a database each, and never stop it."""
    with postgres_running() as server:
        yield server


@pytest.fixture
def pgbouncer(postgres: Postgres) -> Iterator[PgBouncer]:
    """A PgBouncer in transaction mode before the shared PostgreSQL."""
    with pgbouncer_running(postgres) as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A PostgreSQL for one test, which may kill, pause and restart it. Slower: it writes through to the disk."""
    with postgres_running(durable=True) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The Redis that the tests of this worker share. It is emptied by whoever needs it empty, and never stopped."""
    with redis_running() as server:
        yield server


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmBed]:
    """Two real Slurm clusters that all tests of this worker share: alpha with accounting and GPUs, beta with neither.

    Who harms one calls `heal` on it afterwards; who fills one calls `cancel_all`. `make test-slurm-versions` gives a
    tree with another version.
    """
    tree = os.environ.get("SLURM_TREE", "")
    alpha = Spec("alpha", gpus=2, gpu_type="a100", accounting=True, root=tree)
    with slurm_running(alpha, Spec("beta", root=tree)) as bed:
        yield bed


@pytest.fixture(scope="session")
def flux() -> Iterator[FluxBed]:
    """A real Flux instance, alpha, that all tests of this worker share: three nodes with 4 cores and 2 GPUs each.

    Who harms it starts it again; who fills it calls `cancel_all`. Tests that use this carry the mark `flux`.
    """
    with flux_running(FluxSpec("alpha")) as bed:
        yield bed


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[KubernetesBed]:
    """A real Kubernetes cluster, alpha, that all tests of this worker share.

    It has two nodes with 4 processors and 2 GPUs each. A test takes a namespace of its own (`create_namespace`). Who
    harms the cluster calls `heal` on it afterwards. Tests that use this carry the mark `kubernetes`.
    """
    with kubernetes_running(KubernetesSpec("alpha", nodes=2, gpus=2)) as bed:
        yield bed


@pytest.fixture(scope="session")
def two_kubernetes(kubernetes: KubernetesBed) -> KubernetesBed:
    """The same with a second cluster, beta, that has one node and no GPUs."""
    kubernetes.start(KubernetesSpec("beta"))
    return kubernetes


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A fresh, empty database: the test runs once for each engine."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'yard.db'}"
        return
    # Asked for only now: a run on SQLite alone starts no PostgreSQL.
    server: Postgres = request.getfixturevalue("postgres")
    url = server.create_database()
    yield url
    server.drop_database(url)


@pytest.fixture
def user_env(tmp_path: Path) -> dict[str, str]:
    """The environment of a user of the CLI who has set nothing yet."""
    return isolated_env(tmp_path)
