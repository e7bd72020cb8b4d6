"""Which image a job's container has, and which images the site runs. Pure."""

from __future__ import annotations

from switchyard.agent.site.images import image_offers
from switchyard.agent.site.site import ImageRule, Site
from switchyard.errors import PolicyRefused
from switchyard.features.kubernetes.agent.kubernetes_site import kubernetes_of
from switchyard.model.job.image_rules import ImageOffer, ImageRun, image_refusal
from switchyard.model.job.job import JobSpec

EVERY_IMAGE = ImageRule("*", ImageRun.KUBERNETES)
NOT_HERE = "Kubernetes runs images by its own runtime: write `run: kubernetes`, or `run: refuse`"


def image_of(spec: JobSpec, site: Site) -> str:
    """The job's image, or the site's default. Raises PolicyRefused if there is none, or the site refuses it."""
    image = spec.image or kubernetes_of(site).image
    if not image:
        raise PolicyRefused(
            "It names no image, and jobs on Kubernetes run in one.",
            next_step="Submit it with `--image IMAGE`, or set `kubernetes: {image: …}` in the agent's site file.",
        )
    if spec.image and (why := image_refusal(image, kubernetes_image_offers(site))):
        raise PolicyRefused(f"This cluster does not run its image: {why}.")
    return image


def rule_problem(rule: ImageRule) -> str:
    """Why Kubernetes cannot follow a rule of the site file; empty: it can."""
    return "" if rule.run in (ImageRun.KUBERNETES, ImageRun.REFUSE) else NOT_HERE


def kubernetes_image_offers(site: Site) -> tuple[ImageOffer, ...]:
    """The rules as the server gets them. Without rules, every image runs."""
    if not site.images:
        return (ImageOffer(EVERY_IMAGE.match, EVERY_IMAGE.run),)
    return image_offers(site, find_problem=rule_problem)
