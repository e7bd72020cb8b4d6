"""For tests of the Slurm backend: settings with short waits, and jobs that leave a trace of each start."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from switchyard.agent.backends import Setting
from switchyard.features.slurm.agent.commands.command_runner import CommandResult, CommandRunner
from switchyard.features.slurm.agent.slurm_site import SlurmSite
from switchyard.model.cluster.poll import Lease
from tests.agent.builders import a_lease
from tests.sites import site_with
from tests.slurm_bed import SlurmCluster
from tests.slurm_conf import CLIENTS


def a_slurm_setting(directory: Path, cluster: SlurmCluster, *, clients: Path | None = None, **more: Any) -> Setting:
    """For a backend of this cluster. `slurm` in `more`: settings of that section; the rest are others of the site."""
    waits = {"timeout_s": 30.0, "poll_s": 0.05, "state_s": 0.05, "settle_s": 1.0, **more.pop("slurm", {})}
    directory.mkdir(parents=True, exist_ok=True)
    return Setting(
        cluster="alpha",
        directory=directory,
        site=site_with(slurm=SlurmSite(bin=str(clients or cluster.bin), **waits), **more),
        is_root_allowed=True,
        agent_environment={"PATH": os.environ["PATH"], "HOME": str(directory)},
    )


def a_job(folder: Path, then: str = "", **spec: Any) -> Lease:
    """Leaves a line in the folder's ledger each time its command begins."""
    return a_lease("sh", "-c", f"echo run >> {folder}/ledger; {then or ':'}", **spec)


def runs(folder: Path) -> int:
    """How often commands of `a_job` began."""
    ledger = folder / "ledger"
    return len(ledger.read_text().split()) if ledger.exists() else 0


@contextmanager
def given_up_soon(program: str = "") -> Iterator[None]:
    """Calls of this program (or of all) that hang are given up after a second. Others have time on a busy machine."""
    usual = CommandRunner.call

    def call(
        runner: CommandRunner, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float | None = None
    ) -> CommandResult:
        return usual(runner, argv, stdin=stdin, timeout_s=1.0 if program in ("", argv[0]) else timeout_s)

    with mock.patch.object(CommandRunner, "call", call):
        yield


class Clients:
    """The clients of a cluster, each of which can be another program; what is in `{real}` is its own."""

    def __init__(self, folder: Path, cluster: SlurmCluster) -> None:
        self.bin, self._cluster = folder / "clients", cluster
        self.bin.mkdir()
        for program in CLIENTS:
            (self.bin / program).symlink_to(cluster.bin / program)

    def be(self, program: str, text: str) -> None:
        draft = self.bin / f"{program}.draft"
        real = self._cluster.bin / program
        draft.write_text(f"#!/bin/sh\necho . >>{self.bin}/{program}.calls\n" + text.replace("{real}", str(real)))
        draft.chmod(0o755)
        draft.replace(self.bin / program)

    def calls(self, program: str) -> int:
        file = self.bin / f"{program}.calls"
        return len(file.read_text().split()) if file.exists() else 0
