"""Which images a cluster runs, and how: by a container runtime, on the host, or not at all. Pure values.

The site file has the rules in order; the first rule whose pattern matches counts. An agent reports them with its graph,
so that the router refuses a cluster before a job is sent there.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Protocol, TypeVar

from msgspec import Meta, Struct

from switchyard.model.rules.names import TEXT_PATTERN

RULES_MAX = 1000
ImagePattern = Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"^[^\u0000-\u0020]+(?!\n)$")]
Problem = Annotated[str, Meta(max_length=256, pattern=TEXT_PATTERN)]


class ImageRun(StrEnum):
    """What a cluster does with a job that names an image."""

    PODMAN = "podman"
    DOCKER = "docker"
    APPTAINER = "apptainer"
    KUBERNETES = "kubernetes"  # by the nodes of a Kubernetes cluster
    HOST = "host"  # the command runs on the host, not in the image
    REFUSE = "refuse"


class ImageOffer(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One rule, as an agent reports it. `problem`: why the agent cannot follow it, e.g. a missing runtime."""

    match: ImagePattern
    run: ImageRun
    problem: Problem = ""


# None: the cluster has not said which images it runs. An empty tuple: it runs none.
ImageOffers = Annotated[tuple[ImageOffer, ...], Meta(max_length=RULES_MAX)] | None


class _Rule(Protocol):
    @property
    def match(self) -> str: ...


_AnyRule = TypeVar("_AnyRule", bound=_Rule)


def first_rule(image: str, rules: Sequence[_AnyRule]) -> _AnyRule | None:
    """The first rule whose pattern matches the image as the job names it. `*` matches any characters, also `/`."""
    return next((rule for rule in rules if fnmatchcase(image, rule.match)), None)


def image_refusal(image: str, offers: Sequence[ImageOffer]) -> str:
    """Why a cluster with these rules does not run the image; empty: it does."""
    offer = first_rule(image, offers)
    if offer is None:
        return f"no rule of its site file is for the image {image}"
    if offer.run is ImageRun.REFUSE:
        return f"its site file refuses the image {image} (rule {offer.match})"
    if offer.problem:
        return f"it would run the image {image} by {offer.run.value} (rule {offer.match}), but {offer.problem}"
    return ""


def image_note(image: str, offers: Sequence[ImageOffer]) -> str:
    """How a cluster with these rules runs the image, for people; empty: it does not run it."""
    offer = first_rule(image, offers)
    if offer is None or offer.run is ImageRun.REFUSE:
        return ""
    if offer.run is ImageRun.HOST:
        return f"runs on the host, not in the image (rule {offer.match})"
    return f"runs in the image by {offer.run.value} (rule {offer.match})"
