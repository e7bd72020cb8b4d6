"""A cluster on bad days: what its load says when watches are cut, and a start while answers are lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from switchyard.features.kubernetes.agent.api.api_errors import ApiUnavailable
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.features.kubernetes.agent.nodes import cluster as cluster_module
from switchyard.features.kubernetes.agent.nodes.cluster import VALUE_CHARS_MAX, KubernetesCluster
from tests.agent.builders import a_graph, a_setting
from tests.agent.kubernetes.api_peer import Answer, ApiPeer, PeerHandler, says
from tests.sites import site_with

REFUSED = says(403, reason="Forbidden", message="no")


def test_the_load_says_why_watches_are_cut_until_they_are_not(tmp_path: Path) -> None:
    peer = ApiPeer(tmp_path, REFUSED)
    api = peer.api()
    try:
        cluster = KubernetesCluster(a_setting(tmp_path), api)
        trouble = ""
        cluster.add_trouble(lambda: trouble)
        assert "watch_cut" not in cluster.load().values
        trouble = "no answer\n" + "x" * 1000
        cut = cluster.load().values["watch_cut"]
        assert isinstance(cut, str)
        assert cut.startswith("no answer")
        assert "\n" not in cut
        assert len(cut) == VALUE_CHARS_MAX
        trouble = ""
        assert "watch_cut" not in cluster.load().values
    finally:
        api.close()
        peer.close()


@pytest.mark.parametrize(
    "lost",
    [PeerHandler.cut, says(500, message="etcd has no leader"), says(429, message="too many requests")],
    ids=["cut", "500", "429"],
)
@pytest.mark.parametrize("lost_at", [0, 1], ids=["nodes", "pods"])
def test_the_first_start_survives_a_lost_answer(tmp_path: Path, lost: Answer, lost_at: int) -> None:
    answers = [REFUSED, REFUSED]
    answers.insert(lost_at, lost)
    peer = ApiPeer(tmp_path, *answers)
    api = peer.api()
    try:
        assert KubernetesCluster(a_setting(tmp_path, a_graph()), api).graph == a_graph()
        assert len(peer.requests) > 2
    finally:
        api.close()
        peer.close()


@pytest.mark.parametrize(("answer", "text"), [(PeerHandler.cut, "get /api/v1/nodes"), (says(401), "credential")])
def test_the_first_start_ends_with_the_reason_if_no_answer_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer, text: str
) -> None:
    monkeypatch.setattr(cluster_module, "FIRST_ANSWER_S", 0.0)
    peer = ApiPeer(tmp_path, answer)
    api = peer.api()
    try:
        with pytest.raises(ApiUnavailable, match=text):
            KubernetesCluster(a_setting(tmp_path, a_graph()), api)
    finally:
        api.close()
        peer.close()


def test_a_start_without_any_right_goes_by_the_graph_of_the_last_one(tmp_path: Path) -> None:
    setting = a_setting(tmp_path)
    (tmp_path / "cluster.json").write_bytes(msgspec.json.encode(a_graph()))
    peer = ApiPeer(tmp_path, REFUSED)
    api = peer.api()
    try:
        cluster = KubernetesCluster(
            replace(setting, site=site_with(kubernetes=KubernetesSite(namespace="physics"))), api
        )
        assert cluster.graph == a_graph()
        assert cluster.load().values["nodes_unknown"] == "no"
    finally:
        api.close()
        peer.close()
