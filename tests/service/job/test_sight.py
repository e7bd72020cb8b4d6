"""What a reader may see of jobs, on both databases."""

from __future__ import annotations

import msgspec

from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.job import explanation, jobs, stats
from switchyard.service.lifecycle.visibility import HIDDEN, Visibility
from tests.builders import a_request
from tests.service.rig import Rig


def test_a_viewer_learns_no_hidden_cluster_and_the_owner_does(rig: Rig) -> None:
    rig.cluster("vault", is_private=True)
    rig.cluster("plain")
    ann = rig.user("ann", (Role.SUBMIT, GrantTarget.CLUSTER, "vault"))
    bob = rig.user("bob")
    theirs = rig.submit(a_request(cluster="vault"), actor=ann).id
    open_ = rig.submit(a_request(cluster="plain"), actor=bob).id
    context = rig.context

    def bars(actor: object) -> dict[str, int]:
        found = stats.route_stats(context, actor, 3600)  # type: ignore[arg-type]
        return {bar.name: bar.total for bar in found.by["cluster"]}

    assert bars(ann) == bars(rig.actor(ann.user_id or "")) == {"vault": 1, "plain": 1}
    assert bars(bob) == {HIDDEN: 1, "plain": 1}
    told = msgspec.json.encode(jobs.all_events(context, bob, after=0, limit=100)).decode()
    assert theirs in told
    assert "vault" not in told
    assert "plain" in told
    assert jobs.job_get(context, bob, theirs).cluster is None
    assert jobs.job_get(context, ann, theirs).cluster == "vault"
    assert "vault" not in msgspec.json.encode(explanation.job_explain(context, bob, theirs)).decode()
    assert jobs.job_get(context, bob, open_).cluster == "plain"


def test_names_are_hidden_in_texts_as_whole_words(rig: Rig) -> None:
    rig.cluster("vault", is_private=True)
    bob = rig.user("bob")
    sight = Visibility(rig.context, bob)
    said = "vault: full. vault-2, vaults and (vault). until now vault"
    assert sight.text(said) == f"{HIDDEN}: full. vault-2, vaults and ({HIDDEN}). until now {HIDDEN}"
    assert sight.text(said, is_own=True) == said
