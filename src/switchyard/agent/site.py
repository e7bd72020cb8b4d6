"""What a site says of its cluster (`yard agent --config FILE`): how to reach it, what it costs, what it allows."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from switchyard.agent.accounts import AccountSwitch, AllowList
from switchyard.errors import Malformed
from switchyard.model.decode import convert, load_yaml
from switchyard.model.names import Name
from switchyard.model.native_grammars import NAME

FILE_BYTES_MAX = 1024 * 1024
Rate = Annotated[float, Meta(ge=0, le=1e9)]
ShortSeconds = Annotated[float, Meta(gt=0, le=3600)]
LongSeconds = Annotated[float, Meta(gt=0, le=30 * 86_400)]
SlurmAccount = Annotated[str, Meta(max_length=NAME.chars_max, pattern=rf"^({NAME.pattern})?(?!\n)$")]
CommandPrefix = Annotated[str, Meta(max_length=4096)]
AbsolutePath = Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^/[^\u0000-\u001f]*(?!\n)$")]


def runs_over_ssh(prefix: list[str]) -> bool:
    """Whether a shell at the other end splits the words once more; also behind others, as in `timeout 9 ssh login1`."""
    return any(word.rpartition("/")[2] == "ssh" for word in prefix)


class SlurmSite(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How to reach one Slurm, and how patient to be with it."""

    conf: AbsolutePath | None = None  # its slurm.conf; none: the agent's own SLURM_CONF, or Slurm's default
    bin: AbsolutePath | None = None  # the folder of its commands; none: PATH
    prefix: CommandPrefix = ""  # words before every command, e.g. `ssh login1`
    # Where a job's script writes its output and how it ended: a folder that the nodes see under the same path. None:
    # the agent's own data folder. Over ssh: a folder there.
    folder: AbsolutePath | None = None
    # of one command; a paused controller keeps each for its MessageTimeout, usually 10 s
    timeout_s: ShortSeconds = 30.0
    poll_s: ShortSeconds = 1.0  # between two looks at the queue, at least; right after news a quarter of it
    state_s: ShortSeconds = 10.0  # between two looks at the nodes
    # After a submit that may or may not have arrived, and before a job that is nowhere counts as lost: how long the
    # controller must have answered without knowing of it.
    settle_s: ShortSeconds = 10.0
    # A job that began and that the controller does not know any more is lost when the accounts have provably caught up
    # and do not know its end; or, if nothing proves that, after this time.
    accounts_lost_after_s: LongSeconds = 3600.0
    account: SlurmAccount = ""  # for jobs that name none

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.prefix)
        except ValueError as exc:
            raise ValueError(f"prefix: {exc}") from exc
        if runs_over_ssh(words) and self.folder is None:
            raise ValueError("with ssh, say with `folder` where jobs may write their output there")


class ContainmentMode(StrEnum):
    """How the local backend finds every process of a job, to end it."""

    AUTO = "auto"  # by a control group where the agent may make one, and by a look at all processes
    CGROUP = "cgroup"  # the same, but the agent does not start without control groups
    PROCESS = "process"  # by a look at all processes alone


class LocalSite(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How jobs are kept that run as processes of the agent's own machine."""

    containment: ContainmentMode = ContainmentMode.AUTO


class Rates(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an hour costs, in the site's own unit: the sum of the three."""

    node: Rate = 0
    core: Rate = 0
    gpu: Rate = 0


class AccountsSite(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """As whom jobs run: `map` is a file with a line `user: local-account` for each user; `*` stands for every other."""

    map: AbsolutePath
    way: AccountSwitch = AccountSwitch.UID


class Site(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The whole file. `rates` and `queues` go by the cluster's own names; `*` stands for every other."""

    slurm: SlurmSite = SlurmSite()
    local: LocalSite = LocalSite()
    queues: Annotated[dict[Name, Name], Meta(max_length=10_000)] = {}  # our queue: the cluster's partition
    rates: Annotated[dict[str, Rates], Meta(max_length=10_000)] = {}
    accounts: AccountsSite | None = None  # none: every job runs as the agent's own account
    allow: AllowList = AllowList()

    def __post_init__(self) -> None:
        if self.accounts is not None and runs_over_ssh(shlex.split(self.slurm.prefix)):
            raise ValueError("accounts: over ssh jobs run as the account that ssh logs in to; run an agent there")


def read_site(path: Path | None) -> Site:
    if path is None:
        return Site()
    try:
        with path.open("rb") as file:
            body = file.read(FILE_BYTES_MAX + 1)
    except OSError as exc:
        raise Malformed(
            f"Cannot read {path}: {exc.strerror}.", next_step="Give --config a file that is there."
        ) from exc
    if len(body) > FILE_BYTES_MAX:
        raise Malformed(f"{path}: over {FILE_BYTES_MAX} bytes.")
    found = load_yaml(body, where=str(path))
    return convert({} if found is None else found, Site, where=str(path))
