"""Slurm's bad days, for tests: a folder of commands that behave as on one, and saves of state. Knows no Switchyard.

clients = FaultyClients(tmp_path / "bin", slurm["alpha"])
clients.set(Fault.STALL)        # holds from the next call on
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from tests.processes import until
from tests.slurm_bed import SlurmCluster
from tests.slurm_conf import CLIENTS

LATE_S = 2  # how long after its caller was told nothing a late submit comes


class Fault(StrEnum):
    NONE = "none"
    STALL = "stall"  # submits, and never answers
    DROP = "drop"  # never answers, and did not submit
    TIMEOUT = "timeout"  # submits, and says that the controller did not answer, as sbatch itself does
    LATE = "late"  # never answers, and submits after its caller has given up
    BANNER = "banner"  # answers among words of the site's own, on both streams
    FULL = "full"  # the controller cannot save the script: its disk is full
    GONE = "gone"  # submits, and the node cannot run the script, as if Slurm had taken the script away: exit code 2
    MIXED = "mixed"  # one of the first five, another at each call


SBATCH = """\
#!/bin/sh
# A submit with the fault that the file beside this one names. A question (--test-only) has none.
fault=$(cat {here}/fault)
case " $* " in *" --test-only "*) fault=none ;; esac
if [ "$fault" = mixed ]; then
    n=$(od -An -N1 -tu1 /dev/urandom)
    case $((n % 5)) in 0) fault=stall ;; 1) fault=drop ;; 2) fault=timeout ;; 3) fault=late ;; *) fault=none ;; esac
fi
echo "$fault" >>{here}/submits
case $fault in
stall)
    {real} "$@" >/dev/null 2>&1
    exec sleep 600
    ;;
drop)
    exec sleep 600
    ;;
timeout)
    {real} "$@" >/dev/null 2>&1
    echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
    exit 1
    ;;
late)
    script=$(mktemp {here}/script.XXXXXX)
    cat >"$script"
    # A session of its own: ended with us, it would never come.
    setsid sh -c 'sleep {late_s}; script=$1; shift; {real} "$@" <"$script" >/dev/null 2>&1' sh "$script" "$@" \\
        >/dev/null 2>&1 </dev/null &
    exec sleep 600
    ;;
banner)
    echo "*** Welcome to {cluster}; maintenance on Monday, 07:00 ***"
    echo "*** jobs: see the rules | and 4711 of them ***" >&2
    {real} "$@" || exit $?
    echo "sbatch: lua: Submitted to the default partition"
    ;;
full)
    echo "sbatch: error: Batch job submission failed: I/O error writing script/environment to file" >&2
    exit 1
    ;;
gone)
    sed '1s|.*|#!/gone/sh|' | {real} "$@"
    ;;
*)
    exec {real} "$@"
    ;;
esac
"""


class FaultyClients:
    """A folder with all clients of one cluster; only its sbatch has faults."""

    def __init__(self, folder: Path, cluster: SlurmCluster) -> None:
        self.bin = folder
        folder.mkdir(parents=True)
        for program in CLIENTS:
            if program != "sbatch":
                (folder / program).symlink_to(cluster.bin / program)
        text = SBATCH.format(here=folder, real=cluster.bin / "sbatch", cluster=cluster.name, late_s=LATE_S)
        (folder / "sbatch").write_text(text, encoding="utf-8")
        (folder / "sbatch").chmod(0o755)
        self.set(Fault.NONE)

    def set(self, fault: Fault) -> None:
        draft = self.bin / "fault.draft"
        draft.write_text(fault, encoding="utf-8")
        draft.replace(self.bin / "fault")

    def submits(self) -> list[Fault]:
        """The fault of each call so far."""
        seen = self.bin / "submits"
        return [Fault(word) for word in seen.read_text(encoding="utf-8").split()] if seen.exists() else []


def saved_ns(cluster: SlurmCluster) -> int:
    """When its controller last saved the state."""
    file = cluster.folder / "state" / "job_state"
    return file.stat().st_mtime_ns if file.exists() else 0


def save_state(cluster: SlurmCluster, timeout_s: float) -> int:
    """Let its controller save the state now, so that the save after it comes in 5 s; when this one was."""
    before = saved_ns(cluster)
    cluster.run("sbatch", "-o", "/dev/null", "--wrap", "true")
    until(lambda: saved_ns(cluster) > before, timeout_s, "the state was saved")
    return saved_ns(cluster)


@contextmanager
def pinged_often(cluster: SlurmCluster) -> Iterator[None]:
    """A controller that asks its nodes every 3 s, and every 20th time for all they run.

    Only then it sees soon that a node is back, or that a job it takes for running is not there. It asks three times in
    SlurmdTimeout, so a machine that stands still for 10 s loses what runs: for tests in which jobs may be lost.
    """
    with changed_conf(cluster, lambda usual: usual.replace("SlurmdTimeout=120", "SlurmdTimeout=10")):
        yield


@contextmanager
def changed_conf(cluster: SlurmCluster, change: Callable[[str], str]) -> Iterator[None]:
    """A cluster whose slurm.conf has another text. Afterwards it is healed."""
    usual = cluster.conf.read_text(encoding="utf-8")
    cluster.conf.write_text(change(usual), encoding="utf-8")
    cluster.reconfigure()
    try:
        yield
    finally:
        cluster.conf.write_text(usual, encoding="utf-8")
        cluster.reconfigure()
