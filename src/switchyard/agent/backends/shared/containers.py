"""Command lines of container runtimes: run a job's command in its image, and remove the container. Pure text.

podman and docker have the same command line. Their client may run as root, so no variable of the job is in the client's
environment. Every account can read the command line, so variables go through a file, and a variable that the file
cannot hold is refused. apptainer runs under the job's account; there the variables are in its environment under another
name. It would let a shell evaluate their values (`--no-eval`), and it takes HOME only as an option (`--home`, which
also mounts the folder).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from shlex import quote

from switchyard.agent.site.site import ContainerGpus, ContainersSite
from switchyard.errors import PolicyRefused

# NAME[:TAG][@DIGEST] in a registry or in the runtime's own store.
IMAGE_REFERENCE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]{1,5}(?=/))?(/[A-Za-z0-9][A-Za-z0-9._-]*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?\Z"
)
# Other sources of images that podman knows: `dir:NAME` would be a folder of the host.
TRANSPORTS = frozenset(
    {
        *("atomic", "containers-storage", "dir", "docker", "docker-archive", "docker-daemon", "oci", "oci-archive"),
        *("ostree", "sif", "tarball"),
    }
)
APPTAINER_SOURCE = re.compile(r"(/|oci:/|(docker|oras|library|shub|https?)://)")
APPTAINER_PREFIX = "APPTAINERENV_"
# What a file of variables can hold: names without blanks, and values of one line. podman reads lines of up to 64 KiB.
FILE_NAME = re.compile(r"[^\s#=\ufeff][^\s=]*\Z")
FILE_LINE_BYTES_MAX = 60_000
# Inspected after the end: when the container began, how it ended, and whether it ran out of memory.
INSPECT_FORMAT = "{{.State.StartedAt}}|{{.State.ExitCode}}|{{.State.OOMKilled}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAccount:
    """The account that a container runs under."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    is_mapped: bool = False  # the account is not the agent's: root in the image must not be root of the host
    is_rootless: bool = False  # the runtime's client does not run as root


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLimits:
    """What a container may use. 0: no limit."""

    cpus: float = 0
    memory_bytes: int = 0
    gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFolders:
    """The folders of a container's job."""

    home: str  # on the host, mounted under the same path
    workdir: str
    mounts: Mapping[str, str] = field(default_factory=dict)  # a path in the container → a folder in `home`


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerJob:
    """What a runtime must know of one attempt."""

    name: str  # of the container: the attempt's marker
    image: str
    command: tuple[str, ...]
    folders: ContainerFolders
    account: ContainerAccount
    limits: ContainerLimits = field(default_factory=ContainerLimits)
    variables_file: str = ""  # everybody reads the command line, so variables are in a file


def container_command(program: str, job: ContainerJob, site: ContainersSite) -> list[str]:
    """The command line of podman or docker, without `mounts`. Raises PolicyRefused for a job that it cannot run.

    The supervisor mounts `mounts` and adds them after the second word, since links could be on the way (job_mounts.py).
    """
    source = image_source(program, job.image)
    if ":" in job.folders.home:
        raise PolicyRefused(f"{program} cannot mount the job's folder {job.folders.home}: it has a colon in its name.")
    words = [program, "run", "--name", job.name, "--user", f"{job.account.uid}:{job.account.gid}"]
    for group in job.account.groups:
        words += ["--group-add", str(group)]
    if program == "podman" and job.account.is_rootless:
        words += ["--userns", "keep-id"]
    if job.account.is_mapped:
        words += ["--cap-drop", "all", "--security-opt", "no-new-privileges"]
    words += ["--workdir", job.folders.workdir, "--volume", f"{job.folders.home}:{job.folders.home}:rw"]
    words += site_options(program, site, gpus=job.limits.gpus)
    if job.limits.memory_bytes:
        words += ["--memory", f"{job.limits.memory_bytes}b"]
    if job.limits.cpus:
        words += ["--cpus", f"{job.limits.cpus:g}"]
    if job.variables_file:
        words += ["--env-file", job.variables_file]
    # The job's command replaces the entry point of the image, so that it means the same on every cluster.
    return [*words, "--entrypoint", job.command[0], source, *job.command[1:]]


def apptainer_command(job: ContainerJob, site: ContainersSite) -> list[str]:
    """The command line of apptainer, which runs under the job's account."""
    source = image_source("apptainer", job.image)
    if ":" in job.folders.home:
        raise PolicyRefused(f"apptainer cannot mount the job's folder {job.folders.home}: it has a colon in its name.")
    place = ["--pwd", job.folders.workdir, "--home", job.folders.home]
    place += [
        word
        for path, inner in job.folders.mounts.items()
        for word in ("--bind", f"{job.folders.home}/{inner}:{path}:rw")
    ]
    return ["apptainer", "exec", *place, *site_options("apptainer", site, gpus=job.limits.gpus), source, *job.command]


def image_source(program: str, image: str) -> str:
    """The image as the runtime takes it. Raises PolicyRefused for a form that it does not take here."""
    is_reference = bool(IMAGE_REFERENCE.match(image)) and image.partition(":")[0] not in TRANSPORTS
    if program != "apptainer":
        if not is_reference:
            raise PolicyRefused(f"{program} runs images of the form NAME[:TAG][@DIGEST] here, and {image} is none.")
        return image
    if is_reference:
        return f"docker://{image}"
    if not APPTAINER_SOURCE.match(image):
        raise PolicyRefused(
            f"apptainer runs NAME[:TAG], a path of a file, oci:/PATH or docker://NAME here, and {image} is none."
        )
    return image


def site_options(program: str, site: ContainersSite, *, gpus: int) -> list[str]:
    """The options that are the same for all jobs of a site. Raises PolicyRefused if a job asks for GPUs in vain."""
    if gpus and site.gpus is None:
        raise PolicyRefused("It asks for GPUs, and containers of this site get none (`containers: {gpus: …}`).")
    if program == "apptainer":
        words = ["--cleanenv", "--no-eval"]
        words += [word for mount in site.mounts for word in ("--bind", _mount_words(mount))]
        return [*words, *(["--nv" if site.gpus is ContainerGpus.NVIDIA else "--rocm"] if gpus else [])]
    # The runtime keeps no output, and a forced removal kills at once: the job had its grace period before. SELinux
    # would hide mounted folders.
    words = ["--log-driver", "none", "--stop-timeout", "0", "--security-opt", "label=disable"]
    words += ["--pull", site.pull.value]
    words += [word for mount in site.mounts for word in ("--volume", _mount_words(mount))]
    return [*words, *(_gpu_options(program, site) if gpus else [])]


def apptainer_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The job's variables, under the names by which apptainer passes them on."""
    return {f"{APPTAINER_PREFIX}{name}": value for name, value in variables.items() if name != "HOME"}


def removal_command(program: str, name: str) -> list[str]:
    """A command that prints how the container ended, and removes it. It succeeds if no container is left."""
    script = (
        f"command -v {program} >/dev/null 2>&1 || exit 0\n"
        f"{program} container inspect --format {quote(INSPECT_FORMAT)} {quote(name)} 2>/dev/null\n"
        f"{program} rm --force --volumes {quote(name)} >/dev/null && exit 0\n"
        # A daemon that does not answer proves nothing: only its word counts that there is no such container.
        f"{program} container inspect {quote(name)} 2>&1 >/dev/null | grep -qi 'no such'\n"
    )
    return ["/bin/sh", "-c", script]


def variables_text(program: str, variables: Mapping[str, str]) -> bytes:
    """The content of the file of variables. Raises PolicyRefused for a variable that the file cannot hold."""
    lines = []
    for name, value in variables.items():
        line = f"{name}={value}\n".encode("utf-8", "surrogateescape")
        if why := _line_problem(name, value, len(line)):
            raise PolicyRefused(
                f"{program} reads a container's variables from a file here, so that nobody sees them in the list of "
                f"processes. The file cannot hold the variable {name[:80]!r}: {why}.",
                next_step="Send the value as a file of the job, or encode it in one line, such as by base64.",
            )
        lines.append(line)
    return b"".join(lines)


def _line_problem(name: str, value: str, line_bytes: int) -> str:
    if not FILE_NAME.match(name):
        return "its name has a blank, or begins with #"
    if "\n" in value or "\r" in value:
        return "its value has several lines"
    if line_bytes > FILE_LINE_BYTES_MAX:
        return f"it has {line_bytes} bytes, and a line of the file at most {FILE_LINE_BYTES_MAX}"
    return ""


def _mount_words(mount: str) -> str:
    """`/data` and `/data:ro` are mounted under their own path."""
    source, _, remainder = mount.partition(":")
    return mount if remainder.startswith("/") else f"{source}:{source}:{remainder or 'rw'}"


def _gpu_options(program: str, site: ContainersSite) -> list[str]:
    if site.gpus is ContainerGpus.AMD:
        return ["--device", "/dev/kfd", "--device", "/dev/dri"]
    return ["--gpus", "all"] if program == "docker" else ["--device", "nvidia.com/gpu=all"]
