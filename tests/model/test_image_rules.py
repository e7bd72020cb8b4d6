"""Rules for images: the first that matches counts, and a refusal names its rule."""

from __future__ import annotations

import msgspec
import pytest

from switchyard.model.graph import Graph
from switchyard.model.graph.attach import attach_subsystems
from switchyard.model.job.image_rules import ImageOffer, ImageRun, first_rule, image_note, image_refusal
from switchyard.route.hints import find_hints
from switchyard.route.router import evaluate
from tests.builders import a_graph, a_member, a_world, an_ask

TEAM = ImageOffer("ghcr.io/team/*", ImageRun.PODMAN)
BROKEN = ImageOffer("quay.io/*", ImageRun.DOCKER, problem="docker is not installed on n1")
EVIL = ImageOffer("*evil*", ImageRun.REFUSE)
HOST = ImageOffer("*", ImageRun.HOST)


@pytest.mark.parametrize(
    ("image", "rules", "match"),
    [
        ("ghcr.io/team/sim:7", (TEAM, HOST), TEAM),
        ("ghcr.io/team/a/b@sha256:0", (TEAM, HOST), TEAM),  # a star matches a slash, too
        ("ghcr.io/teams/sim", (TEAM, HOST), HOST),
        ("GHCR.io/team/sim", (TEAM,), None),  # as written: no rule guesses
        ("ghcr.io/team/evil", (TEAM, EVIL), TEAM),  # the first counts, not the strictest
        ("ghcr.io/team/evil", (EVIL, TEAM), EVIL),
        ("anything", (), None),
        ("a[1]", (ImageOffer("a[[]1]", ImageRun.HOST),), ImageOffer("a[[]1]", ImageRun.HOST)),
    ],
)
def test_the_first_rule_that_matches_counts(
    image: str, rules: tuple[ImageOffer, ...], match: ImageOffer | None
) -> None:
    assert first_rule(image, rules) == match


@pytest.mark.parametrize(
    ("image", "refusal", "note"),
    [
        ("ghcr.io/team/sim", "", "runs in the image by podman (rule ghcr.io/team/*)"),
        ("local/tool", "", "runs on the host, not in the image (rule local/*)"),
        ("an-evil-one", "its site file refuses the image an-evil-one (rule *evil*)", ""),
        ("other", "no rule of its site file is for the image other", ""),
        (
            "quay.io/x",
            "it would run the image quay.io/x by docker (rule quay.io/*), but docker is not installed on n1",
            "runs in the image by docker (rule quay.io/*)",
        ),
    ],
)
def test_a_refusal_names_its_rule(image: str, refusal: str, note: str) -> None:
    offers = (TEAM, EVIL, BROKEN, ImageOffer("local/*", ImageRun.HOST))
    assert (image_refusal(image, offers), image_note(image, offers)) == (refusal, note)


def with_images(*offers: ImageOffer) -> Graph:
    return msgspec.structs.replace(a_graph(), images=offers)


def test_the_router_refuses_by_rules_and_says_what_runs_on_the_host() -> None:
    """Equal machines with other rules are not alike. A cluster that reports no rules is not refused by them."""
    members = [
        a_member("by-podman", graph=with_images(TEAM, HOST)),
        a_member("on-host", graph=with_images(HOST)),
        a_member("none", graph=with_images()),
        a_member("broken", graph=with_images(BROKEN)),
        a_member("silent"),
    ]
    world = a_world(*members)
    said = {verdict.cluster: verdict for verdict in evaluate(an_ask(world, image="ghcr.io/team/sim"), world).verdicts}
    assert {name: (verdict.say.value, verdict.step) for name, verdict in said.items()} == {
        "by-podman": ("yes", "match"),
        "on-host": ("yes", "match"),
        "none": ("no", "image"),
        "broken": ("no", "image"),
        "silent": ("yes", "match"),
    }
    assert "in the image by podman" in said["by-podman"].reason
    assert "on the host, not in the image (rule *)" in said["on-host"].reason
    assert "has not said whether it runs images" in said["silent"].reason
    plain = evaluate(an_ask(world), world)
    assert all(verdict.say.value == "yes" and "image" not in verdict.reason for verdict in plain.verdicts)


def test_no_cluster_runs_the_image() -> None:
    world = a_world(a_member("none", graph=with_images()), a_member("evil", graph=with_images(EVIL)))
    eligibility = evaluate(an_ask(world, image="evil"), world)
    assert eligibility.outcome == "reject"
    assert "evil: its site file refuses the image evil (rule *evil*)" in eligibility.reason
    assert "none: no rule of its site file is for the image evil" in eligibility.reason
    assert "another image, or none (evil, none)" in find_hints(an_ask(world, image="evil"), world)


def test_rules_travel_with_the_graph_and_are_no_part_of_its_shape() -> None:
    graph = with_images(TEAM, EVIL)
    assert msgspec.json.decode(msgspec.json.encode(graph), type=Graph) == graph
    assert graph.signature == a_graph().signature
    assert graph != a_graph()
    system = {"attach": {graph.host_names[0]: [{"type": "system", "kernel": "6.1"}]}}
    assert attach_subsystems(graph, {"system": system}, where="test").images == graph.images
    assert b"images" not in msgspec.json.encode(a_graph())  # what older servers do not know is not sent
