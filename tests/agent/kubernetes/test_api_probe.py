"""Whether the API answers, as a probe finds out: an API that hangs or cannot reach its storage does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from switchyard.agent.backends import marker_of
from switchyard.agent.journal.journal import Journal
from switchyard.agent.loop.batch_silence import BatchSilence
from switchyard.agent.loop.runner import Runner
from switchyard.agent.site.site import OutageSite
from switchyard.features.kubernetes.agent.api import api_probe
from switchyard.features.kubernetes.agent.api.api_probe import ApiProbe
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import a_lease
from tests.agent.kubernetes.api_peer import Answer, ApiPeer, PeerHandler, says
from tests.agent.kubernetes.job_api import JobApi
from tests.processes import PATIENCE_S, until

Begin = Callable[..., tuple[ApiPeer, ApiProbe]]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    monkeypatch.setattr(api_probe, "PROBE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(api_probe, "PROBE_EVERY_S", 0.05)
    made: list[tuple[ApiPeer, ApiProbe]] = []

    def start(*answers: Answer) -> tuple[ApiPeer, ApiProbe]:
        peer = ApiPeer(tmp_path, *answers)
        probe = ApiProbe(peer.api(), namespace="lab")
        made.append((peer, probe))
        probe.start()
        return peer, probe

    yield start
    for peer, probe in made:
        probe.stop()
        peer.close()


def test_a_refusal_is_an_answer(begin: Begin) -> None:
    peer, probe = begin(says(403, reason="Forbidden", message="no"))
    until(lambda: len(peer.requests) > 2, PATIENCE_S, "it was asked again")
    assert probe.contact.trouble() is None
    assert peer.requests[0][1].startswith("/apis/batch/v1/namespaces/lab/jobs?limit=1")


def test_an_api_that_hangs_or_fails_does_not_answer(begin: Begin) -> None:
    is_well = threading.Event()

    def hang(_: PeerHandler) -> None:
        is_well.wait(PATIENCE_S)

    def fail_until_well(handler: PeerHandler) -> None:
        says(200, items=[])(handler) if is_well.is_set() else says(503, message="etcd is away")(handler)

    _, probe = begin(hang, fail_until_well)
    until(lambda: probe.contact.trouble(), PATIENCE_S, "the hang is a silence")
    until(lambda: "etcd is away" in str(probe.contact.trouble()), PATIENCE_S, "the failure goes on with it")
    is_well.set()
    until(lambda: probe.contact.trouble() is None, PATIENCE_S, "it answers again")


@pytest.mark.parametrize("how", ["killed", "hung"])
def test_a_backend_whose_api_is_silent_keeps_only_what_may_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A create without an answer is in doubt and stays. What was not sent goes back."""
    monkeypatch.setattr(api_probe, "PROBE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(api_probe, "PROBE_EVERY_S", 0.05)
    doubtful, fresh = a_lease("true"), a_lease("true")
    api = JobApi(tmp_path)
    with closing(api.backend()) as backend:
        journal = Journal(tmp_path / "journal.db")
        silence = BatchSilence(backend.trouble, OutageSite(give_back_after_s=0.001))
        runner = Runner(journal, backend, silence=silence)

        def ends() -> dict[str, ObservedState]:
            runner.run_once(may_start=True)
            return {row.key[0]: row.timed.report.seen for row in journal.queued()}

        api.hung.add(marker_of(doubtful))
        journal.take([doubtful])
        until(lambda: ends() is not None and api.creates, PATIENCE_S, "the create was sent")
        api.is_hung = True
        if how == "killed":
            api.close()
        until(backend.trouble, PATIENCE_S, "the silence is told")
        journal.take([fresh])
        until(lambda: ends().get(fresh.job) is ObservedState.RETURNED, PATIENCE_S, "what was not sent goes back")
        assert ends().get(doubtful.job) is not ObservedState.RETURNED
        if how == "hung":
            api.is_hung = False
            api.go.set()
            until(lambda: backend.trouble() is None, PATIENCE_S, "it answers again")
    api.close()
