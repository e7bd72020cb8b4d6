"""The Flux backend on a real instance: what its contract suite does not ask."""

from __future__ import annotations

import functools
import os
import shutil
import signal
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from switchyard.agent.backends import marker_of
from switchyard.agent.backends.shared.returns import NotTakenNow
from switchyard.agent.backends.shared.work_folders import UNENTERED_TEXT
from switchyard.agent.journal.attempt import split_ranges
from switchyard.agent.site.site import AccountsSite
from switchyard.errors import Malformed, PolicyRefused, Unavailable
from switchyard.features.flux.agent.backend import FluxBackend
from switchyard.features.flux.agent.cluster.node_systems import describe_flux_systems
from switchyard.features.flux.agent.flux_site import flux_of
from switchyard.features.flux.agent.follow.job_ids import handle_of, split_handle
from switchyard.model.cluster.poll import Lease
from switchyard.model.job.job import JobSpec, Native, Resources
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from tests.agent.builders import a_lease, end_of, load_when, status_when
from tests.agent.flux.builders import Make, a_flux_setting
from tests.flux_bed import FluxBed, FluxInstance, FluxSpec, flux_running
from tests.processes import PATIENCE_S, until
from tests.programs import YARD

pytestmark = [pytest.mark.flux, pytest.mark.xdist_group("flux")]


def runs(seconds: int = 600, **resources: object) -> Lease:
    return a_lease("sleep", str(seconds), resources=resources)


def is_running(backend: FluxBackend, handle: str) -> None:
    status_when(backend, handle, lambda status: status.seen is ObservedState.RUNNING)


def test_what_an_unsatisfiable_job_is_told(make: Make) -> None:
    """By the quote before the submit, and by the scheduler after it."""
    backend = make()
    for resources in (Resources(nodes=100, tasks=100), Resources(cores=5), Resources(gpus=3)):
        refused = backend.quote(JobSpec(command=["true"], resources=resources))
        assert not refused.can
        assert refused.reason
    ended = end_of(backend, backend.submit(a_lease(resources={"nodes": 100, "tasks": 100})))
    assert (ended.seen, ended.cause) == (ObservedState.RETURNED, Cause.CLUSTER), "another cluster may have them"
    assert ended.reason.startswith("the scheduler refused it: ")
    last = replace(a_lease(resources={"nodes": 100, "tasks": 100}), attempt=20)
    assert end_of(backend, backend.submit(last)).reason.endswith("it was handed over 20 times")


def test_an_error_of_validation_is_shown_as_it_is(make: Make) -> None:
    backend = make()
    unknown_queue = replace(a_lease(), native_queue="nowhere")
    with pytest.raises(PolicyRefused, match=r"Flux refused it: .*queue"):
        backend.submit(unknown_queue)
    assert backend.held() == []


def test_commands_that_cannot_run(make: Make) -> None:
    backend = make()
    handle = backend.submit(a_lease("no-such-program"))
    missing = end_of(backend, handle)
    assert (missing.seen, missing.cause, missing.exit_code) == (ObservedState.FAILED, Cause.JOB, 127)
    assert b"no-such-program" in backend.output(handle, "stderr", offset=0, size=999).data
    homeless = end_of(backend, backend.submit(a_lease("true", cwd="/no/such/folder")))
    assert (homeless.seen, homeless.exit_code, homeless.reason) == (ObservedState.FAILED, None, UNENTERED_TEXT)


def test_a_code_like_a_signal_is_a_code(make: Make) -> None:
    backend = make()
    ended = end_of(backend, backend.submit(a_lease("sh", "-c", "exit 137")))
    assert (ended.exit_code, ended.signal) == (137, None)


def test_a_job_that_writes_its_own_log_harms_nobody(make: Make) -> None:
    """A job may append to the log of its shell, from which the bridge reads how tasks ended."""
    backend = make()
    append = "flux kvs eventlog append exec.eventlog shell.task-exit"
    waits = backend.submit(runs())
    is_running(backend, waits)
    for context in ("", """ '{"wait_status": "x"}'""", """ '{"wait_status": 127}'"""):
        ended = end_of(backend, backend.submit(a_lease("sh", "-c", f"{append}{context} && exit 137")))
        assert ended.seen is ObservedState.FAILED, ended
        assert 137 in (ended.exit_code, 128 + (ended.signal or 0)), ended
    backend.cancel([waits])
    assert end_of(backend, waits).reason == "cancelled"


def test_a_time_limit_ends_a_job(make: Make) -> None:
    backend = make()
    ended = end_of(backend, backend.submit(runs(time_limit=1)))
    assert (ended.seen, ended.cause) == (ObservedState.FAILED, Cause.JOB)
    assert ended.reason.startswith("time limit reached")


def test_tasks_nodes_and_gpus_run_as_asked(make: Make) -> None:
    backend = make()
    script = 'echo "$FLUX_TASK_RANK of $FLUX_JOB_SIZE on $FLUX_JOB_NNODES"'
    handle = backend.submit(a_lease("sh", "-c", script, resources={"nodes": 2, "tasks": 4, "cores": 2, "gpus": 1}))
    ended = end_of(backend, handle)
    assert ended.seen is ObservedState.SUCCEEDED
    text = backend.output(handle, "stdout", offset=0, size=1000).data.decode()
    assert sorted(text.splitlines()) == [f"{rank} of 4 on 2" for rank in range(4)]
    assert ended.usage is not None
    assert ended.usage.nodes.startswith("alpha")


def test_output_appears_while_the_job_runs(make: Make) -> None:
    backend = make()
    handle = backend.submit(a_lease("sh", "-c", "printf early; exec sleep 600"))
    until(lambda: backend.output(handle, "stdout", offset=0, size=100).data == b"early", PATIENCE_S, "the first bytes")
    backend.cancel([handle])
    assert end_of(backend, handle).reason == "cancelled"


def test_a_cancel_by_the_site_is_told_apart(make: Make, instance: FluxInstance) -> None:
    backend = make()
    handle = backend.submit(runs())
    is_running(backend, handle)
    instance.flux("cancel", "-m", "maintenance", handle.partition("/")[0])
    assert end_of(backend, handle).reason == "cancelled at the cluster: maintenance"


def test_a_range_of_tasks_is_one_submit(make: Make) -> None:
    backend = make()
    whole = a_lease("sh", "-c", "exit $((SWITCHYARD_ARRAY_INDEX % 2))", resources={"cores": 1})
    leases = [replace(whole, fence=10 + step, lo=step, hi=step) for step in range(50)]
    handles = backend.submit_range(leases)
    ends = [end_of(backend, handle).exit_code for handle in handles]
    assert ends == [step % 2 for step in range(50)]


def test_a_lost_answer_is_adopted_not_repeated(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker has the job, and the agent does not know it: it finds the job by its name."""
    first = make()
    lease = runs()
    call = first._connection.call

    def deaf(op: str, **fields: object) -> object:
        result = call(op, **fields)
        if op == "submit":
            raise Unavailable("the answer was lost")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(first._connection, "call", deaf)
        with pytest.raises(Unavailable):
            first.submit(lease)
    again = make()
    handle = again.find(marker_of(lease))
    assert handle is not None
    is_running(again, handle)
    assert [held.job for held in again.held()] == [lease.job]


def test_a_submit_that_never_arrived_is_free_after_the_settle_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make()
    lease = runs()

    def unheard(op: str, **fields: object) -> object:
        raise Unavailable("nothing was sent")

    for step in (backend.submit, lambda lease: backend.find(marker_of(lease))):
        with monkeypatch.context() as patch:
            patch.setattr(backend._connection, "call", unheard)
            with pytest.raises(Unavailable):
                step(lease)
    with pytest.raises(Unavailable, match="not sure yet"):
        backend.find(marker_of(lease))

    until(lambda: is_free(backend, lease), PATIENCE_S, "the settle time is over")


def test_a_job_that_flux_takes_late_does_not_run_a_second_time(
    make: Make, instance: FluxInstance, tmp_path: Path
) -> None:
    """The validator of Flux hangs: requests wait in it, no answer comes, and the agent submits again."""
    backend = make(flux={"timeout_s": 2.0, "settle_s": 0.1})
    end_of(backend, backend.submit(a_lease()))  # validators start with the first job
    notes = tmp_path / "notes"
    lease = a_lease("sh", "-c", f"echo $FLUX_JOB_ID >> {notes}; sleep 1")
    validators = instance.validators()
    assert validators
    try:
        for validator in validators:
            os.kill(validator.pid, signal.SIGSTOP)
        for _ in range(2):
            with pytest.raises(Unavailable):
                backend.submit(lease)
            until(lambda: is_free(backend, lease), PATIENCE_S, "the first submit is given up")
        with pytest.raises(Unavailable):
            backend.submit(lease)
    finally:
        for validator in validators:
            os.kill(validator.pid, signal.SIGCONT)
    handle = until(lambda: found(backend, lease), PATIENCE_S, "the last submit is found by its name")
    assert end_of(backend, handle).seen is ObservedState.SUCCEEDED
    name = marker_of(lease)
    until(lambda: len(instance.ended_jobs(name)) == 3, PATIENCE_S, "all three have ended")
    assert len(notes.read_text().splitlines()) == 1


def test_some_tasks_of_a_range_are_submitted_again_while_others_of_it_run(
    make: Make, instance: FluxInstance, tmp_path: Path
) -> None:
    """No answer came. Two tasks are given up, then Flux takes all of them."""
    backend = make(flux={"timeout_s": 2.0, "settle_s": 0.1})
    end_of(backend, backend.submit(a_lease()))
    notes = tmp_path / "notes"
    whole = replace(a_lease("sh", "-c", f"echo $SWITCHYARD_ARRAY_INDEX >> {notes}"), lo=0, hi=5)
    leases = list(split_ranges([whole]))
    validators = instance.validators()
    try:
        for validator in validators:
            os.kill(validator.pid, signal.SIGSTOP)
        with pytest.raises(Unavailable):
            backend.submit_range(leases)
        for lease in leases[:2]:
            until(functools.partial(is_free, backend, lease), PATIENCE_S, "the task is given up")
    finally:
        for validator in validators:
            os.kill(validator.pid, signal.SIGCONT)
    first = until(lambda: found(backend, leases[2]), PATIENCE_S, "a task of the first submit is found")
    until(lambda: instance.ended_jobs(marker_of(leases[0])), PATIENCE_S, "a task that was given up has ended")
    assert all(is_free(backend, lease) for lease in leases[:2]), "what was given up is not taken up again"
    again = backend.submit_range(leases[:2])
    rest = [until(functools.partial(found, backend, lease), PATIENCE_S, "it is found") for lease in leases[3:]]
    handles = [*again, first, *rest]
    assert {end_of(backend, handle).seen for handle in handles} == {ObservedState.SUCCEEDED}
    assert sorted(notes.read_text().split()) == list("012345")
    for handle in handles:
        backend.forget(handle)
    assert {record.lease.job for record in backend._register.all()} & {whole.job} == set()


def is_free(backend: FluxBackend, lease: Lease) -> bool:
    try:
        return backend.find(marker_of(lease)) is None
    except Unavailable:
        return False


def found(backend: FluxBackend, lease: Lease) -> str | None:
    try:
        return backend.find(marker_of(lease))
    except Unavailable:
        return None


def test_a_command_with_templates_of_flux_runs_as_it_is(make: Make) -> None:
    backend = make()
    handle = backend.submit(a_lease("sh", "-c", 'echo "$A" "$@"', "sh", "{{id}}", "{{name}}", env={"A": "{{tmpdir}}"}))
    assert end_of(backend, handle).seen is ObservedState.SUCCEEDED
    assert backend.output(handle, "stdout", offset=0, size=999).data == b"{{tmpdir}} {{id}} {{name}}\n"


def test_the_same_id_under_another_name_is_returned_and_not_cancelled(make: Make) -> None:
    """Another instance may give the same id."""
    backend = make()
    ours = backend.submit(runs())
    is_running(backend, ours)
    stranger = runs()
    number = split_handle(ours)[0]
    assert number is not None
    foreign = handle_of(number, marker_of(stranger))
    backend._register.write(replace(backend._register.all()[0], lease=stranger, job_ids={"1": number}))
    backend.cancel([foreign])
    assert end_of(backend, foreign).seen is ObservedState.LOST, "without its folder it is not known whether it ran"
    backend._files.make(backend._register.all()[-1].folder, None)
    lost = end_of(backend, foreign)
    assert lost.seen is ObservedState.RETURNED
    assert lost.reason.startswith("the job with this id has another name: ")
    assert lost.reason.endswith("; nothing of it ran")
    is_running(backend, ours)


def test_a_flux_that_hangs_for_a_while_costs_no_job(make: Make, tmp_path: Path) -> None:
    """The bridge is killed, and the command `flux` hangs when it should start again."""
    real, hangs = Path(shutil.which("flux") or ""), tmp_path / "hangs"
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "flux"
    program.write_text(f'#!/bin/sh\n[ -e {hangs} ] && exec sleep 600\nexec {real} "$@"\n')
    program.chmod(0o755)
    backend = make(flux={"bin": str(program.parent), "timeout_s": 5.0})
    handle = backend.submit(a_lease("sh", "-c", f"until [ -e {tmp_path}/gate ]; do sleep 0.1; done"))
    is_running(backend, handle)
    hangs.touch()
    bridge = backend._connection._bridge
    assert bridge is not None
    bridge.process.kill()
    until(lambda: bridge.is_over, PATIENCE_S, "the bridge has ended")
    for ask in (backend.refresh, lambda: backend.submit(runs())):
        with pytest.raises(Unavailable, match="did not answer within 5 s"):
            ask()
    assert backend.status([handle])[handle].seen is ObservedState.RUNNING, "silence proves nothing"
    hangs.unlink()
    (tmp_path / "gate").touch()
    assert end_of(backend, handle).seen is ObservedState.SUCCEEDED


def test_a_full_or_closed_queue(make: Make, instance: FluxInstance) -> None:
    """Jobs wait in a full queue, and say so. A queue that takes no jobs refuses them in Flux's words."""
    backend = make()
    full = backend.submit(runs(tasks=12))
    is_running(backend, full)
    waiting = [backend.submit(a_lease(resources={"tasks": 12})) for _ in range(3)]
    for handle in waiting:
        status_when(backend, handle, lambda status: status.text == "SCHED" and status.seen is ObservedState.SUBMITTED)
    load_when(backend, lambda load: load.queued == 3)
    instance.flux("queue", "disable", "-m", "maintenance on Monday")
    try:
        with pytest.raises(NotTakenNow, match=r"Flux refused it: .*maintenance on Monday"):
            backend.submit(a_lease())
        assert len(backend.held()) == 4, "nothing of it is left"
    finally:
        instance.flux("queue", "enable")
    backend.cancel([full])
    assert [end_of(backend, handle).seen for handle in waiting] == [ObservedState.SUCCEEDED] * 3


def test_a_node_drained_under_a_job_lets_it_end(make: Make, instance: FluxInstance, tmp_path: Path) -> None:
    backend = make()
    handle = backend.submit(a_lease("sh", "-c", f"until [ -e {tmp_path}/gate ]; do sleep 0.1; done"))
    is_running(backend, handle)
    node = instance.flux("jobs", "-no", "{nodelist}").strip()
    instance.flux("resource", "drain", node, "disk")
    try:
        load_when(backend, lambda load: load.values.get("nodes_closed") == 1 and load.free_cores == 8)
        elsewhere = backend.submit(a_lease("hostname"))
        found = end_of(backend, elsewhere)
        assert found.usage is not None
        assert found.usage.nodes != node
        assert backend.status([handle])[handle].seen is ObservedState.RUNNING
        (tmp_path / "gate").touch()
        assert end_of(backend, handle).seen is ObservedState.SUCCEEDED
    finally:
        instance.flux("resource", "undrain", node)


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("may_connect", [False, True])
def test_a_guest_without_rights_is_told_so(tmp_path: Path, may_connect: bool) -> None:
    """A user who may not connect cannot start an agent; one who may connect, but not submit, is refused by Flux."""
    allowed = f"[access]\nallow-guest-user = {str(may_connect).lower()}"
    with flux_running(FluxSpec("guarded", nodes=1, config=allowed)) as bed:
        bed.folder.chmod(0o755)
        program = tmp_path / "flux"
        become = "setpriv --reuid=65534 --regid=65534 --clear-groups --"
        program.write_text(f'#!/bin/sh\nHOME=/tmp exec {become} {shutil.which("flux")} "$@"\n')
        program.chmod(0o755)
        setting = a_flux_setting(tmp_path / "agent", bed["guarded"], flux={"bin": str(tmp_path)})
        if not may_connect:
            with pytest.raises(Unavailable, match=r"(?i)not permitted|denied"):
                FluxBackend(setting)
            return
        with closing(FluxBackend(setting)) as backend:
            with pytest.raises(PolicyRefused, match=r"Flux refused it: .*(owner|sign)"):
                backend.submit(a_lease())
            assert backend.held() == []


def test_drained_nodes_and_stopped_queues_are_seen(make: Make, instance: FluxInstance) -> None:
    backend = make()
    load_when(backend, lambda load: load.free_cores == 12)
    try:
        instance.flux("resource", "drain", "1", "disk")
        load = load_when(backend, lambda load: load.free_cores == 8)
        assert (load.values["nodes_closed"], load.values["nodes_down"]) == (1, 0)
        instance.flux("queue", "stop", "-m", "new switches")
        load_when(backend, lambda load: load.values["queues_stopped"] == 1)
        waiting = backend.submit(a_lease())
        stopped = status_when(backend, waiting, lambda status: status.text == "SCHED")
        assert stopped.seen is ObservedState.SUBMITTED
        assert stopped.reason == "waits at the cluster: the queue is stopped: new switches"
    finally:
        instance.flux("resource", "undrain", "1")
        instance.flux("queue", "start")
    assert end_of(backend, waiting).seen is ObservedState.SUCCEEDED


def test_a_quote_says_when_there_is_room(make: Make) -> None:
    backend = make()
    handle = backend.submit(runs(tasks=12, time_limit=300))
    is_running(backend, handle)
    load_when(backend, lambda load: load.free_cores == 0)
    quote = backend.quote(JobSpec(command=["true"], resources=Resources(cores=2)))
    assert quote.can
    assert quote.eta_s is not None
    assert 200 < quote.eta_s <= 300


def test_an_account_map_is_refused(instance: FluxInstance, tmp_path: Path) -> None:
    setting = a_flux_setting(tmp_path, instance, accounts=AccountsSite(map=str(tmp_path / "map")))
    with pytest.raises(Malformed, match="own account"):
        FluxBackend(setting)


def test_options_only_where_the_site_allows_them(make: Make) -> None:
    backend = make()
    with pytest.raises(PolicyRefused, match="does not allow the option --urgency"):
        backend.submit(a_lease(native=Native(options=["--urgency=20"])))


def test_an_instance_that_is_not_there(tmp_path: Path, flux: FluxBed) -> None:
    nowhere = FluxInstance(FluxSpec("nowhere"), tmp_path / "nowhere")
    with pytest.raises(Unavailable, match="Flux"):
        FluxBackend(a_flux_setting(tmp_path, nowhere))


def test_the_systems_of_all_nodes_are_found_by_jobs(instance: FluxInstance, tmp_path: Path) -> None:
    setting = a_flux_setting(tmp_path, instance)
    found, silent = describe_flux_systems(flux_of(setting.site), setting.environment, program=YARD)
    assert silent == {}
    assert sorted(found["attach"]) == ["alpha0", "alpha1", "alpha2"]
    assert all(found["attach"].values())
