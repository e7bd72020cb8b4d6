"""How a script runs a job's image: the words around its command, as shell text. Pure.

The runtime runs under the job's account and within the cluster's job, which limits it. The words are in the shell's
syntax: `$PWD` is the job's folder, which the script has entered.

podman and docker run the container outside of the cluster's job, so the end of the job is not the end of the container:

- SIGTERM reaches the runtime's client, which passes it on. A command that is the first process of its container may
  ignore it. So the script kills the container itself before the cluster kills the script.
- After the client's end the script asks the runtime how the container ended, removes it, and leaves that answer in
  the note `removed`. Without this note, the agent removes the container.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from shlex import quote

from switchyard.agent.backends.shared.containers import APPTAINER_PREFIX, INSPECT_FORMAT, image_source, site_options
from switchyard.agent.site.images import container_program, rule_of
from switchyard.agent.site.site import ContainersSite, ImageRule, Site
from switchyard.model.job.image_rules import ImageRun
from switchyard.model.job.job import JobSpec
from switchyard.model.job.variable_names import is_shell_name

# Variables that would change the runtime's client: they reach the container on the command line.
CLIENT_VARIABLES = frozenset({"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD"})
# The shell, the loader of `env` or the rest of the script would act upon these, or the shell refuses to set them.
SHELL_OWN = re.compile(
    r"(PATH|PWD|OLDPWD|IFS|ENV|PPID|UID|EUID|GROUPS|RANDOM|SRANDOM|SECONDS|LINENO|OPTIND|SHELLOPTS|FUNCNAME|DIRSTACK"
    r"|HISTCMD|PIPESTATUS|POSIXLY_CORRECT|LANG|_|(BASH|EPOCH|LC_|LD_).*)\Z"
)
FOLDER = '"$PWD"'
ENV_SAFE_PREFIX = ("nice", "-n", "0", "--")
REMOVED_NOTE = "removed"  # what the runtime said of the container's end; the container is gone
# A function of the shell: print how the container of this name ended, and remove it. It fails if one may be left.
REMOVE_TEMPLATE = """\
remove() {{
    {program} container inspect --format {form} "$1" 2>/dev/null
    {program} rm --force --volumes "$1" >/dev/null 2>&1 && return
    {program} container inspect "$1" 2>&1 >/dev/null | grep -qi 'no such'
}}"""
# The client in the background, so that the shell gets signals while it waits. A wait that a signal ends says nothing.
CONTAINER_RUN_TEMPLATE = """\
{remove}
told= ended= limiter=
trap 'told=1' HUP INT QUIT USR1 USR2 ALRM XCPU
trap 'told=1 ended=1' TERM
({program_text} 2>&9 9>&-) &
client=$!
wait "$client"
code=$?
while [ "$told" ] && kill -0 "$client" 2>/dev/null
do
    if [ "$ended" ] && [ -z "$limiter" ]
    then
        (trap '' TERM; sleep {grace_s}; exec {program} kill --signal KILL {name}) >/dev/null 2>&1 9>&- &
        limiter=$!
    fi
    told=
    wait "$client"
    code=$?
done
if [ "$told" ]
then
    wait "$client" 2>/dev/null
    again=$?
    [ "$again" = 127 ] || code=$again
fi
trap : HUP INT QUIT USR1 USR2 ALRM TERM XCPU
if [ "$limiter" ]; then kill -KILL "$limiter" 2>/dev/null; fi
container=$(remove {name}) && note {note} "$container"
"""


@dataclass(frozen=True, slots=True)
class ScriptVariable:
    """A variable of the job. `value` is shell text, quoted where needed. `is_computed`: by the script, from its own."""

    name: str
    value: str
    is_computed: bool = False

    def word(self, prefix: str = "") -> str:
        return f"{quote(prefix + self.name + '=')}{self.value}"

    def is_exported(self, prefix: str = "") -> bool:
        """Whether the shell can set it without a change of how the rest of the script runs."""
        name = prefix + self.name
        return is_shell_name(name) and not self.is_computed and not SHELL_OWN.match(name)


@dataclass(frozen=True, slots=True)
class ScriptCommand:
    """`environment` and `command` follow `env --`. `is_contained`: the command sees the files of the image.

    `exported`: variables for the shell to set first, as words of `export`. All accounts of a machine may read the
    words of a program, so what a job may keep to itself is in none. `program`: the runtime, if its container outlives
    its client; `name`: of that container, as shell text.
    """

    exported: str
    environment: str
    command: str
    is_contained: bool = False
    program: str = ""
    name: str = ""

    @property
    def exec_text(self) -> str:
        """Shell text that becomes the command."""
        export = f"export {self.exported}; " if self.exported else ""
        return f"{export}exec env -- {self.environment} {self.command}"

    def run_text(self, grace_s: int) -> str:
        """Shell text that runs a container and sets `code`. `grace_s`: from SIGTERM to the kill of the container."""
        return CONTAINER_RUN_TEMPLATE.format(
            remove=remove_function(self.program),
            program_text=self.exec_text,
            program=self.program,
            name=self.name,
            note=REMOVED_NOTE,
            grace_s=grace_s,
        ).rstrip()


def remove_function(program: str) -> str:
    return REMOVE_TEMPLATE.format(program=program, form=quote(INSPECT_FORMAT))


def run_command(
    spec: JobSpec, variables: Sequence[ScriptVariable], site: Site, *, name: str, is_exec: bool = False
) -> ScriptCommand:
    """How the script runs the job. Raises PolicyRefused as `rule_of` does.

    `name`: of a container, as shell text; `is_exec`: the shell becomes the client, which then removes the container.
    """
    rule = None if spec.image is None else rule_of(spec.image, site)
    if rule is None or rule.run is ImageRun.HOST:
        # env would take a first word with `=` for a variable; nice does not.
        prefix = ENV_SAFE_PREFIX if "=" in spec.command[0] else ()
        return ScriptCommand(*_words(_with_path(variables, rule)), " ".join(map(quote, [*prefix, *spec.command])))
    name_words = f"--rm --name {name}" if is_exec else f"--name {name}"
    command = _image_command(spec, variables, rule, site.containers, name_words=name_words)
    return replace(command, program=container_program(spec, site), name=name)


def _image_command(
    spec: JobSpec, variables: Sequence[ScriptVariable], rule: ImageRule, site: ContainersSite, *, name_words: str
) -> ScriptCommand:
    program, source = rule.run.value, image_source(rule.run.value, spec.image or "")
    options = " ".join(map(quote, site_options(program, site, gpus=spec.resources.asked.gpus)))
    workdir = quote(spec.cwd) if spec.cwd else FOLDER
    mounts = {} if spec.files is None else spec.files.mounts
    option = "--bind" if rule.run is ImageRun.APPTAINER else "--volume"
    options += "".join(f" {option} {FOLDER}/{quote(f'{inner}:{path}:rw')}" for path, inner in mounts.items())
    if rule.run is ImageRun.APPTAINER:
        words = _words([variable for variable in variables if variable.name != "HOME"], APPTAINER_PREFIX)
        place = f"--pwd {workdir} --home {FOLDER}"
        command = " ".join(map(quote, spec.command))
        line = f"apptainer exec {place} {options} {quote(source)} {command}"
        return ScriptCommand(*words, line, is_contained=True)
    passed = " ".join(
        f"--env {variable.word() if variable.name in CLIENT_VARIABLES else quote(variable.name)}"
        for variable in variables
    )
    user = '--user "$(id -u):$(id -g)"'
    if rule.run is ImageRun.PODMAN:
        user += ' $([ "$(id -u)" = 0 ] || echo --userns=keep-id)'
    program_words = f"{program} run {name_words} {user} --workdir {workdir} --volume {FOLDER}:{FOLDER}:rw {options}"
    further = " ".join(map(quote, spec.command[1:]))
    return ScriptCommand(
        *_words([variable for variable in variables if variable.name not in CLIENT_VARIABLES]),
        f"{program_words} {passed} --entrypoint {quote(spec.command[0])} {quote(source)} {further}".rstrip(),
        is_contained=True,
    )


def _with_path(variables: Sequence[ScriptVariable], rule: ImageRule | None) -> list[ScriptVariable]:
    """The folder of the rule goes before PATH, the job's or the node's."""
    if rule is None or rule.path is None:
        return list(variables)
    before = next((variable.value for variable in variables if variable.name == "PATH"), '"$PATH"')
    path = ScriptVariable("PATH", f"{quote(rule.path)}:{before}")
    return [*(variable for variable in variables if variable.name != "PATH"), path]


def _words(variables: Sequence[ScriptVariable], prefix: str = "") -> tuple[str, str]:
    """Words for `export`, and words for `env`."""
    exported = [variable.word(prefix) for variable in variables if variable.is_exported(prefix)]
    others = [variable.word(prefix) for variable in variables if not variable.is_exported(prefix)]
    return " ".join(exported), " ".join(others)
