"""What stands in deploy/ fits the programs: an option that is renamed there must be renamed here."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path

from switchyard.agent.command import parser

UNIT = Path(__file__).resolve().parents[1] / "deploy" / "systemd" / "switchyard-agent@.service"


def test_the_unit_of_the_agent_starts_it_with_options_it_has() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT, encoding="utf-8")
    words = shlex.split(unit["Service"]["ExecStart"].replace("%i", "alpha").replace("${BACKEND}", "slurm"))
    assert Path(words[0]).name == "yard"
    given = parser().parse_args(words[2:])
    assert (words[1], given.cluster, given.backend) == ("agent", "alpha", "slurm")
    assert unit["Service"]["KillMode"] == "process", "or jobs would end with their agent"
    assert unit["Service"]["Delegate"] == "yes", "or the agent could make no control groups for its jobs"
