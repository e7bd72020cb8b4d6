"""Real Flux instances for tests, on this machine alone: several at once, each with virtual nodes. Knows no Switchyard.

    python -m tests.flux_bed up DIR        two instances, alpha and beta; prints their FLUX_URI
    python -m tests.flux_bed down DIR

Flux is not installed by the tests: they use the command `flux` of the PATH. Brokers talk over Unix sockets only. Every
process is ended by pid and start time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.processes import PATIENCE_S, STRAY_MARK, Process, children_of, end_strays, spawn, started_of, until

START_S = PATIENCE_S  # on a busy machine; 3 s is usual
CALL_S = 60.0
LOG_LINES = 30


@dataclass(frozen=True)
class FluxSpec:
    """One instance. `config`: more of its configuration, in TOML; `properties`: name → ranks."""

    name: str
    nodes: int = 3
    cores: int = 4
    gpus: int = 2
    config: str = ""
    properties: tuple[tuple[str, str], ...] = ()
    scheduler: str = os.environ.get("FLUX_SCHEDULER", "")  # empty: the default of the installed Flux

    @property
    def hosts(self) -> str:
        return f"{self.name}[0-{self.nodes - 1}]"


@dataclass
class FluxInstance:
    spec: FluxSpec
    folder: Path
    orphan_signal: str = "KILL"  # what the kernel sends when the test run is killed; "clear": nothing
    popen: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"local://{self.folder}/run/local-0"

    @property
    def env(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(self.folder),
            "FLUX_URI": self.uri,
            STRAY_MARK: str(self.folder),
        }

    def flux(self, *words: str, is_checked: bool = True) -> str:
        """What a command of Flux prints."""
        done = subprocess.run(
            ["flux", *words], env=self.env, capture_output=True, text=True, timeout=CALL_S, check=False, cwd="/"
        )
        assert not is_checked or done.returncode == 0, f"flux {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self) -> None:
        """Start the instance; returns when its scheduler has all nodes. The history of jobs survives a restart."""
        shutil.rmtree(self.folder / "run", ignore_errors=True)  # sockets of brokers that were killed
        for place in ("run", "conf", "state"):
            (self.folder / place).mkdir(parents=True, exist_ok=True)
        (self.folder / "conf" / "bed.toml").write_text(self._config(), encoding="utf-8")
        env = {key: text for key, text in self.env.items() if key != "FLUX_URI"}
        words = [
            *("flux", "start", f"--test-size={self.spec.nodes}", f"--test-hosts={self.spec.hosts}"),
            *(f"--test-rundir={self.folder}/run", f"--config-path={self.folder}/conf"),
            *(f"--setattr=statedir={self.folder}/state", "sleep", "inf"),
        ]
        self.popen = spawn(
            words, log_file=self.folder / "log", env=env, cwd=Path("/"), orphan_signal=self.orphan_signal
        )
        until(self._is_up, START_S, f"{self.spec.name} has its nodes\n{self.log_tail()}")

    def stop(self) -> None:
        """End everything, with the jobs."""
        self.resume()
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.cancel_all()
        self.kill()

    def shut_down(self) -> None:
        """The end that an operator makes: jobs are cancelled, and the history is saved."""
        assert self.popen is not None
        self.flux("shutdown", "--quiet", "--background")
        self.popen.wait(START_S)

    def kill(self) -> None:
        """SIGKILL to all brokers at once, as when the machine fails."""
        for process in self._processes():
            process.kill()
        end_strays(self.folder)
        if self.popen is not None:
            self.popen.wait(START_S)
            self.popen = None

    def broker(self, rank: int) -> Process:
        """The broker of one rank. Killing it is as when its node fails."""
        pid = int(self.flux("exec", "-r", str(rank), "flux", "getattr", "broker.pid").split()[-1])
        started = started_of(pid)
        assert started is not None
        return Process(pid, started)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def cancel_all(self) -> None:
        """Cancel every job, and wait until none is left."""
        self.flux("cancel", "--all", "--states=pending,running", is_checked=False)
        until(
            lambda: not self.flux("jobs", "-n", "-o", "{id}").strip(), PATIENCE_S, f"{self.spec.name} has no live job"
        )

    def validators(self) -> list[Process]:
        """The programs that look at each jobspec before Flux takes the job."""
        assert self.popen is not None
        return [
            process
            for process in children_of(self.popen.pid)
            if b"job-validator" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        ]

    def ended_jobs(self, name: str) -> list[str]:
        return self.flux("jobs", "-n", "-a", "--filter=inactive", f"--name={name}", "-o", "{id}").split()

    def log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return "\n".join((self.folder / "log").read_text(errors="replace").splitlines()[-LOG_LINES:])
        return "(no log)"

    def _is_up(self) -> bool:
        assert self.popen is not None
        if self.popen.poll() is not None:
            raise AssertionError(f"{self.spec.name} ended:\n{self.log_tail()}")
        # The broker answers before its scheduler is there.
        listed = self.flux("resource", "list", "-s", "up", "-no", "{nnodes}", is_checked=False)
        return listed.strip() == str(self.spec.nodes)

    def _config(self) -> str:
        spec = self.spec
        lines = ["[resource]", "noverify = true", "[[resource.config]]", f'hosts = "{spec.hosts}"']
        lines.append(f'cores = "0-{spec.cores - 1}"')
        if spec.gpus:
            lines.append(f'gpus = "0-{spec.gpus - 1}"')
        for name, ranks in spec.properties:
            hosts = f"{spec.name}[{ranks}]"
            lines += ["[[resource.config]]", f'hosts = "{hosts}"', f'properties = ["{name}"]']
        if spec.scheduler:
            lines += ["[modules]", f'alternatives.sched = "{spec.scheduler}"']
        return "\n".join([*lines, spec.config, ""])

    def _processes(self) -> list[Process]:
        if self.popen is None or (started := started_of(self.popen.pid)) is None:
            return []
        return [*children_of(self.popen.pid), Process(self.popen.pid, started)]

    def _signal(self, number: int) -> None:
        for process in self._processes():
            if process.is_alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)


@dataclass
class FluxBed:
    """Some instances in one folder, whose path must be short: it is that of Unix sockets."""

    folder: Path
    instances: dict[str, FluxInstance] = field(default_factory=dict)

    def __getitem__(self, name: str) -> FluxInstance:
        return self.instances[name]

    def start(self, spec: FluxSpec, *, orphan_signal: str = "KILL") -> FluxInstance:
        instance = self.instances[spec.name] = FluxInstance(spec, self.folder / spec.name, orphan_signal)
        instance.start()
        return instance

    def stop(self) -> None:
        for instance in self.instances.values():
            instance.stop()


@contextlib.contextmanager
def flux_running(*specs: FluxSpec) -> Iterator[FluxBed]:
    """Started instances in a folder of their own; all is gone afterwards."""
    if shutil.which("flux") is None:
        raise AssertionError("there is no command `flux` in the PATH; see docs/how-to/add-a-flux-cluster.md")
    bed = FluxBed(Path(tempfile.mkdtemp(prefix="yflux-", dir="/tmp")))
    try:
        for spec in specs:
            bed.start(spec)
        yield bed
    finally:
        bed.stop()
        end_strays(bed.folder)
        shutil.rmtree(bed.folder, ignore_errors=True)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.flux_bed", description="Real Flux instances.")
    parser.add_argument("command", choices=["up", "down"])
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(words)
    folder: Path = given.folder.resolve()
    if given.command == "up":
        bed = FluxBed(folder)
        for name in ("alpha", "beta"):
            print(f"{name}: FLUX_URI={bed.start(FluxSpec(name), orphan_signal='clear').uri}")
    else:
        end_strays(folder)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
