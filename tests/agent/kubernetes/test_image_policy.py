"""Rules for images on Kubernetes, and `run: kubernetes` elsewhere."""

from __future__ import annotations

import pytest

from switchyard.agent.site.images import image_offers, kubernetes_problem, problem_here, rule_of
from switchyard.agent.site.site import ImageRule, Site
from switchyard.errors import PolicyRefused
from switchyard.features.kubernetes.agent.pods.image_policy import kubernetes_image_offers
from switchyard.model.job.image_rules import ImageOffer, ImageRun, image_note, image_refusal

RULE = ImageRule("team/*", ImageRun.KUBERNETES)


def test_without_rules_every_image_runs() -> None:
    offers = kubernetes_image_offers(Site())
    assert offers == (ImageOffer("*", ImageRun.KUBERNETES),)
    assert image_refusal("busybox", offers) == ""
    assert image_note("busybox", offers) == "runs in the image by kubernetes (rule *)"


def test_rules_of_other_runtimes_are_a_problem() -> None:
    offers = kubernetes_image_offers(Site(images=[RULE, ImageRule("*", ImageRun.PODMAN)]))
    assert [bool(offer.problem) for offer in offers] == [False, True]
    assert "write `run: kubernetes`" in image_refusal("busybox", offers)


def test_elsewhere_nobody_follows_such_a_rule() -> None:
    words = "only an agent of a Kubernetes cluster follows `run: kubernetes`"
    site = Site(images=[RULE])
    assert problem_here(RULE, {}) == words
    assert image_offers(site, find_problem=kubernetes_problem)[0].problem == words
    with pytest.raises(PolicyRefused, match=words):
        rule_of("team/tool:1", site)
