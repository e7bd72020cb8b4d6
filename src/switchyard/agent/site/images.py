"""Which rule of the site file is for a job's image, and which rules the agent reports to the server."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from switchyard.agent.site.discover import host_name
from switchyard.agent.site.site import ImageRule, Site
from switchyard.agent.site.site_gifts import site_offer
from switchyard.errors import PolicyRefused
from switchyard.model.graph import Graph
from switchyard.model.job.image_rules import ImageOffer, ImageRun, first_rule
from switchyard.model.job.job import JobSpec

# Whose jobs run in containers that the runtime keeps apart from its client, so that they must be removed by name.
CONTAINER_PROGRAMS = (ImageRun.PODMAN, ImageRun.DOCKER)
RUNTIMES = (*CONTAINER_PROGRAMS, ImageRun.APPTAINER)
NO_KUBERNETES = "only an agent of a Kubernetes cluster follows `run: kubernetes`"
PATH_DEFAULT = "/usr/local/bin:/usr/bin:/bin"


def rule_of(image: str, site: Site) -> ImageRule:
    """The rule for an image on a machine or on Slurm. Raises PolicyRefused if the site does not run it."""
    rule = first_rule(image, site.images)
    if rule is None:
        raise PolicyRefused(f"No rule of this site is for the image {image}. (`images` in the agent's site file)")
    if rule.run is ImageRun.REFUSE:
        raise PolicyRefused(f"This site refuses the image {image} (rule {rule.match} of `images` in its site file).")
    if rule.run is ImageRun.KUBERNETES:
        raise PolicyRefused(f"The image {image} cannot run here (rule {rule.match} of `images`): {NO_KUBERNETES}.")
    return rule


def image_offers(site: Site, *, find_problem: Callable[[ImageRule], str] = lambda _: "") -> tuple[ImageOffer, ...]:
    """The rules as the server gets them. `find_problem`: why this agent cannot follow a rule; empty: it can."""
    return tuple(ImageOffer(rule.match, rule.run, problem=find_problem(rule)[:256]) for rule in site.images)


def kubernetes_problem(rule: ImageRule) -> str:
    """Why another agent than that of a Kubernetes cluster cannot follow the rule; empty: it may be able to."""
    return NO_KUBERNETES if rule.run is ImageRun.KUBERNETES else ""


def problem_here(rule: ImageRule, environment: Mapping[str, str]) -> str:
    """Why this machine cannot follow the rule; empty: it can."""
    if problem := kubernetes_problem(rule):
        return problem
    if rule.run in RUNTIMES and shutil.which(rule.run.value, path=environment.get("PATH", PATH_DEFAULT)) is None:
        return f"{rule.run.value} is not installed on {host_name()}"
    if rule.path is not None and not Path(rule.path).is_dir():
        return f"there is no folder {rule.path} on {host_name()}"
    return ""


def graph_with_offers(graph: Graph, site: Site, *, find_problem: Callable[[ImageRule], str]) -> Graph:
    """The graph with what the site file says about images, data and secrets."""
    return replace(graph, images=image_offers(site, find_problem=find_problem), site=site_offer(site))


def graph_with_images(graph: Graph, site: Site, environment: Mapping[str, str]) -> Graph:
    """The graph of this machine, with what its site file says about images, data and secrets."""
    return graph_with_offers(graph, site, find_problem=lambda rule: problem_here(rule, environment))


def container_program(spec: JobSpec, site: Site) -> str:
    """The program in whose container the job runs, if the container may outlive its client; else empty."""
    rule = None if spec.image is None else rule_of(spec.image, site)
    return rule.run.value if rule is not None and rule.run in CONTAINER_PROGRAMS else ""


def container_programs(site: Site) -> list[str]:
    """The programs that may have containers of jobs."""
    return sorted({rule.run.value for rule in site.images if rule.run in CONTAINER_PROGRAMS})
