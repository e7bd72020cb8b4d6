"""What the site file gives to one attempt: credentials of stores, and secrets. They are files in the job's folder.

They are in no lease, no journal, no script and no manifest: the agent reads them when it stages the attempt, and they
are gone with the job's folder. `.switchyard/env` is text for a shell; the command of a job reads it and removes it.
Nobody can look at the files in `.switchyard`, and they are never output files.

A shell sets no variable with a hyphen or a dot in its name, and such are the variables of most groups of secrets: a
group is the name of a Kubernetes Secret. So the text puts a program in front of the words of the job's command, which
adds these variables and becomes the command. Where Python is missing, the program is env(1); then the values stand in
the list of processes for a moment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from shlex import quote

from switchyard.agent.loop.need import spec_of
from switchyard.agent.site.site import Site
from switchyard.agent.site.site_data import SiteValue
from switchyard.errors import PolicyRefused
from switchyard.model.cluster.poll import Lease
from switchyard.model.job.site_needs import (
    ODD_VARIABLES,
    SITE_FOLDER,
    SITE_VARIABLES,
    TOKEN_GROUP,
    TOKEN_VARIABLE_PREFIX,
    RoleOffer,
    SecretNeed,
    SecretOffer,
    SiteAsk,
    SiteOffer,
    StoreOffer,
    is_allowed,
    is_below,
    site_refusal,
)
from switchyard.model.job.variable_names import is_shell_name

SECRET_BYTES_MAX = 64 * 2**10
FLYTE_SECRET_PREFIX = "_FSEC_"  # noqa: S105 - the prefix of a variable's name
# Adds the variables in a file to those that it was started with, removes the file, and becomes the command. Python
# itself ignores two signals and may add a variable for its locale: the command gets neither.
ADDING_PROGRAM = """\
import os, signal, sys
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
def pairs(path):
    with open(path, "rb") as file:
        return dict(pair.split(b"=", 1) for pair in file.read().split(b"\\0") if b"=" in pair)
variables, file, command = pairs("/proc/self/environ"), sys.argv[1], sys.argv[2:]
try:
    variables.update(pairs(file))
    os.unlink(file)
except FileNotFoundError:
    pass
try:
    os.execvpe(command[0], command, variables)
except OSError as exc:
    print(f"{command[0]}: {exc.strerror}", file=sys.stderr)
    sys.exit(127 if isinstance(exc, FileNotFoundError) else 126)
"""
# `python3` may be a script that changes the environment, as that of pyenv: the program behind it does not.
ADDING_TEXT = """\
if yard_python=$(python3 -I -S -c 'import sys; print(sys.executable)' 2>/dev/null)
then set -- "$yard_python" -I -S -c {program} {file} "$@"
else rm -f {file}; set -- env -- {pairs} "$@"
fi
"""
GiftPath = tuple[bytes, ...]


def site_offer(site: Site) -> SiteOffer | None:
    """What the server is told of the site file; None: it has nothing for jobs."""
    if site.data.folder is None and not site.data.stores and not site.secrets and not site.role_accounts:
        return None
    return SiteOffer(
        folder=site.data.folder or "",
        stores=tuple(StoreOffer(store.prefix, store.projects) for store in site.data.stores),
        secrets=tuple(SecretOffer(rule.key, rule.group, rule.projects) for rule in site.secrets),
        roles=tuple(RoleOffer(role, account) for role, account in site.role_accounts.items()),
    )


def site_gifts(lease: Lease, site: Site, environment: Mapping[str, str], folder: Path) -> dict[GiftPath, bytes]:
    """The files for one attempt in `folder`, by path. `environment`: the agent's own.

    Raises PolicyRefused if the site file does not give what the job needs, or a value cannot be read.
    """
    needs = spec_of(lease).site
    if needs is None:
        return {}
    if why := site_refusal(SiteAsk(lease.project, needs), site_offer(site)):
        raise PolicyRefused(f"The job cannot run on this cluster: {why}.")
    variables: dict[str, str] = {}
    files: dict[GiftPath, bytes] = {}
    for store in site.data.stores:
        if needs.data and is_below(needs.data, store.prefix) and is_allowed(lease.project, store.projects):
            for name, source in store.variables.items():
                variables[name] = _text(_value(source, environment, f"The variable {name} of {store.prefix}"))
            break
    for need in needs.secrets:
        value = _secret(need, lease.project, site, environment)
        words = [word for word in (need.group, need.version, need.key) if word]
        files[SITE_FOLDER.encode(), b"secrets", *(word.lower().encode() for word in words)] = value
        if not need.as_file:
            variables[FLYTE_SECRET_PREFIX + "_".join(word.upper() for word in words)] = _text(value)
        if need.variable:
            variables[need.variable] = _text(value)
    if needs.secrets:
        variables["FLYTE_SECRETS_DEFAULT_DIR"] = f"{folder}/{SITE_FOLDER}/secrets"
    if any(need.group == TOKEN_GROUP for need in needs.secrets):
        variables["FLYTE_TOKENS_ENV_PREFIX"] = TOKEN_VARIABLE_PREFIX
        variables["FLYTE_TOKENS_PATH_PREFIX"] = f"{folder}/{SITE_FOLDER}/secrets/{TOKEN_GROUP}"
    odd = {name: value for name, value in variables.items() if not is_shell_name(name)}
    lines = "".join(f"export {name}={quote(value)}\n" for name, value in variables.items() if name not in odd)
    if odd:
        pairs = [f"{name}={value}" for name, value in odd.items()]
        files[tuple(ODD_VARIABLES.encode().split(b"/"))] = os.fsencode("\0".join(pairs))
        lines += ADDING_TEXT.format(
            program=quote(ADDING_PROGRAM),
            file=quote(f"{folder}/{ODD_VARIABLES}"),
            pairs=" ".join(map(quote, pairs)),
        )
    files[tuple(SITE_VARIABLES.encode().split(b"/"))] = os.fsencode(lines)
    return files


def _secret(need: SecretNeed, project: str, site: Site, environment: Mapping[str, str]) -> bytes:
    rule = next(
        rule
        for rule in site.secrets
        if (rule.group, rule.key) == (need.group, need.key) and is_allowed(project, rule.projects)
    )
    return _value(rule.source, environment, f"The secret {need.path}")


def _value(source: SiteValue, environment: Mapping[str, str], what: str) -> bytes:
    """The value, without the line's end of its file. No path of the agent is told: users read the words."""
    if source.value is not None:
        return source.value.encode()
    if source.env is not None:
        if source.env not in environment:
            raise PolicyRefused(f"{what} is not in the environment of the agent.")
        return os.fsencode(environment[source.env])
    try:
        with Path(source.file or "").open("rb") as file:
            content = file.read(SECRET_BYTES_MAX + 1)
    except OSError as exc:
        raise PolicyRefused(f"{what} cannot be read by the agent: {exc.strerror}.") from exc
    if len(content) > SECRET_BYTES_MAX:
        raise PolicyRefused(f"{what} has over {SECRET_BYTES_MAX} bytes.")
    return content.removesuffix(b"\n")


def _text(value: bytes) -> str:
    if b"\0" in value:
        raise PolicyRefused("A secret with a NUL character cannot be an environment variable; ask for it as a file.")
    return os.fsdecode(value)
