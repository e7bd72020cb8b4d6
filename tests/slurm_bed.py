"""Real Slurm clusters for tests, on this machine alone: several at once, each with virtual nodes. Knows no Switchyard.

    python -m tests.slurm_bed up DIR --cluster alpha:nodes=3,gpus=2,accounting=1 --cluster beta
    DIR/alpha/bin/squeue ...              # or SLURM_CONF=DIR/alpha/etc/slurm.conf squeue ...
    python -m tests.slurm_bed fault DIR pause|resume|kill|stop|start alpha/slurmctld
    python -m tests.slurm_bed down DIR

Every process is ended by pid and start time. As root, or as one ordinary user whose every job then is that user's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tests import slurm_conf
from tests.processes import PATIENCE_S, STRAY_MARK, Process, end_strays, free_port, spawn, started_of, until
from tests.services import SYSTEM_PATH, slurm_lacking
from tests.slurm_conf import CLIENTS, Ports, Site, Spec
from tests.slurm_daemon import CALL_S, Daemon, StartError, answers, remove_cgroups, run, write
from tests.slurm_logs import ends_of_logs, highest_number

START_S = PATIENCE_S  # cold and on a busy machine; 2 s is usual, 6 s with a database
NUMBERS_MAX = 1_000  # that a controller which is killed has given since it saved its state, in any test
STOP_S = PATIENCE_S / 2
RUNNING: list[SlurmBed] = []
STARTS_MAX = 3  # another process may take a port between our look and the start
IN_ROOT = Path(__file__).resolve().parent.parent / "scripts" / "in-root"


@dataclass
class SlurmBed:
    """Some clusters in one folder, which must be short and not writable by others (munge insists)."""

    folder: Path
    specs: tuple[Spec, ...]
    orphan_signal: str = "KILL"  # what the kernel sends the daemons when the test run is killed; "clear": nothing
    daemons: dict[str, Daemon] = field(default_factory=dict)
    password: str = field(default_factory=lambda: secrets.token_hex(12))
    popens: list[subprocess.Popen[bytes]] = field(default_factory=list)  # kept until they are waited for

    def __getitem__(self, name: str) -> SlurmCluster:
        spec = next(spec for spec in self.specs if spec.name == name)
        return SlurmCluster(self, spec)

    @property
    def clusters(self) -> list[SlurmCluster]:
        return [SlurmCluster(self, spec) for spec in self.specs]

    def start(self) -> None:
        """Start every cluster; returns when all nodes are there."""
        if lacking := slurm_lacking():
            raise AssertionError(f"not installed: {' '.join(lacking)}. Run `make test-install` as root")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        for last in (False, False, True)[-STARTS_MAX:]:
            try:
                self._start_once()
                return
            except StartError:
                self.stop()
                if last:
                    raise

    def stop(self) -> None:
        """End all, at once: nobody reads what is left. A database would not be usable afterwards."""
        for daemon in self.daemons.values():
            if daemon.is_alive:
                Process(daemon.pid, daemon.started).kill()
        for popen in self.popens:
            popen.wait(STOP_S)
        end_strays(self.folder)  # slurmstepd and the jobs outlive slurmd
        for node in (node for spec in self.specs for node in spec.node_names):
            remove_cgroups(slurm_conf.MEMORY_CGROUP / f"slurm_{node}")
        self.popens.clear()
        self.daemons.clear()
        self.save()

    def run_daemon(self, name: str, argv: Sequence[str], log_file: Path, **env: str) -> Daemon:
        daemon = self.daemons.setdefault(name, Daemon(list(argv), str(log_file), env))
        if not daemon.is_alive:
            popen = spawn(
                daemon.argv,
                log_file=Path(daemon.log_file),
                env={
                    "PATH": SYSTEM_PATH,
                    "LANG": "C.UTF-8",
                    "HOME": str(Path.home()),
                    STRAY_MARK: str(self.folder),
                    **daemon.env,
                },
                cwd=Path("/"),
                orphan_signal=self.orphan_signal,
            )
            daemon.pid, daemon.started = popen.pid, started_of(popen.pid) or 0
            self.popens.append(popen)
            self.save()
        return daemon

    def await_daemon(self, name: str, address: str | tuple[str, int]) -> None:
        """Until it takes connections; its end is seen at once."""
        daemon = self.daemons[name]
        try:
            until(lambda: not daemon.is_alive or answers(address), START_S, f"{name} answers at {address}")
        except AssertionError as exc:
            raise StartError(f"{exc}\n{daemon.log_tail()}") from None
        if not daemon.is_alive:
            raise StartError(f"{name} ended:\n{daemon.log_tail()}")

    def save(self) -> None:
        """So that another process can stop what this one started."""
        if not self.folder.is_dir():
            return
        kept = {
            "specs": [asdict(spec) for spec in self.specs],
            "password": self.password,
            "daemons": {name: asdict(daemon) for name, daemon in self.daemons.items()},
        }
        draft = self.folder / "bed.json.draft"
        draft.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        draft.chmod(0o600)
        draft.replace(self.folder / "bed.json")

    @classmethod
    def load(cls, folder: Path) -> SlurmBed:
        kept = json.loads((folder / "bed.json").read_text(encoding="utf-8"))
        specs = tuple(Spec(**{**spec, "extra": tuple(spec["extra"])}) for spec in kept["specs"])
        daemons = {name: Daemon(**daemon) for name, daemon in kept["daemons"].items()}
        return cls(folder, specs, "clear", daemons, kept["password"])

    def _start_once(self) -> None:
        ports = {spec.name: _ports(spec) for spec in self.specs}
        for cluster in self.clusters:
            cluster.write(ports[cluster.name])
            cluster.start_munge()
        with_database = [cluster for cluster in self.clusters if cluster.spec.accounting]
        if with_database:
            self._start_database(with_database)
        for cluster in with_database:
            cluster.start_accounting(ports[cluster.name])
        for cluster in self.clusters:
            cluster.start_slurm()
        for cluster in self.clusters:
            self.await_daemon(f"{cluster.name}/slurmctld", ("127.0.0.1", ports[cluster.name].controller))
            cluster.await_nodes()

    def _start_database(self, clusters: Sequence[SlurmCluster]) -> None:
        home = self.folder / "db"
        data, line = home / "data", home / "sock"
        shutil.rmtree(home, ignore_errors=True)
        tables = home / "tmp"  # its own: one that starts clears away what another has in a shared place
        tables.mkdir(parents=True)
        user = pwd.getpwuid(os.getuid()).pw_name
        where = ["--no-defaults", f"--datadir={data}", f"--tmpdir={tables}", f"--user={user}"]
        run(["mariadb-install-db", *where, "--skip-test-db", "--auth-root-authentication-method=normal"])
        sizes = ["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M", "--innodb-flush-log-at-trx-commit=2"]
        words = [*where, f"--socket={line}", f"--pid-file={home}/pid", "--skip-networking", *sizes]
        self.run_daemon("mariadbd", ["mariadbd", *words], home / "log")
        self.await_daemon("mariadbd", str(line))
        statements = [f"CREATE USER slurm@localhost IDENTIFIED BY '{self.password}';"]
        for cluster in clusters:
            name = f"slurm_{cluster.name}"
            statements.append(f"CREATE DATABASE {name}; GRANT ALL ON {name}.* TO slurm@localhost;")
        run(["mariadb", "--no-defaults", f"--socket={line}", "-uroot", "-e", " ".join(statements)])


@dataclass(frozen=True)
class SlurmCluster:
    """One cluster of a bed: its clients, and faults of its daemons.

    Daemons are `munged`, `slurmctld`, `slurmd/NODE` and, with accounting, `slurmdbd`.
    """

    bed: SlurmBed
    spec: Spec

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def site(self) -> Site:
        user = pwd.getpwuid(os.getuid()).pw_name
        host = socket.gethostname().split(".")[0]
        return Site(self.bed.folder / self.name, host, user, slurm_version(self.spec.root))

    @property
    def folder(self) -> Path:
        return self.bed.folder / self.name

    @property
    def conf(self) -> Path:
        return self.folder / "etc" / "slurm.conf"

    @property
    def bin(self) -> Path:
        """A folder with clients that need no environment."""
        return self.folder / "bin"

    def run(self, program: str, *words: str, check: bool = True, timeout_s: float = CALL_S) -> str:
        """What a client says; `check=False`: also what it says when it fails."""
        return run([str(self.bin / program), *words], check=check, timeout_s=timeout_s)

    def field(self, job: str, name: str) -> str:
        """One field of `scontrol show job`, empty when Slurm does not know the job."""
        said = self.run("scontrol", "-o", "show", "job", job, check=False)
        return next((word.split("=", 1)[1] for word in said.split() if word.startswith(f"{name}=")), "")

    def daemon(self, name: str) -> Daemon:
        return self.bed.daemons[f"{self.name}/{name}"]

    def pause(self, name: str) -> None:
        self.daemon(name).signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.daemon(name).signal(signal.SIGCONT)

    def kill(self, name: str) -> None:
        daemon = self.daemon(name)
        Process(daemon.pid, daemon.started).kill()

    def stop(self, name: str) -> None:
        """An orderly end."""
        daemon = self.daemon(name)
        daemon.signal(signal.SIGTERM)
        daemon.signal(signal.SIGCONT)
        until(lambda: not daemon.is_alive, STOP_S, f"{self.name}/{name} ends after SIGTERM")

    def restart(self, name: str) -> None:
        """Start it again, if it is not running, with the words of the first time."""
        daemon = self.daemon(name)
        daemon.signal(signal.SIGCONT)
        self.bed.run_daemon(f"{self.name}/{name}", daemon.argv, Path(daemon.log_file), **daemon.env)

    def heal_daemons(self) -> None:
        """Every daemon runs and answers."""
        for name in [name for name in self.bed.daemons if name.startswith(f"{self.name}/")]:
            self.restart(name.split("/", 1)[1])
        until(lambda: self.run("sinfo", "-h", check=False), START_S, f"slurmctld of {self.name} answers")

    def heal(self) -> None:
        """Every daemon runs, every node is up, no job is left, and the partitions are open."""
        self.heal_daemons()
        for partition in slurm_conf.PARTITIONS:
            self.run("scontrol", "update", f"PartitionName={partition}", "State=UP", check=False)
        self._skip_given_numbers()
        self.cancel_all()
        self.open_nodes()

    def reconfigure(self) -> None:
        """The controller and its nodes read their conf again, and the cluster is as after `heal`.

        A controller that does so goes back to the next number that it has saved, as if it had been killed.
        """
        self.heal_daemons()
        self.run("scontrol", "reconfigure")
        self.heal()

    def _skip_given_numbers(self) -> None:
        """A controller that was killed gives its last numbers again, and drains a node that refuses one it still has.

        Its log outlives it, and names every number that it ever gave.
        """
        highest = highest_number(self.folder / "log" / "slurmctld.log")
        for _ in range(NUMBERS_MAX):
            said = self.run("sbatch", "--parsable", "--hold", "-o", "/dev/null", "--wrap", "true", check=False).strip()
            if said.isdecimal() and int(said) > highest:
                return
        raise AssertionError(f"the controller of {self.name} gives {said}, and gave {highest} before")

    def last_words(self) -> str:
        """Why nodes are closed, and the ends of the daemons' logs: for the report of a test that failed."""
        nodes = self.run("sinfo", "-N", "-o", "%N %T %E", check=False, timeout_s=STOP_S)
        return "\n".join([nodes, *ends_of_logs(self.folder / "log")])

    def open_nodes(self) -> None:
        """Every node takes jobs again."""
        self.run("scontrol", "update", f"NodeName={','.join(self.spec.node_names)}", "State=RESUME", check=False)
        self.await_nodes()

    def cancel_all(self) -> None:
        for state in ("PENDING", "RUNNING", "SUSPENDED"):
            self.run("scancel", "-Q", f"--state={state}", check=False)
        until(lambda: not self.run("squeue", "-h", "-o", "%A").strip(), START_S, f"the queue of {self.name} is empty")

    def write(self, ports: Ports) -> None:
        """The cluster's files."""
        slurm_conf.check_names(self.spec, self.folder)
        site = self.site
        for part in ("etc", "run", "log", "state", "key", "bin", "gpu", *(f"spool/{n}" for n in self.spec.node_names)):
            place = self.folder / part
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o700 if part in ("state", "key") else 0o755)
        write(self.folder / "key" / "munge.key", secrets.token_hex(64), mode=0o600)
        write(self.conf, slurm_conf.slurm_conf(self.spec, site, ports))
        write(self.folder / "etc" / "cgroup.conf", slurm_conf.cgroup_conf(site))
        if self.spec.gpus:
            write(self.folder / "etc" / "gres.conf", slurm_conf.gres_conf(self.spec, site))
            for number in range(self.spec.gpus):
                with contextlib.suppress(FileExistsError):
                    (self.folder / "gpu" / f"gpu{number}").symlink_to("/dev/null")
        if self.spec.accounting:
            text = slurm_conf.slurmdbd_conf(self.spec, site, ports, password=self.bed.password)
            write(self.folder / "etc" / "slurmdbd.conf", text, mode=0o600)
        prefix = " ".join([*self._prefix(), ""]).lstrip()
        for program in CLIENTS:
            write(self.bin / program, slurm_conf.client_script(program, site, prefix=prefix), mode=0o755)

    def start_munge(self) -> None:
        here, name = self.folder, f"{self.name}/munged"
        words = [f"--key-file={here}/key/munge.key", f"--socket={here}/run/munge.sock", f"--seed-file={here}/key/seed"]
        words += [f"--pid-file={here}/run/munged.pid", f"--log-file={here}/log/munged.log", "--num-threads=2"]
        force = [] if os.getuid() == 0 else ["--force"]
        self.bed.run_daemon(name, ["munged", "--foreground", *force, *words], here / "log" / "munged.out")
        self.bed.await_daemon(name, str(here / "run" / "munge.sock"))

    def start_accounting(self, ports: Ports) -> None:
        name = f"{self.name}/slurmdbd"
        env = {"SLURM_CONF": str(self.conf), "MYSQL_UNIX_PORT": str(self.bed.folder / "db" / "sock")}
        self.bed.run_daemon(name, [*self._prefix(), "slurmdbd", "-D"], self.folder / "log" / "slurmdbd.out", **env)
        self.bed.await_daemon(name, ("127.0.0.1", ports.database))
        user = self.site.user
        self.run("sacctmgr", "-i", "add", "cluster", self.name)
        self.run("sacctmgr", "-i", "add", "account", "test", f"cluster={self.name}")
        self.run("sacctmgr", "-i", "add", "user", user, "account=test", f"cluster={self.name}", "adminlevel=admin")

    def start_slurm(self) -> None:
        env, log = {"SLURM_CONF": str(self.conf)}, self.folder / "log"
        # -i: there is no state yet, and that is no mistake.
        words = [*self._prefix(), "slurmctld", "-D", "-i"]
        self.bed.run_daemon(f"{self.name}/slurmctld", words, log / "slurmctld.out", **env)
        for node in self.spec.node_names:
            words = [*self._prefix(), "slurmd", "-D", "-N", node]
            self.bed.run_daemon(f"{self.name}/slurmd/{node}", words, log / f"slurmd.{node}.out", **env)

    def await_nodes(self) -> None:
        def ready() -> bool:
            states = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T", check=False).split()
            return sum(state in ("idle", "mixed", "allocated", "completing") for state in states) == self.spec.nodes

        try:
            until(ready, START_S, f"all nodes of {self.name} are up")
        except AssertionError as exc:
            raise StartError(f"{exc}\n{self.daemon('slurmctld').log_tail()}") from None

    def _prefix(self) -> list[str]:
        return [str(IN_ROOT), self.spec.root, str(self.bed.folder)] if self.spec.root else []


def slurm_version(root: str = "") -> tuple[int, int]:
    """The version of the machine's Slurm, or of the one in a root tree."""
    prefix = [str(IN_ROOT), root, "/tmp"] if root else []
    number = run([*prefix, "slurmd", "-V"]).split()[1].split(".")
    return int(number[0]), int(number[1])


def last_words() -> list[tuple[str, str]]:
    """What every cluster of this process says of itself, with its name."""
    return [(f"Slurm {cluster.name}", cluster.last_words()) for bed in RUNNING for cluster in bed.clusters]


@contextlib.contextmanager
def slurm_running(*specs: Spec) -> Iterator[SlurmBed]:
    """Started clusters in a folder of their own; all is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="yslurm-", dir="/tmp"))  # short: see slurm_conf.check_names
    bed = SlurmBed(folder, tuple(replace(spec, hosts=f"{spec.name[0]}{os.getpid()}") for spec in specs))
    RUNNING.append(bed)
    try:
        bed.start()
        yield bed
    finally:
        RUNNING.remove(bed)
        bed.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _ports(spec: Spec) -> Ports:
    return Ports(free_port(), free_port(), tuple(free_port() for _ in range(spec.nodes)))


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.slurm_bed", description="Real Slurm clusters on this machine."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("up", "down", "fault"):
        commands.add_parser(command).add_argument("folder", type=Path)
    commands.choices["up"].add_argument("--cluster", action="append", default=[])
    commands.choices["fault"].add_argument("what", choices=["pause", "resume", "kill", "stop", "start"])
    commands.choices["fault"].add_argument("daemon")
    given = parser.parse_args(words)
    folder = given.folder.resolve()
    if given.command == "up":
        specs = tuple(map(_spec, given.cluster or ["alpha:gpus=2,gpu_type=a100,accounting=1", "beta"]))
        bed = SlurmBed(folder, specs, orphan_signal="clear")
        bed.start()
        print("\n".join(f"{cluster.name}: SLURM_CONF={cluster.conf}" for cluster in bed.clusters))
    elif given.command == "down":
        SlurmBed.load(folder).stop()
        shutil.rmtree(folder)
    else:
        cluster, _, daemon = given.daemon.partition("/")
        action = {"start": "restart"}.get(given.what, given.what)
        getattr(SlurmBed.load(folder)[cluster], action)(daemon)


def _spec(text: str) -> Spec:
    name, _, rest = text.partition(":")
    given = dict(item.split("=", 1) for item in rest.split(",") if item)
    texts = {key: given.pop(key) for key in ("gpu_type", "root") if key in given}
    accounting = given.pop("accounting", "0") == "1"
    return Spec(name, accounting=accounting, **texts, **{key: int(value) for key, value in given.items()})  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[1:])
