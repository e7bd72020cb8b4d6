"""`yard agent doctor`: checks everything an agent needs, and says what to do.

Each check is a function of its arguments that returns findings. A batch system gets one small job; nothing else is
changed. Folders that the agent would make are not made: the nearest folder above them that is there is tried, and all
that is written there is removed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import logging
import os
import shutil
import socket
import sqlite3
import ssl
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from switchyard.agent.backends import Backend, Setting
from switchyard.agent.backends.registry import BACKENDS, load_backend
from switchyard.agent.feature import Finding, SmallJob, feature_of
from switchyard.agent.files.folders import FilesFolders, files_folders
from switchyard.agent.files.inputs.folder_writer import FICLONE, NO_CLONE_ERRNOS
from switchyard.agent.files.inputs.room import nearest_folder
from switchyard.agent.journal.journal_rows import check_schema, find_damage
from switchyard.agent.loop.loop import FREE_BYTES_MIN
from switchyard.agent.server import credential as credentials
from switchyard.agent.server.client import URL_DEFAULT, Connection, ServerAddress, parse_server_url
from switchyard.agent.server.credential import AgentCredentials, Credential
from switchyard.agent.site.discover import discover_graph
from switchyard.agent.site.images import problem_here
from switchyard.agent.site.job_accounts import JobAccounts
from switchyard.agent.site.site import Site, read_site
from switchyard.connection import PLAIN_HTTP_VARIABLE, is_plain_http_allowed, refuse_plain_http
from switchyard.errors import EXIT_ERROR, EXIT_OK, YardError
from switchyard.features.doctor.agent.canary import COMMON_PLACE, CanaryResult, run_canary
from switchyard.model.cluster.cluster import Agent
from switchyard.model.jobspec.quantity import parse_duration_s, show_bytes
from switchyard.model.wire.api import Version

CHECK_S_MAX = 5.0  # for one step of the connection to a server
SKEW_S_MAX = 5.0  # a wrong clock affects certificates and logs, not jobs
CERT_DAYS_MIN = 14.0  # enough time to renew a certificate
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
JOIN_ADVICE = "Join: `yard cluster invite NAME`, then `yard agent --token …`."
PREFIX = "yard-doctor-"
FILES_FOLDER_ADVICE = "Name a folder that the agent may write in: `files: {folder: DIR}` in the site's file."
SHARED_ADVICE = (
    "Name a folder that the nodes see under the same path: `files: {folder: DIR}` or `slurm: {folder: DIR}` in the "
    "site's file."
)
NOT_FROM_HERE = "its agent reaches the cluster over ssh, so it gives jobs no files"
CONTENT = b"doctor" * 1000


EXAMPLES = """\
examples:
  yard agent doctor --server https://yard.example --backend local     before the first join
  yard agent doctor --cluster alpha                                   the agent that joined from here
  yard agent doctor --backend slurm --config site.yaml                runs a small job at the cluster
  yard agent doctor --backend flux                                    the same in the Flux instance of FLUX_URI
  yard agent doctor --backend kubernetes --config site.yaml --namespace physics-development
  yard agent doctor --data ./alpha -o json

exit codes:  0 all is well, 1 something is wrong
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="yard agent doctor",
        description="Look at all that an agent needs, and say what is wrong and what to do. A batch system is given "
        "one small job; nothing else is changed.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--server", action="append", metavar="URL", help="default: the one the agent joined, or YARD_URL"
    )
    parser.add_argument("--cluster", metavar="NAME", help="the agent of this cluster, in its usual folder")
    parser.add_argument("--data", type=Path, metavar="DIR", help="the agent's folder")
    parser.add_argument("--backend", metavar="KIND", help=f"what runs the jobs: {', '.join(BACKENDS.names())}")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the site's file, as the agent gets it")
    parser.add_argument(
        "--namespace", action="append", default=[], metavar="NAME", help="of Kubernetes: check this one (repeatable)"
    )
    parser.add_argument("--user", metavar="NAME", help="whose small job it is, where the site maps users to accounts")
    parser.add_argument("--wait", default="60s", metavar="T", help="for the small job's end (default: 60s)")
    parser.add_argument("--ca-file", metavar="FILE", help="certificates to trust instead of the system's")
    parser.add_argument("-o", "--output", choices=("json",), metavar="FORM", help="print as json")
    arguments = parser.parse_args(argv[argv[:1] == ["doctor"] :])
    try:
        wait_s = parse_duration_s(arguments.wait)
    except ValueError as exc:
        parser.error(f"--wait: {exc}")
    logging.getLogger("switchyard").addHandler(logging.NullHandler())  # the findings say what a backend logs
    directory = arguments.data or (credentials.default_data_folder(arguments.cluster) if arguments.cluster else None)
    target = DoctorTarget(
        servers=DoctorServers(
            urls=arguments.server or _known_servers(directory),
            ca_file=arguments.ca_file,
            is_plain_allowed=is_plain_http_allowed(os.environ.get(PLAIN_HTTP_VARIABLE)),
        ),
        directory=directory.absolute() if directory else None,
        backend=arguments.backend,
        environment=dict(os.environ),
        site=read_site(arguments.config),
        cluster=arguments.cluster or "",
        job=DoctorJob(owner=arguments.user, wait_s=wait_s),
        namespaces=arguments.namespace,
    )
    findings = run_checks(target)
    if arguments.output:
        print(json.dumps([msgspec.to_builtins(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            mark = "-" if finding.is_ok is None else "✔" if finding.is_ok else "✘"
            print(f"{mark} {finding.check:<10}  {finding.detail}")
            if finding.advice:
                print(f"{'':<14}{finding.advice}")
    return EXIT_ERROR if any(finding.is_ok is False for finding in findings) else EXIT_OK


def _known_servers(directory: Path | None) -> list[str]:
    with contextlib.suppress(YardError):  # the doctor reports what is wrong with the credential
        credential = credentials.load_credential(directory) if directory else None
        if credential is not None and "YARD_URL" not in os.environ:
            return [credential.server]
    return [os.environ.get("YARD_URL") or URL_DEFAULT]


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorServers:
    urls: Sequence[str]
    ca_file: str | None
    is_plain_allowed: bool = False  # http:// to another machine


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorJob:
    """The small job that proves that jobs run."""

    owner: str | None = None
    wait_s: float = 60.0  # for its end


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorTarget:
    """What to check."""

    servers: DoctorServers
    directory: Path | None
    backend: str | None
    environment: Mapping[str, str]
    site: Site = field(default_factory=Site)
    cluster: str = ""  # if no agent has joined yet
    job: DoctorJob = field(default_factory=DoctorJob)
    namespaces: Sequence[str] = ()  # of Kubernetes, to look at; empty: those that the site names


def run_checks(target: DoctorTarget) -> list[Finding]:
    """Run all checks, in the order of their dependencies."""
    findings: list[Finding] = []
    reached: list[ServerAddress] = []
    for url in target.servers.urls:
        try:
            server = parse_server_url(url)
        except YardError as exc:
            findings.append(Finding("url", False, exc.detail, exc.next_step))
            continue
        way = list(_check_connection(server, target))
        try:
            refuse_plain_http(url, is_plain_allowed=target.servers.is_plain_allowed)
        except YardError as exc:
            way.append(Finding("tls", False, exc.detail, exc.next_step))
        findings += way
        if all(step.is_ok for step in way):  # else the credential is not sent to this server
            reached.append(server)
    findings.append(_proxy(target, is_reached=bool(reached)))
    credential, finding = _load_credential(target.directory)
    agent = None
    if credential is None or target.directory is None:
        findings.append(finding)
    else:
        agent, finding = _credential(credential, target.directory, reached, target.servers.ca_file)
        findings.append(finding)
    if target.directory is not None:
        findings += _folder(target.directory)
    kind = target.backend or (agent.backend if agent else None)
    folders = files_folders(target.site, kind, target.directory, credential.cluster if credential else target.cluster)
    if target.directory is not None:
        findings += feature_of(kind).check_folder(target.directory)
    findings += check_files(target.site, kind, folders)
    findings += check_images(target.site, kind, target.environment)
    cluster = feature_of(kind).check(target.site, target.environment, target.namespaces)
    findings += cluster.findings
    if cluster.is_over:
        return findings
    findings += _backend(target, kind, folders)
    return findings


def _check_connection(server: ServerAddress, target: DoctorTarget) -> Iterator[Finding]:
    """Check name, port, certificate, answer and clock, up to the first failure."""
    try:
        places = {str(info[4][0]) for info in socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)}
    except OSError as exc:
        yield Finding(
            "dns", False, f"{server.host}: {exc.strerror or exc}", "Check the name in --server, and DNS here."
        )
        return
    yield Finding("dns", True, f"{server.host} is {', '.join(sorted(places))}")
    try:
        line = socket.create_connection((server.host, server.port), CHECK_S_MAX)
    except OSError as exc:
        advice = "Is the server running, and does a firewall let this machine out to that port?"
        yield Finding("tcp", False, f"{server.host}:{server.port}: {exc.strerror or exc}", advice)
        return
    with line:
        yield Finding("tcp", True, f"{server.host}:{server.port} takes connections")
        if server.is_tls:
            finding = _tls(line, server, target.servers.ca_file)
            yield finding
            if not finding.is_ok:
                return
    yield from _check_server(server, target.servers.ca_file)


def _tls(line: socket.socket, server: ServerAddress, ca_file: str | None) -> Finding:
    try:
        context = ssl.create_default_context(cafile=ca_file)
        with context.wrap_socket(line, server_hostname=server.host) as tls:
            until_s = ssl.cert_time_to_seconds(str((tls.getpeercert() or {})["notAfter"]))
            kind = tls.version()
    except ssl.SSLCertVerificationError as exc:
        advice = "Give --ca-file the certificate of the authority, or renew the server's certificate."
        return Finding("tls", False, f"the certificate does not hold: {exc.verify_message}", advice)
    except (OSError, KeyError) as exc:
        return Finding("tls", False, f"no TLS at {server.url}: {exc}", "Is it http:// there, or is --ca-file wrong?")
    days = (until_s - time.time()) / 86_400
    detail = f"{kind}, the certificate holds {days:.0f} more days"
    return Finding("tls", days > CERT_DAYS_MIN, detail, "" if days > CERT_DAYS_MIN else "Renew the certificate.")


def _check_server(server: ServerAddress, ca_file: str | None) -> Iterator[Finding]:
    with closing(Connection([server], ca_file=ca_file)) as connection:
        begun = time.time()
        try:
            version = msgspec.json.decode(connection.get("/v1/version", timeout_s=CHECK_S_MAX), type=Version)
        except (YardError, msgspec.DecodeError) as exc:
            yield Finding("server", False, f"{server.url}: {exc}", "Does this URL lead to a Switchyard server?")
            return
        ended = time.time()
    yield Finding("server", True, f"{server.url} is version {version.version}, {(ended - begun) * 1000:.0f} ms away")
    # The server read its clock at some moment in between.
    skew_s = version.now_us / 1_000_000 - (begun + ended) / 2
    is_ok = abs(skew_s) - (ended - begun) / 2 <= SKEW_S_MAX
    how = "behind" if skew_s > 0 else "ahead of"
    detail = f"this clock is {abs(skew_s):.1f} s {how} the server's"
    yield Finding("clock", is_ok, detail, "" if is_ok else "Set the clocks: run an NTP service on both machines.")


def _proxy(target: DoctorTarget, *, is_reached: bool) -> Finding:
    variables = [name for name in target.environment if name.lower() in PROXIES and target.environment[name]]
    if not variables:
        return Finding("proxy", True, "none is set")
    if is_reached:
        return Finding("proxy", True, f"{', '.join(sorted(variables))} set, and not needed: the way is direct")
    advice = "The agent goes to its server directly and uses no proxy: let this machine out to that port."
    return Finding("proxy", False, f"{', '.join(sorted(variables))} set, and no server was reached", advice)


def _load_credential(directory: Path | None) -> tuple[Credential | None, Finding]:
    if directory is None:
        return None, Finding(
            "credential", None, "no agent's folder was given", "Name it: --data DIR or --cluster NAME."
        )
    try:
        credential = credentials.load_credential(directory)
    except YardError as exc:
        return None, Finding("credential", False, exc.detail, exc.next_step)
    return credential, Finding("credential", None, f"no agent has joined from {directory}", JOIN_ADVICE)


def _credential(
    credential: Credential, directory: Path, reached: Sequence[ServerAddress], ca_file: str | None
) -> tuple[Agent | None, Finding]:
    path = directory / credentials.CREDENTIAL_FILE
    if path.stat().st_mode & 0o077:
        return None, Finding("credential", False, f"others may read {path}", f"chmod 600 {path}")
    if not reached:
        return None, Finding("credential", None, f"agent {credential.name} of {credential.cluster}: no server to ask")
    # Only the newest credential, and nothing is written: an agent may be running here.
    with closing(
        Connection(reached, ca_file=ca_file, bearer=AgentCredentials(directory, credential).bearer)
    ) as connection:
        try:
            agent = msgspec.json.decode(connection.get("/v1/agents/self", timeout_s=CHECK_S_MAX), type=Agent)
        except YardError as exc:
            return None, Finding(
                "credential", False, f"agent {credential.name} of {credential.cluster}: {exc.detail}", exc.next_step
            )
        except msgspec.DecodeError as exc:
            return None, Finding("credential", False, f"the answer cannot be read: {exc}", "Compare `yard version`.")
    state = "alive" if agent.is_live else "silent"
    paused = f", paused {agent.reason}".rstrip() if agent.is_paused else ""
    return agent, Finding("credential", True, f"agent {agent.name} of cluster {agent.cluster}, {state}{paused}")


def _folder(directory: Path) -> Iterator[Finding]:
    try:
        usage = shutil.disk_usage(directory)
    except OSError as exc:
        yield Finding("disk", False, f"{directory}: {exc.strerror}", "Give the agent's own folder with --data.")
        return
    detail = f"{show_bytes(usage.free)} of {show_bytes(usage.total)} free in {directory}"
    is_ok = usage.free >= FREE_BYTES_MIN
    advice = f"The agent takes nothing new below {show_bytes(FREE_BYTES_MIN)}: make room."
    yield Finding("disk", is_ok, detail, "" if is_ok else advice)
    journal = directory / "journal.db"
    if not journal.exists():
        yield Finding("journal", None, "there is none yet")
        return
    trouble, live = check_journal(journal)
    if trouble:
        advice = "Stop the agent and start it again: it puts a damaged journal aside and finds its jobs at the backend."
        yield Finding("journal", False, f"{journal}: {trouble}", advice)
    else:
        yield Finding("journal", True, f"whole; {live} attempt{'' if live == 1 else 's'} not settled")


def check_journal(path: Path) -> tuple[str, int]:
    """What is wrong with a journal (empty: nothing), and how many attempts are not settled. Reads only."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=CHECK_S_MAX)) as db:
            problem = find_damage(db)
            check_schema(db)
            return problem, int(db.execute("SELECT count(*) FROM attempts WHERE settled_s IS NULL").fetchone()[0])
    except sqlite3.Error as exc:
        return str(exc), 0


def _backend(target: DoctorTarget, kind: str | None, folders: FilesFolders | None) -> Iterator[Finding]:
    if kind is None:
        yield Finding("backend", None, "not known which", "Name it: --backend KIND.")
        return
    # Inside the agent's folder: the nodes of a batch system may see it, unlike /tmp.
    place = target.directory if target.directory and target.directory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="yard-doctor-", dir=place) as folder:
        try:
            make = load_backend(kind)
            graph = None if make.finds_graph else discover_graph(Path(folder))
            setting = Setting(
                cluster="doctor",
                directory=Path(folder),
                graph=graph,
                site=target.site,
                agent_environment=target.environment,
            )
            with closing(make(setting)) as backend:
                backend.refresh()
                yield _check_backend(kind, backend)
                feature = feature_of(kind)
                if kind != "fake" and feature.has_local_accounts:
                    yield _accounts(target.site, advice=feature.accounts_advice)
                job = feature.small_job(target.site, target.namespaces)
                if isinstance(job, Finding):
                    yield job
                elif job is not None:
                    result = _run_canary(target, backend, place=job)
                    yield Finding("canary", result.is_ok, result.detail, result.advice)
                elif backend.has_queue:
                    yield from _canary(target, backend, folders)
        except (YardError, OSError) as exc:
            advice = exc.next_step if isinstance(exc, YardError) else ""
            yield Finding("backend", False, f"{kind}: {exc}", advice)


def _check_backend(kind: str, backend: Backend) -> Finding:
    graph, state = backend.describe(), backend.state()
    resources = f"nodes {graph.nodes}, cores {graph.cores}, GPUs {graph.gpus}"
    return Finding("backend", True, f"{kind} answers: {resources}; {state.running} running, {state.queued} queued")


def _accounts(site: Site, *, advice: str) -> Finding:
    """Whether users' jobs have separate accounts. Sharing is no fault, but is reported. `advice`: of the backend."""
    sharing = JobAccounts(site, is_root_allowed=False, is_elsewhere=site.is_elsewhere).sharing()
    if sharing is None:
        return Finding("accounts", True, "each user's jobs run under an account of their own")
    return Finding("accounts", None, sharing.detail, advice or sharing.advice)


def _canary(target: DoctorTarget, backend: Backend, folders: FilesFolders | None) -> Iterator[Finding]:
    if target.site.accounts is not None and target.job.owner is None:
        yield Finding("canary", None, "the site maps users to accounts", "Say whose small job it is: --user NAME.")
        return
    is_remote = target.site.is_elsewhere
    with seen_by_nodes(None if is_remote else folders) as marker:
        result = _run_canary(target, backend, marker=marker)
    yield Finding("canary", result.is_ok, result.detail, result.advice)
    if folders is not None and not is_remote:
        yield check_shared(target.site, folders, is_seen=result.is_marker_seen if marker is not None else None)


def _run_canary(
    target: DoctorTarget, backend: Backend, *, marker: Path | None = None, place: SmallJob = COMMON_PLACE
) -> CanaryResult:
    return run_canary(
        backend,
        owner=target.job.owner or "doctor",
        wait_s=target.job.wait_s,
        marker=marker,
        place=place,
        advice=feature_of(backend.kind).canary_advice,
    )


def check_images(site: Site, kind: str | None, environment: Mapping[str, str]) -> list[Finding]:
    """A finding for each rule that cannot be followed, or one that all can. Slurm's nodes are not looked at."""
    if kind != "local" or not site.images:
        return []
    problems = {rule: problem for rule in site.images if (problem := problem_here(rule, environment))}
    if not problems:
        return [Finding("images", True, f"{len(site.images)} rules for images, and this machine can follow them")]
    return [
        Finding("images", False, f"{rule.match}: {problem}", "Install it, or change the rule under `images`.")
        for rule, problem in problems.items()
    ]


def check_files(site: Site, kind: str | None, folders: FilesFolders | None) -> Iterator[Finding]:
    section = site.cluster_section(kind)
    if section is not None and section.is_elsewhere:
        advice = "An agent on a machine that sees the cluster's shared file system can."
        yield Finding("files", None, NOT_FROM_HERE, advice)
        return
    if folders is None:
        yield Finding("files", None, "no agent's folder was given", "Name it: --data DIR or --cluster NAME.")
        return
    try:
        with _trial_folder(folders.cache) as cache, _trial_folder(folders.work) as work:
            way = _try_copy(cache, work)
    except OSError as exc:
        yield Finding("files", False, f"{exc.filename or folders.cache}: {exc.strerror or exc}", FILES_FOLDER_ADVICE)
        return
    yield Finding("files", True, f"jobs with files run below {folders.work}; {way}")
    yield _space(site, folders)


@contextlib.contextmanager
def seen_by_nodes(folders: FilesFolders | None) -> Iterator[Path | None]:
    """A file that a job on a node sees if the jobs' folder is shared; None: it cannot be made."""
    with contextlib.ExitStack() as stack:
        marker = None
        if folders is not None:
            with contextlib.suppress(OSError):
                folder = stack.enter_context(_trial_folder(folders.work))
                folder.chmod(0o755)
                (folder / "marker").write_bytes(CONTENT)
                marker = folder / "marker"
        yield marker


def check_shared(site: Site, folders: FilesFolders, *, is_seen: bool | None) -> Finding:
    """Whether the nodes see the folders of jobs with files. `is_seen`: what the small job said; None: nothing."""
    if is_seen:
        return Finding("shared", True, f"a node sees {folders.work.parent}")
    if is_seen is None or site.accounts is not None:  # the account of the small job may not pass through the folder
        return Finding("shared", None, f"it is not known whether the nodes see {folders.work.parent}", SHARED_ADVICE)
    return Finding("shared", False, f"the node of the small job does not see {folders.work.parent}", SHARED_ADVICE)


@contextlib.contextmanager
def _trial_folder(place: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=nearest_folder(place)) as folder:
        yield Path(folder)


def _try_copy(cache: Path, work: Path) -> str:
    """Give a job's folder a file of the cache in the agent's way, and say how it went."""
    (cache / "content").write_bytes(CONTENT)
    with (cache / "content").open("rb") as source, (work / "content").open("wb") as target:
        try:
            fcntl.ioctl(target.fileno(), FICLONE, source.fileno())
        except OSError as exc:
            if exc.errno not in NO_CLONE_ERRNOS:
                raise
        else:
            return "files of the cache are cloned, without a copy of their bytes"
    if cache.stat().st_dev != work.stat().st_dev:
        return "files of the cache are copied: it is on another file system"
    return "files of the cache are copied: this file system cannot clone them"


def _space(site: Site, folders: FilesFolders) -> Finding:
    """Compare the bound of the cache with the disk. A small disk is no fault: when it is full, the agent removes cached
    files."""
    bound, place = site.files.cache_bytes, nearest_folder(folders.cache)
    free, used = shutil.disk_usage(place).free, _cached_bytes(folders.cache)
    detail = f"{show_bytes(free)} free in {place}, {show_bytes(used)} cached, at most {show_bytes(bound)}"
    if free < FREE_BYTES_MIN:
        return Finding("cache", False, detail, "Make room, or name another folder: `files: {folder: DIR}`.")
    if free + used < bound:
        advice = "The cache can fill this disk. Give it less: `files: {cache: …}` in the site's file."
        return Finding("cache", None, detail, advice)
    return Finding("cache", True, detail)


def _cached_bytes(cache: Path) -> int:
    with contextlib.suppress(OSError):
        return sum(entry.stat().st_blocks * 512 for entry in cache.glob("??/*") if entry.is_file())
    return 0
