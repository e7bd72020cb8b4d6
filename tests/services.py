"""Real services for tests, as plain processes: PostgreSQL, PgBouncer, Redis, libfaketime; where Chromium is.

Slurm is in slurm_bed.py, Kubernetes in kube_bed.py, an S3 server in s3_service.py.

Loopback only, a private port, all data in one folder, stopped by pid. What is missing is named, never skipped:
`python -m tests.services` prints the Debian packages to install, and nothing when all is there; with the argument
`kubernetes` those that only the tests on a Kubernetes cluster need.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.processes import PATIENCE_S, children_of, free_port, spawn, until

VERSION_MIN = 13  # the oldest PostgreSQL that still gets fixes near this project's first release
START_S = PATIENCE_S
STOP_S = PATIENCE_S / 2
STARTS_MAX = 3  # another process may take the port between our look and the start
LOG_LINES = 30
# What PostgreSQL does without being asked: looks every 200 ms, checkpoints, words for replicas.
RESTING = (
    *("bgwriter_lru_maxpages=0", "bgwriter_delay=10s", "wal_writer_delay=10s", "checkpoint_timeout=1h"),
    *("wal_level=minimal", "max_wal_senders=0", "max_parallel_workers=0", "max_logical_replication_workers=0"),
)
WANTED = {
    "postgresql": "PostgreSQL 13 or newer",
    "pgbouncer": "PgBouncer",
    "faketime": "libfaketime",
    "redis-server": "Redis",
    "podman": "podman",
    "runc": "runc",
    "busybox-static": "A busybox that needs no library",
    "chromium-headless-shell": "Chromium",
}
BUILT = {"versitygw": "The S3 server versitygw"}  # by a script of ours: no Debian package has it
# Debian package -> one of its programs; tests/slurm_bed.py starts them.
SLURM_PROGRAMS = {
    "munge": "munged",
    "slurm-client": "sbatch",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "mariadb-server": "mariadbd",
    "sudo": "sudo",
}
SLURM_PLUGINS = {
    "slurm-wlm-basic-plugins": "select_cons_tres.so",
    "slurm-wlm-mysql-plugin": "accounting_storage_mysql.so",
}
# Debian package -> one of its programs; tests/kube_bed.py starts them.
KUBERNETES_PROGRAMS = {
    "etcd-server": "etcd",
    "containerd": "containerd",
    "runc": "runc",
    "openssl": "openssl",
    "util-linux": "unshare",
}
NETWORK_PLUGIN_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")  # Debian's, and others'
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # daemons are not on everyone's PATH


class MissingServiceError(Exception):
    """A program that the tests need is not installed."""

    def __init__(self, package: str) -> None:
        self.package = package
        if package in BUILT:
            super().__init__(f"{BUILT[package]} is not installed. Run `make test-install`.")
            return
        super().__init__(
            f"{WANTED[package]} is not installed. Run `make test-install` as root, or install the Debian package "
            f"{package} (elsewhere: the package of that program)."
        )


class Postgres:
    """One PostgreSQL server. `durable=False`: a machine's power cut may lose data, kill() still loses nothing."""

    def __init__(self, folder: Path, *, durable: bool = False, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._env = env or {}
        self.port = 0
        self._durable = durable
        self._programs = need_postgres()
        self._password = secrets.token_hex(12)
        self._data = folder / "data"
        self._log_file = folder / "postgres.log"
        self._popen: subprocess.Popen[bytes] | None = None
        self._databases = 0

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        assert self._popen is not None, "PostgreSQL was never started"
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def create_database(self, *, copy_of: str = "template1") -> str:
        """A new database, which is empty unless it is the copy of another one; its URL."""
        self._databases += 1
        name = f"test_{self._databases}"
        self._run_sql(f'CREATE DATABASE "{name}" TEMPLATE "{copy_of}"')
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Remove a database of `create_database`, and end whoever is still connected to it."""
        self._run_sql(f'DROP DATABASE IF EXISTS "{url.rsplit("/", 1)[1]}" WITH (FORCE)')

    def start(self) -> None:
        """Start, on the same port and data as before if there was a before; returns when it takes connections."""
        assert not self.is_running, "PostgreSQL is running already"
        if not (self._data / "PG_VERSION").exists():
            self._init()
        for _ in range(STARTS_MAX):
            self.port = self.port or free_port()
            if self._try_start():
                return
            if "could not bind" not in self._log():
                break
            self.port = 0
        raise AssertionError(f"PostgreSQL did not start:\n{self._log_tail()}")

    def stop(self) -> None:
        """An orderly end: clients are cut off, everything is on disk."""
        if self.is_running:
            self.resume()  # in case it was paused
            os.kill(self.pid, signal.SIGINT)  # "fast"; SIGTERM would wait for the clients to leave
            self._wait_gone("SIGINT")

    def kill(self) -> None:
        """End it and its backends in an instant, as a crash of the machine would; start() then recovers."""
        if not self.is_running:
            return
        # Each backend is in a session of its own, so they are found by parent, and before the parent is gone.
        # One that survived would hold the shared memory, and the next start would refuse.
        backends = children_of(self.pid)
        os.kill(self.pid, signal.SIGKILL)
        for backend in backends:
            backend.kill()
        self._wait_gone("SIGKILL")
        with contextlib.suppress(FileNotFoundError):
            (self._data / "postmaster.pid").unlink()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Hang: connections stay open, nothing answers."""
        for pid in self._all_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self._all_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _all_pids(self) -> list[int]:
        return [self.pid, *(child.pid for child in children_of(self.pid))]

    def _init(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        secret = self.folder / "password"
        secret.write_text(self._password, encoding="utf-8")
        for path in (self.folder, secret):
            self._give(path)
        # The C locale is everywhere, and sorts by bytes, as SQLite does.
        options = [
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C",
            "-A",
            "md5",  # SCRAM takes 3 ms of a core more for each login
            f"--pwfile={secret}",
            "--no-sync",
        ]
        done = subprocess.run(
            ["setpriv", *self._identity(), "--", str(self._programs / "initdb"), "-D", str(self._data), *options],
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            capture_output=True,
            text=True,
            timeout=START_S * 2,
            check=False,
        )
        secret.unlink()
        if done.returncode != 0:
            raise AssertionError(f"initdb failed in {self.folder}:\n{done.stdout}{done.stderr}")

    def _try_start(self) -> bool:
        # Commits still reach the kernel before they are answered, so only the machine's own end could lose them.
        careless = [] if self._durable else ["fsync=off", "full_page_writes=off", "autovacuum=off", *RESTING]
        settings = [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",  # a long folder's name would not fit a socket's
            "max_connections=200",
            "shared_buffers=64MB",
            *careless,
        ]
        options = [word for setting in settings for word in ("-c", setting)]
        # Set by the user that PostgreSQL runs as: libfaketime shares memory with nobody else.
        own_env = ["env", *(f"{name}={value}" for name, value in self._env.items())] if self._env else []
        self._log_file.write_bytes(b"")
        self._popen = spawn(
            [*own_env, str(self._programs / "postgres"), "-D", str(self._data), "-p", str(self.port), *options],
            log_file=self._log_file,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            cwd=Path("/"),
            orphan_signal="INT",
            identity=self._identity(),
        )
        until(lambda: not self.is_running or self._answers(), START_S, f"PostgreSQL answers on port {self.port}")
        return self.is_running

    def _answers(self) -> bool:
        ready = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-t", "2"]
        # The port may be another's if ours lost it: then our process ends, and is_running says so.
        return subprocess.run(ready, check=False, timeout=10).returncode == 0

    def _run_sql(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.url(), autocommit=True, connect_timeout=10) as line:
            line.execute(statement.encode())

    def _wait_gone(self, why: str) -> None:
        assert self._popen is not None
        try:
            self._popen.wait(STOP_S)
        except subprocess.TimeoutExpired:
            if why != "SIGKILL":
                self.kill()
            raise AssertionError(f"PostgreSQL ignored {why} for {STOP_S:g} s:\n{self._log_tail()}") from None

    def _identity(self) -> list[str]:
        """PostgreSQL refuses to run as root."""
        return ["--reuid=postgres", "--regid=postgres", "--init-groups"] if os.getuid() == 0 else []

    def _give(self, path: Path) -> None:
        if os.getuid() == 0:
            shutil.chown(path, "postgres", "postgres")
        path.chmod(0o700 if path.is_dir() else 0o600)

    def _log(self) -> str:
        return self._log_file.read_text(encoding="utf-8", errors="replace")

    def _log_tail(self) -> str:
        return "\n".join(self._log().splitlines()[-LOG_LINES:])


@contextlib.contextmanager
def postgres_running(*, durable: bool = False, env: Mapping[str, str] | None = None) -> Iterator[Postgres]:
    """A started PostgreSQL in a folder of its own; both are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="switchyard-pg-", dir=open_folder()))
    server = Postgres(folder, durable=durable, env=env)
    try:
        server.start()
        yield server
    finally:
        try:
            server.stop()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def need_postgres() -> Path:
    """The folder with PostgreSQL's programs, the newest there is."""
    homes = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr").glob("pgsql-*/bin")]
    if initdb := shutil.which("initdb"):
        homes.append(Path(initdb).resolve().parent)
    versions = {_version(home / "postgres"): home for home in homes if (home / "initdb").exists()}
    newest = max(versions, default=0)
    if newest < VERSION_MIN or (os.getuid() == 0 and not _has_user("postgres")):
        raise MissingServiceError("postgresql")
    return versions[newest]


def need_faketime() -> Path:
    """The library that gives a program another wall clock."""
    for pattern in ("lib/*/faketime", "lib/faketime", "lib64/faketime", "local/lib/faketime"):
        for library in Path("/usr").glob(f"{pattern}/libfaketime.so.1"):
            return library
    raise MissingServiceError("faketime")


def need_redis() -> Path:
    program = shutil.which("redis-server")
    if program is None:
        raise MissingServiceError("redis-server")
    return Path(program)


def need_pgbouncer() -> Path:
    program = shutil.which("pgbouncer", path=SYSTEM_PATH)
    if program is None:
        raise MissingServiceError("pgbouncer")
    return Path(program)


def need_podman() -> Path:
    program = shutil.which("podman", path=SYSTEM_PATH)
    if program is None:
        raise MissingServiceError("podman")
    return Path(program)


def need_runc() -> Path:
    """The runtime that the tests' podman uses: crun refuses machines with both versions of control groups."""
    program = shutil.which("runc", path=SYSTEM_PATH)
    if program is None:
        raise MissingServiceError("runc")
    return Path(program)


def need_busybox() -> Path:
    """The one program in the tests' image."""
    program = Path("/bin/busybox")
    if not program.exists() or b"ld-linux" in program.read_bytes()[:4096]:  # the path of the loader stands first
        raise MissingServiceError("busybox-static")
    return program


def need_chromium() -> Path:
    """The browser that the tests of the dashboard drive."""
    for name in ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"):
        if program := shutil.which(name, path=SYSTEM_PATH):
            return Path(program)
    raise MissingServiceError("chromium-headless-shell")


def need_versitygw() -> Path:
    """The S3 server, which scripts/install-s3-server builds beside the Python that runs the tests."""
    program = shutil.which("versitygw", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', SYSTEM_PATH)}")
    if program is None:
        raise MissingServiceError("versitygw")
    return Path(program)


def slurm_lacking() -> list[str]:
    """The Debian packages of Slurm that are not here."""
    programs = [package for package, name in SLURM_PROGRAMS.items() if not shutil.which(name, path=SYSTEM_PATH)]
    plugins = [
        package for package, name in SLURM_PLUGINS.items() if not any(Path("/usr").glob(f"lib*/**/slurm*/{name}"))
    ]
    return programs + plugins


def kubernetes_lacking() -> list[str]:
    """The Debian packages that are not here of those that a Kubernetes cluster needs. Its own programs are built."""
    lacking = [package for package, name in KUBERNETES_PROGRAMS.items() if not shutil.which(name, path=SYSTEM_PATH)]
    if not any(Path(folder, "ptp").exists() for folder in NETWORK_PLUGIN_FOLDERS):
        lacking.append("containernetworking-plugins")
    try:
        need_busybox()
    except MissingServiceError as exc:
        lacking.append(exc.package)
    return lacking


def _version(program: Path) -> int:
    try:
        said = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return 0
    number = re.search(r"(\d+)", said.stdout)
    return int(number[1]) if number else 0


def _has_user(name: str) -> bool:
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwnam(name))
    return False


def open_folder() -> Path:
    """A folder for temporary files that another user can reach: pytest's own belong to who runs it alone."""
    for folder in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):
        way = [folder, *folder.parents]
        if os.getuid() != 0 or all(step.is_dir() and step.stat().st_mode & stat.S_IXOTH for step in way):
            return folder
    raise AssertionError("no folder for temporary files that the user postgres can enter; set TMPDIR to one")


def missing() -> list[str]:
    """The Debian packages that are not here."""
    lacking: list[str] = []
    needs = (
        *(need_postgres, need_pgbouncer, need_faketime, need_redis),
        *(need_podman, need_runc, need_busybox, need_chromium),
    )
    for need, package in zip(needs, WANTED, strict=True):
        try:
            need()
        except MissingServiceError:
            lacking.append(package)
    return lacking + slurm_lacking()


if __name__ == "__main__":
    print(" ".join(kubernetes_lacking() if sys.argv[1:] == ["kubernetes"] else missing()))
    sys.exit(0)
