"""A Flux instance that is dead or hangs, as the bridge to it shows it: what is told, and what is in doubt."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.agent.backends import Setting, marker_of
from switchyard.errors import Unavailable
from switchyard.features.flux.agent.backend import FluxBackend
from switchyard.features.flux.agent.flux_site import FluxSite
from tests.agent.builders import a_lease
from tests.agent.flux.captures import R
from tests.processes import PATIENCE_S, until
from tests.sites import site_with

CLUSTER = {"resources": {"all": R}, "stats": {"job_states": {}}, "status": {}, "queues": {}, "config": {}}
# A program `flux` whose instance is well, dead or hung, as the file beside it says.
FLUX = """\
#!/bin/sh
greet() {
    case $(cat %(state)s) in
    dead) echo '{"fatal": "no connection to the Flux instance: gone"}'; exit 1 ;;
    hung) exec sleep 600 ;;
    esac
}
greet
echo '{"hello": {"version": "1"}}'
while read -r line; do
    greet
    id=${line#*'"id":'}; id=${id%%%%,*}
    case $line in *'"op":"cluster"'*) result='%(cluster)s' ;; *) result=null ;; esac
    echo '{"id": '"$id"', "result": '"$result"'}'
done
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    file = tmp_path / "state"
    file.write_text("well")
    program = tmp_path / "flux"
    program.write_text(FLUX % {"state": file, "cluster": json.dumps(CLUSTER)})
    program.chmod(0o755)
    return file


@pytest.fixture
def backend(state: Path, tmp_path: Path) -> Iterator[FluxBackend]:
    site = site_with(flux=FluxSite(bin=str(tmp_path), timeout_s=3.0, state_s=0.01))
    setting = Setting(
        cluster="alpha",
        directory=tmp_path / "data",
        site=site,
        is_root_allowed=True,
        agent_environment={"PATH": os.environ["PATH"]},
    )
    setting.directory.mkdir()
    made = FluxBackend(setting)
    yield made
    made.close()


def is_silent(backend: FluxBackend) -> bool:
    """Whether a refresh asks and gets no answer. One that comes too soon after the last asks nothing."""
    try:
        backend.refresh()
    except Unavailable:
        return True
    return False


@pytest.mark.parametrize("how", ["dead", "hung"])
def test_a_silent_instance_is_told_until_it_answers(backend: FluxBackend, state: Path, how: str) -> None:
    backend.refresh()
    assert backend.trouble() is None
    assert backend.state().free_cores == 24
    state.write_text(how)
    until(lambda: is_silent(backend), PATIENCE_S, "a refresh gets no answer")
    trouble = backend.trouble()
    assert trouble is not None
    assert trouble.text.startswith("Flux does not answer: ")
    assert trouble.silent_s is not None
    state.write_text("well")
    until(lambda: not is_silent(backend) and backend.trouble() is None, PATIENCE_S, "it answers again")


def test_a_submit_without_a_connection_is_not_in_doubt(backend: FluxBackend, state: Path) -> None:
    lease = a_lease("true")
    state.write_text("dead")
    until(lambda: is_silent(backend), PATIENCE_S, "the bridge of before ends with a question")
    with pytest.raises(Unavailable):
        backend.submit(lease)
    assert backend.find(marker_of(lease)) is None
    assert backend.held() == []


def test_a_submit_in_doubt_can_be_withdrawn_while_the_instance_is_silent(backend: FluxBackend, state: Path) -> None:
    lease = a_lease("true")
    marker = marker_of(lease)
    state.write_text("hung")
    with pytest.raises(Unavailable):  # it was sent: Flux may have it
        backend.submit(lease)
    with pytest.raises(Unavailable):
        backend.find(marker)
    assert backend.withdraw([marker]) == [marker]
    assert backend.find(marker) is None, "whenever Flux takes it, nothing of it runs"
