"""What stands in deploy/ fits the programs: an option that is renamed there must be renamed here."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path

from switchyard.agent.command import parser
from switchyard.server.commands.command import _parser

ROOT = Path(__file__).resolve().parents[1]
UNITS = ROOT / "deploy" / "systemd"


def read_unit(name: str) -> configparser.RawConfigParser:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNITS / name, encoding="utf-8")
    return unit


def test_the_unit_of_the_agent_starts_it_with_options_it_has() -> None:
    unit = read_unit("switchyard-agent@.service")
    words = shlex.split(unit["Service"]["ExecStart"].replace("%i", "alpha").replace("${BACKEND}", "slurm"))
    assert Path(words[0]).name == "yard"
    given = parser().parse_args(words[2:])
    assert (words[1], given.cluster, given.backend) == ("agent", "alpha", "slurm")
    assert unit["Service"]["KillMode"] == "process", "or jobs would end with their agent"
    assert unit["Service"]["Delegate"] == "yes", "or the agent could make no control groups for its jobs"
    assert unit["Service"]["UMask"] == "0022", "the agent's own files are private all the same, and jobs have this one"


def test_the_unit_of_the_server_keeps_its_files_from_others() -> None:
    unit = read_unit("switchyard-server.service")
    words = shlex.split(unit["Service"]["ExecStart"])
    given = _parser().parse_args(words[2:])
    assert (Path(words[0]).name, words[1], given.data) == ("yard", "server", "/var/lib/switchyard-server")
    assert (unit["Service"]["StateDirectoryMode"], unit["Service"]["UMask"]) == ("0700", "0077")
    assert unit["Service"]["StateDirectory"] == Path(given.data).name
