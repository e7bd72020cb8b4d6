"""Run every command of the README, the tutorial, the how-tos and the explanations: one shell per document.

What only a person at a real machine can do stands in SUBSTITUTES, each with a reason. Ports and the database's
address are replaced by free ones. `yard server` and `yard agent` run in the background, as in a terminal of their own.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.clients.document_steps import Step, steps
from tests.flux_bed import FluxBed, FluxSpec
from tests.processes import end_strays, free_port
from tests.programs import isolated_env
from tests.services import Postgres
from tests.slurm_bed import SlurmBed
from tests.warm_programs import flytekit_folder, yard_folder

pytestmark = [pytest.mark.xdist_group("docs"), pytest.mark.timeout(350)]

ROOT = Path(__file__).resolve().parents[3]
FILES = ("README.md", "docs/tutorial.md", "docs/how-to/*.md", "docs/explanation/*.md")
# An explanation may do without commands; a how-to may not.
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in FILES
    for path in ROOT.glob(pattern)
    if path.parent.name != "explanation" or "```console" in path.read_text(encoding="utf-8")
)
ADDRESS = re.compile(r"127\.0\.0\.1:(\d{4,5})")
DATABASE = re.compile(r"postgresql://\S+")
COMMAND_S = 180.0  # a server is up after two seconds on a quiet machine, and was after 93 beside 29 others
STEP = "@@ended"  # printed with the exit code after each command; no document says that

# What is not run as it stands, and what is run in its place.
SUBSTITUTES = [
    (re.compile(r"make install\b"), "true"),  # the tests' own environment is what it makes
    (re.compile(r"export PATH=.*"), "true"),  # and it is in the path already
    (re.compile(r"sudo (systemctl|useradd|cp) .*"), "true"),  # the tests have no service manager, and change no machine
    (re.compile(r"sudo -u postgres .*"), "true"),  # the tests' own PostgreSQL has a user and a database
]
FLYTECTL = shutil.which("flytectl")
if FLYTECTL is None:
    # No package index has it. tests/test_docs.py checks the form of what it reads; flytekit reads the same file.
    SUBSTITUTES.append((re.compile(r"flytectl "), "true"))
KUBERNETES = "--backend kubernetes"  # such a document needs a real cluster
FLUX = "--backend flux"  # and such a one a real instance
SECOND_INSTANCE = "B_URI"  # the variable of documents that need two instances
DOCUMENT_IMAGE = "busybox:1.36"  # of documents; clusters of the tests have another one, and no registry
FLUX_FOLDER = Path(shutil.which("flux") or "/").parent
IN_BACKGROUND = re.compile(r"yard (server|agent) -")


class Shell:
    """One bash for a whole document, so that variables hold from one command to the next."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder = folder
        self._started = 0
        given = {**isolated_env(folder), **env}
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            env={**given, "PATH": f"{yard_folder()}:{given['PATH']}"},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str) -> tuple[int, str]:
        """The exit code, and what was printed."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f"{command}\n\nprintf '\\n{STEP} %s\\n' $?\n")
        self._bash.stdin.flush()
        said: list[str] = []
        for line in self._bash.stdout:
            if line.startswith(STEP):
                return int(line.split()[1]), "".join(said)
            said.append(line)
        raise AssertionError(f"the shell ended: {''.join(said)}")

    def start(self, command: str) -> tuple[int, str]:
        """In the background; returns when it serves."""
        self._started += 1
        log = self._folder / f"background-{self._started}.log"
        self.run(f"{command} > {log} 2>&1 &")
        code, said = self.run(_until(_is_up(command)))
        return code, said + log.read_text(errors="replace")

    def close(self) -> None:
        self._bash.kill()
        self._bash.communicate()


def _is_up(command: str) -> str:
    """How the shell sees that it is there."""
    words = shlex.split(command)
    if words[1] == "server":
        host, _, port = words[words.index("--http") + 1].partition(":")
        scheme = "https" if "--tls-cert" in words else "http"
        return f"curl --insecure --fail --silent {scheme}://{host}:{port}/readyz"
    cluster = words[words.index("--cluster") + 1]
    return f'yard cluster show {cluster} -o json | grep -q \'"health": "up"\''


def _until(condition: str) -> str:
    return f"timeout {COMMAND_S:g} bash -c {shlex.quote(f'until {condition}; do sleep 0.1; done')}"


@contextmanager
def shell(folder: Path, env: Mapping[str, str]) -> Iterator[Shell]:
    opened = Shell(folder, env)
    try:
        yield opened
    finally:
        opened.close()
        end_strays(folder)


def substituted(document: str, database: str) -> str:
    """With free ports, the same one for the same port, and a database that is there."""
    ports = {port: str(free_port()) for port in dict.fromkeys(ADDRESS.findall(document)) if port != "5432"}
    text = DATABASE.sub(database, document)
    return ADDRESS.sub(lambda found: f"127.0.0.1:{ports.get(found[1], found[1])}", text)


def marked(name: str) -> object:
    """A document's name; where it needs a Kubernetes cluster or a Flux instance, with the mark of such tests."""
    text = (ROOT / name).read_text(encoding="utf-8")
    marks = {KUBERNETES: pytest.mark.kubernetes, FLUX: pytest.mark.flux}
    mark = next((mark for backend, mark in marks.items() if _uses(text, backend)), None)
    return pytest.param(name, marks=mark) if mark is not None else name


def _uses(text: str, backend: str) -> bool:
    return any(backend in step.text for step in steps(text))


@pytest.fixture
def kubernetes_env(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of a document that uses a Kubernetes cluster, with the folder `deploy` beside it."""
    cluster = request.getfixturevalue("kubernetes")["alpha"]
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    path = f"{isolated_env(tmp_path)['PATH']}:{cluster.conf.programs}"
    yield {"KUBECONFIG": str(cluster.kubeconfig), "PATH": path}
    cluster.kubectl("delete", "--ignore-not-found", "namespace", "physics-development", "switchyard")
    cluster.kubectl("delete", "--ignore-not-found", "-f", str(ROOT / "deploy/kubernetes/namespaces-cluster-role.yaml"))
    cluster.kubectl("delete", "--ignore-not-found", "-f", str(ROOT / "deploy/kubernetes/nodes-cluster-role.yaml"))


@pytest.mark.parametrize("name", [marked(name) for name in DOCUMENTS])
def test_every_command_of_a_document_works(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    database = ""
    if DATABASE.search(text):
        postgres: Postgres = request.getfixturevalue("postgres")
        database = postgres.create_database()
    env: dict[str, str] = {}
    if "pyflyte" in text:
        env["PATH"] = f"{flytekit_folder()}:{isolated_env(tmp_path)['PATH']}"
    if FLYTECTL is not None:
        env["PATH"] = f"{env.get('PATH') or isolated_env(tmp_path)['PATH']}:{Path(FLYTECTL).parent}"
    if _uses(text, KUBERNETES):
        from tests.kube_image import BUSYBOX_IMAGE

        env |= request.getfixturevalue("kubernetes_env")
        text = text.replace(DOCUMENT_IMAGE, BUSYBOX_IMAGE)
    if _uses(text, FLUX):
        instances: FluxBed = request.getfixturevalue("flux")
        env |= {"FLUX_URI": instances["alpha"].uri, "PATH": f"{isolated_env(tmp_path)['PATH']}:{FLUX_FOLDER}"}
        if SECOND_INSTANCE in text:
            second = instances.instances.get("beta") or instances.start(FluxSpec("beta"))
            env |= {"A_URI": instances["alpha"].uri, SECOND_INSTANCE: second.uri}
    if "--backend slurm" in text:
        slurm: SlurmBed = request.getfixturevalue("slurm")
        env["SLURM_CONF"] = str(slurm["alpha"].conf)
    found = steps(substituted(text, database))
    assert found, f"{name} has no commands"
    with shell(tmp_path, env) as opened:
        for step in found:
            command = next((instead for what, instead in SUBSTITUTES if what.match(step.text)), step.text)
            code, said = opened.start(command) if IN_BACKGROUND.match(command) else opened.run(command)
            assert code == 0, f"{name}:{step.line}: exit code {code}\n$ {step.text}\n{said}"


def test_the_reader_of_steps() -> None:
    page = "```console\n$ a b\nsaid\n$ cat <<X\n> 1\n>\n> X\n```\n```sh\n$ not this\n```\n"
    assert steps(page) == [Step(2, "a b"), Step(4, "cat <<X\n1\n\nX")]
    assert substituted("127.0.0.1:8080 and 127.0.0.1:8080 on postgresql://x@y/z", "sqlite:///q").count("8080") == 0
