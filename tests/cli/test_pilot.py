"""The words that start a pilot."""

from __future__ import annotations

import pytest

from switchyard.errors import BadRequest
from switchyard.features.pilots.cli.pilot import agent_command, launch_command
from switchyard.features.pilots.cli.pilot import main as pilot

AGENT = ["yard", "agent"]


@pytest.mark.parametrize(
    ("backend", "host", "words"),
    [
        ("local", "slurm", AGENT),
        ("flux", "slurm", ["srun", "--mpi=pmi2", "flux", "start", *AGENT]),
        ("flux", "flux", ["flux", "start", *AGENT]),
    ],
)
def test_how_the_agent_comes_to_the_nodes(backend: str, host: str, words: list[str]) -> None:
    assert launch_command(AGENT, backend=backend, host=host) == words


@pytest.mark.parametrize(("time_s", "ends_after"), [(7200, "7190s"), (20, "16s"), (1, "1s")])
def test_the_agent_ends_before_its_job(time_s: int, ends_after: str) -> None:
    words = agent_command(
        program="/opt/yard", server="https://y", ca_file="ca.pem", name="p", backend="local", time_s=time_s
    )
    assert words[words.index("--ends-after") + 1] == ends_after
    assert words[-2:] == ["--ca-file", "ca.pem"]
    assert "--token" not in words, "every user of the node could see it"


def test_jobs_of_a_pilot_end_with_its_agent() -> None:
    local, flux = (
        agent_command(program="yard", server="https://y", ca_file=None, name="p", backend=backend, time_s=60)
        for backend in ("local", "flux")
    )
    assert "--jobs-end-with-agent" in local
    assert "--jobs-end-with-agent" not in flux, "a Flux instance ends its jobs itself"


@pytest.mark.parametrize(
    ("options", "why"),
    [(["--name", "a b"], "is not a name"), (["--nodes", "2", "--backend", "local"], "has one node")],
)
def test_wrong_use(options: list[str], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        pilot(["--cluster", "alpha", "--time", "2h", *options])
