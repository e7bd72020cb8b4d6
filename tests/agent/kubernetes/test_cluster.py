"""What a cluster's load says when watches are cut."""

from __future__ import annotations

from pathlib import Path

from switchyard.agent.backends.kubernetes.cluster import VALUE_CHARS_MAX, KubernetesCluster
from tests.agent.builders import a_setting
from tests.agent.kubernetes.api_peer import ApiPeer, says


def test_the_load_says_why_watches_are_cut_until_they_are_not(tmp_path: Path) -> None:
    peer = ApiPeer(tmp_path, says(403, reason="Forbidden", message="no"))
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
