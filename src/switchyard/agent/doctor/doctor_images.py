"""The doctor's check of the rules for images: whether this machine can follow each of them."""

from __future__ import annotations

from collections.abc import Mapping

from switchyard.agent.doctor.doctor_finding import Finding
from switchyard.agent.site.images import problem_here
from switchyard.agent.site.site import Site


def check_images(site: Site, kind: str | None, environment: Mapping[str, str]) -> list[Finding]:
    """A finding for each rule that cannot be followed, or one that all can. Slurm's nodes are not looked at."""
    if kind != "local" or not site.images:
        return []
    problems = {rule: problem for rule in site.images if (problem := problem_here(rule, environment))}
    if not problems:
        return [Finding("images", True, f"{len(site.images)} rules for images, and this machine can follow them")]
    return [
        Finding("images", False, f"{rule.match}: {problem}", "Install it, or change the rule under `images`.")
        for rule, problem in problems.items()
    ]
