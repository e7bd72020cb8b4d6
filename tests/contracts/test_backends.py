"""One suite for every backend: what the agent relies on, whatever really runs the jobs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from msgspec.structs import replace

from switchyard.agent.backends import TERMINAL_STATES, Backend, OutputPiece, Trouble, marker_of
from switchyard.agent.backends.registry import BACKENDS, load_backend
from switchyard.agent.files.inputs.folder_writer import make_top_folder
from switchyard.agent.loop import clock
from switchyard.agent.site.site import FilesSite
from switchyard.errors import Unavailable
from switchyard.features.fake.agent.backend import FakeBackend
from switchyard.model.cluster.poll import Lease
from switchyard.model.files.files import JobFiles
from switchyard.model.job.job import JobSpec, Resources
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import END_S, a_graph, a_lease, a_setting, end_of, load_when, status_when
from tests.agent.flux.builders import a_flux_setting
from tests.agent.slurm.builders import a_slurm_setting
from tests.flux_bed import FluxBed, FluxInstance
from tests.kube_bed import KubernetesBed
from tests.kube_cluster import KubernetesCluster
from tests.kubernetes.builders import a_kubernetes_setting
from tests.slurm_bed import SlurmBed, SlurmCluster

# The clusters that take part: a machine's own processes, the clock, two real Slurms, with accounts and without, and a
# real Kubernetes of two nodes, which `make test-kubernetes` runs. `make test-flux` runs a real Flux of three nodes.
KINDS = ("local", "fake", "slurm-alpha", "slurm-beta", "kubernetes-alpha", "flux-alpha")
CORES = {"local": 4, "fake": 4, "slurm-alpha": 12, "slurm-beta": 12, "kubernetes-alpha": 8, "flux-alpha": 12}
MEMORY_BYTES = {
    "local": 2**33,
    "fake": 2**33,
    "slurm-alpha": 12 * 2**30,
    "slurm-beta": 12 * 2**30,
    "kubernetes-alpha": 8 * 2**30,
    "flux-alpha": 0,  # Flux counts no memory
}
MARKED_KINDS = ("kubernetes", "flux")  # their tests run apart from the others

HOLD_S = 24 * 3600  # how long a fake cluster runs a job that others run until a file is there

Start = Callable[[], Backend]


@dataclass
class FakeClock:
    """The clock of a fake cluster, whose jobs end by time alone."""

    ahead_ns: int = 0

    def now_ns(self) -> int:
        return clock.now_ns() + self.ahead_ns


@pytest.fixture
def fake_clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(
    params=[
        pytest.param(
            kind,
            marks=[getattr(pytest.mark, system), pytest.mark.xdist_group(system)]
            if (system := kind.partition("-")[0]) in MARKED_KINDS
            else pytest.mark.xdist_group("slurm"),
        )
        for kind in KINDS
    ]
)
def world(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def cores(world: str) -> int:
    return CORES[world]


@pytest.fixture
def start(world: str, request: pytest.FixtureRequest, tmp_path: Path, fake_clock: FakeClock) -> Iterator[Start]:
    """Start the backend, as often as one likes: the same directory each time."""
    made: list[Backend] = []
    kind, _, cluster = world.partition("-")
    setting = a_setting(tmp_path, a_graph(cores=4))
    if kind == "slurm":
        bed: SlurmBed = request.getfixturevalue("slurm")
        setting = a_slurm_setting(tmp_path, bed[cluster])
    if kind == "kubernetes":
        pods: KubernetesBed = request.getfixturevalue("kubernetes")
        namespace = pods[cluster].create_namespace(f"contract-{os.urandom(4).hex()}")
        files = FilesSite(folder=str(tmp_path / "files"))
        volume = {"hostPath": {"path": str(tmp_path / "files"), "type": "DirectoryOrCreate"}}
        setting = a_kubernetes_setting(
            tmp_path, pods[cluster], namespace, files=files, kubernetes={"files_volume": volume}
        )
    if kind == "flux":
        instances: FluxBed = request.getfixturevalue("flux")
        setting = a_flux_setting(tmp_path, instances[cluster])

    def make() -> Backend:
        made.append(FakeBackend(setting, now_ns=fake_clock.now_ns) if kind == "fake" else load_backend(kind)(setting))
        return made[-1]

    yield make
    for backend in made:
        backend.close()
    if kind == "slurm":
        bed[cluster].cancel_all()
    if kind == "flux":
        instances[cluster].cancel_all()
    if kind == "kubernetes":
        pods[cluster].kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
def backend(start: Start) -> Backend:
    return start()


def exits(code: int) -> Lease:
    return a_lease("sh", "-c", f"exit {code}", env={"FAKE_EXIT": str(code)})


def runs(seconds: str = "60", **resources: object) -> Lease:
    return a_lease("sleep", seconds, resources=resources)


def test_every_installed_kind_is_in_this_suite() -> None:
    assert BACKENDS.names() == sorted({world.partition("-")[0] for world in KINDS})


def test_describes_its_graph(backend: Backend, world: str) -> None:
    assert backend.describe().cores == CORES[world]
    slack = 2**26 if backend.kind == "kubernetes" else 0  # a node keeps some memory of its machine, in whole MiB
    assert abs(backend.describe().memory_bytes - MEMORY_BYTES[world]) <= slack


def test_looks_again_where_it_can_and_says_whether_something_changed(backend: Backend, cores: int) -> None:
    assert backend.look() is False
    assert backend.describe().cores == cores


def test_success_has_exit_code_zero(backend: Backend) -> None:
    ended = end_of(backend, backend.submit(exits(0)))
    assert (ended.seen, ended.exit_code, ended.signal) == (ObservedState.SUCCEEDED, 0, None)
    assert ended.ago_us >= 0
    assert ended.began_ago_us is not None
    assert ended.began_ago_us >= ended.ago_us


def test_failure_keeps_its_exit_code(backend: Backend) -> None:
    ended = end_of(backend, backend.submit(exits(3)))
    assert (ended.seen, ended.exit_code, ended.reason) == (ObservedState.FAILED, 3, "exit code 3")


def test_death_by_signal_is_told(backend: Backend) -> None:
    script = "kill -9 $$"
    if backend.kind == "kubernetes":  # the first process of a container cannot kill itself; a shell says 128 + 9
        script = "sh -c 'kill -9 $$'; exit $?"
    lease = a_lease("sh", "-c", script, env={"FAKE_SIGNAL": "9"})
    ended = end_of(backend, backend.submit(lease))
    assert (ended.seen, ended.exit_code, ended.signal) == (ObservedState.FAILED, None, 9)


def test_running_then_cancelled(backend: Backend) -> None:
    native_id = backend.submit(runs())
    status_when(backend, native_id, lambda status: status.seen is ObservedState.RUNNING)
    backend.cancel([native_id])
    backend.cancel([native_id])
    assert end_of(backend, native_id).seen is ObservedState.CANCELLED


def test_cancel_at_once_never_hangs(backend: Backend) -> None:
    native_id = backend.submit(runs())
    backend.cancel([native_id])
    assert end_of(backend, native_id).seen is ObservedState.CANCELLED


def test_cancel_after_the_end_changes_nothing(backend: Backend) -> None:
    native_id = backend.submit(exits(0))
    end_of(backend, native_id)
    backend.cancel([native_id])
    assert end_of(backend, native_id).seen is ObservedState.SUCCEEDED


def test_many_are_cancelled_at_once(backend: Backend) -> None:
    over, first, second = backend.submit(exits(0)), backend.submit(runs()), backend.submit(runs())
    end_of(backend, over)
    backend.cancel([first, marker_of(runs()), over, second])
    ends = [end_of(backend, native_id).seen for native_id in (over, first, second)]
    assert ends == [ObservedState.SUCCEEDED, ObservedState.CANCELLED, ObservedState.CANCELLED]


def test_cancel_of_the_unknown_is_harmless(backend: Backend) -> None:
    backend.cancel([marker_of(runs())])


def test_unknown_id_is_lost_never_done(backend: Backend) -> None:
    known, unknown = backend.submit(runs()), marker_of(runs())
    found = backend.status([known, unknown])
    assert set(found) == {known, unknown}
    assert found[unknown].seen is ObservedState.LOST
    assert found[known].seen not in TERMINAL_STATES


def test_tasks_of_an_array_end_each_by_itself(backend: Backend) -> None:
    whole = a_lease("sh", "-c", "exit $((SWITCHYARD_ARRAY_INDEX - 3))", env={"FAKE_EXIT": "0"})
    leases = [replace(whole, fence=7 + step, lo=3 + step, hi=3 + step) for step in range(3)]
    native_ids = backend.submit_range(leases)
    ends = [end_of(backend, native_id) for native_id in native_ids]
    codes = [0, 0, 0] if backend.kind == "fake" else [0, 1, 2]
    assert [each.exit_code for each in ends] == codes
    assert [backend.find(marker_of(lease)) for lease in leases] == native_ids
    assert sorted(held.fence for held in backend.held()) == [7, 8, 9]
    for native_id in native_ids:
        backend.forget(native_id)
    assert backend.held() == []


def test_found_by_its_marker_only_when_submitted(backend: Backend) -> None:
    lease = runs()
    assert backend.find(marker_of(lease)) is None
    native_id = backend.submit(lease)
    assert backend.find(marker_of(lease)) == native_id


def test_found_and_followed_after_a_restart(start: Start, cores: int, fake_clock: FakeClock) -> None:
    """The job runs until the test lets it end: however slow the cluster is, its cores are counted while it runs."""
    first = start()
    script = "until test -e go; do sleep 0.1; done"
    lease = a_lease("sh", "-c", script, files=JobFiles(out=["*"]), env={"FAKE_RUN_S": str(HOLD_S)})
    folder = first.work_folder(lease)
    make_top_folder(folder.path, folder.account)
    native_id = first.submit(lease)
    status_when(first, native_id, lambda status: status.seen is ObservedState.RUNNING)
    again = start()
    assert again.find(marker_of(lease)) == native_id
    load_when(again, lambda load: load.free_cores == cores - 1)
    assert [held.job for held in again.held()] == [lease.job]
    status_when(again, native_id, lambda status: status.seen is ObservedState.RUNNING)
    (folder.path / "go").touch()
    fake_clock.ahead_ns = HOLD_S * 10**9
    assert end_of(again, native_id).seen is ObservedState.SUCCEEDED
    load_when(again, lambda load: load.free_cores == cores)


def test_state_counts_what_was_submitted_as_taken(backend: Backend, cores: int) -> None:
    load_when(backend, lambda load: (load.free_cores, load.running) == (cores, 0))
    lease = runs(tasks=2, cores="500m", memory="1GiB")
    if backend.kind == "kubernetes":  # two tasks are two pods, each of which takes a part of a core from some node
        lease = runs(cores=2, memory="2GiB")
    native_id = backend.submit(lease)
    status_when(backend, native_id, lambda status: status.seen is ObservedState.RUNNING)
    state = load_when(backend, lambda load: (load.free_cores, load.running) == (cores - 2, 1))
    total = backend.describe().memory_bytes
    assert state.free_memory_bytes == (None if backend.kind == "flux" else total - 2 * 2**30), "Flux counts no memory"
    backend.cancel([native_id])
    end_of(backend, native_id)
    load_when(backend, lambda load: load.free_cores == cores)


def test_quote_says_whether_it_could_ever_run(backend: Backend) -> None:
    assert backend.quote(JobSpec(command=["true"])).can
    refused = backend.quote(JobSpec(command=["true"], resources=Resources(cores=13)))
    assert not refused.can
    assert refused.reason


def test_quote_says_when_there_will_be_room(start: Start) -> None:
    backend = start()
    asks = JobSpec(command=["true"], resources=Resources(cores=3))
    if backend.has_queue:  # it asks its cluster, which has room for more than this; tests/agent/slurm fills one
        assert backend.quote(asks).can
        return
    assert (backend.quote(asks).eta_s, backend.quote(asks).confidence) == (0, 1.0)
    lease = runs("60", cores=2, time_limit=60)
    status_when(backend, backend.submit(lease), lambda status: status.seen is ObservedState.RUNNING)
    for each in (backend, start()):  # and after a restart
        quote = each.quote(asks)
        assert quote.can
        assert quote.eta_s is not None
        assert 0 < quote.eta_s <= 60
        assert 0 < quote.confidence < 1
        assert quote.valid_s > 0
    backend.cancel([marker_of(lease)])
    end_of(backend, marker_of(lease))


def test_output_is_bytes_at_offsets(backend: Backend) -> None:
    lease = a_lease(
        "sh", "-c", "printf 'one two'; printf oops >&2", env={"FAKE_OUTPUT": "one two", "FAKE_ERROR": "oops"}
    )
    native_id = backend.submit(lease)
    end_of(backend, native_id)
    whole = backend.output(native_id, "stdout", offset=0, size=100)
    if backend.kind == "kubernetes":  # its log is one stream
        assert whole.data in (b"one twooops", b"oopsone two")
        assert backend.output(native_id, "stdout", offset=4, size=2) == OutputPiece(whole.data[4:6], 11)
        assert backend.output(native_id, "stderr", offset=0, size=100).total == 0
        return
    part = backend.output(native_id, "stdout", offset=4, size=2)
    assert (whole.data, whole.total) == (b"one two", 7)
    assert (part.data, part.total) == (b"tw", 7)
    assert backend.output(native_id, "stderr", offset=0, size=100).data == b"oops"
    assert backend.output(marker_of(runs()), "stdout", offset=0, size=100).total == 0


def test_a_job_with_files_runs_in_its_work_folder(backend: Backend) -> None:
    """The agent makes the folder and the files; the tasks of an array have one each."""
    script = 'cat in; pwd; test "$SWITCHYARD_FILES" = "$PWD" && echo done > out'
    whole = a_lease("sh", "-c", script, files=JobFiles(out=["*"]))
    leases = [replace(whole, fence=7 + step, lo=3 + step, hi=3 + step) for step in range(2)]
    leases.append(a_lease("sh", "-c", script, files=JobFiles(out=["*"])))
    folders = [backend.work_folder(lease) for lease in leases]
    for number, folder in enumerate(folders):
        assert folder.account is None
        assert not folder.path.parent.exists(), "the backend makes nothing"
        make_top_folder(folder.path, folder.account)
        (folder.path / "in").write_text(f"{number}\n")
    natives = [*backend.submit_range(leases[:2]), backend.submit(leases[2])]
    assert [end_of(backend, native).exit_code for native in natives] == [0, 0, 0]
    for number, (native, folder) in enumerate(zip(natives, folders, strict=True)):
        backend.forget(native)
        assert folder.path.is_dir(), "its output files may still be read"
        if backend.kind != "fake":
            assert (folder.path / "out").read_text() == "done\n"
            assert (folder.path / "in").read_text() == f"{number}\n"


def test_forgotten_is_gone(backend: Backend) -> None:
    lease = exits(0)
    native_id = backend.submit(lease)
    end_of(backend, native_id)
    backend.forget(native_id)
    assert backend.find(marker_of(lease)) is None
    assert backend.held() == []


def test_wake_ends_a_watch(backend: Backend) -> None:
    import threading

    threading.Timer(0.1, backend.wake).start()
    begun = time.monotonic()
    backend.watch(60)
    assert time.monotonic() - begun < 50


class BatchSystem(Protocol):
    """The batch system of a backend, which a test can silence."""

    def kill(self) -> None: ...

    def pause(self) -> None: ...

    def heal(self) -> None: ...


@dataclass(frozen=True)
class SilentFake:
    file: Path

    def kill(self) -> None:
        self.file.write_text("no controller")

    def pause(self) -> None:
        self.file.write_text("no answer")

    def heal(self) -> None:
        self.file.unlink(missing_ok=True)


@dataclass(frozen=True)
class SilentDaemon:
    """A controller of Slurm or an API server of Kubernetes."""

    cluster: SlurmCluster | KubernetesCluster
    name: str

    def kill(self) -> None:
        self.cluster.kill(self.name)

    def pause(self) -> None:
        self.cluster.pause(self.name)

    def heal(self) -> None:
        self.cluster.heal_daemons() if isinstance(self.cluster, SlurmCluster) else self.cluster.heal()


@dataclass(frozen=True)
class SilentFlux:
    instance: FluxInstance

    def kill(self) -> None:
        self.instance.kill()

    def pause(self) -> None:
        self.instance.pause()

    def heal(self) -> None:
        self.instance.resume()
        if self.instance.popen is None:
            self.instance.start()


@pytest.fixture
def batch_system(world: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BatchSystem]:
    kind, _, cluster = world.partition("-")
    made: BatchSystem
    if kind == "local":
        pytest.skip("it has no batch system")
    elif kind == "fake":
        made = SilentFake(tmp_path / "silence")
    elif kind == "slurm":
        made = SilentDaemon(request.getfixturevalue("slurm")[cluster], "slurmctld")
    elif kind == "kubernetes":
        made = SilentDaemon(request.getfixturevalue("kubernetes")[cluster], "apiserver")
    else:
        made = SilentFlux(request.getfixturevalue("flux")[cluster])
    yield made
    made.heal()
    if isinstance(made, SilentDaemon):
        made.cluster.heal()  # a controller that was killed gives its last numbers again


def trouble_when(backend: Backend, is_so: Callable[[Trouble | None], bool]) -> Trouble | None:
    """Ask the cluster until the backend's trouble is so."""
    deadline = time.monotonic() + END_S
    while not is_so(trouble := backend.trouble()):
        assert time.monotonic() < deadline, f"still {trouble}"
        with contextlib.suppress(Unavailable):
            backend.refresh()
        backend.watch(0.2)
    return trouble


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_silent_batch_system_is_told_and_ends_no_job(backend: Backend, batch_system: BatchSystem, how: str) -> None:
    """The silence has a reason and an age, which grows. It ends by itself when the batch system answers."""
    native_id = backend.submit(runs())
    status_when(backend, native_id, lambda status: status.seen is ObservedState.RUNNING)
    assert backend.trouble() is None
    getattr(batch_system, how)()
    trouble = trouble_when(backend, lambda trouble: trouble is not None)
    assert trouble is not None
    assert trouble.silent_s is not None
    cause, _, why = trouble.text.partition(": ")
    assert cause.endswith(" does not answer")
    assert why
    first_s = trouble.silent_s
    trouble_when(backend, lambda trouble: trouble is not None and (trouble.silent_s or 0.0) > first_s)
    assert backend.status([native_id])[native_id].seen is ObservedState.RUNNING
    assert backend.find(marker_of(runs())) is None, "what was never submitted surely is not there"
    batch_system.heal()
    trouble_when(backend, lambda trouble: trouble is None)
    if how == "pause":  # a batch system that was killed may have lost or ended the job
        status_when(backend, native_id, lambda status: status.seen is ObservedState.RUNNING)
        backend.cancel([native_id])


def test_takes_jobs_while_its_cluster_answers(backend: Backend) -> None:
    backend.refresh()
    assert backend.trouble() is None
