"""What pods may do, also the containers and volumes that a job brings. Pure.

A wide path of the site's `patch_paths`, such as /spec/volumes, opens nothing that gives rights over a node or in the
cluster: folders of the host, security contexts, tokens, priority over the pods of others. The site names such a place
itself (/spec/volumes/-/hostPath), or it has `security: privileged`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from switchyard.agent.site.site import Site
from switchyard.errors import PolicyRefused
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite, PodSecurity, kubernetes_of
from switchyard.features.kubernetes.agent.pods.image_policy import kubernetes_image_offers
from switchyard.features.kubernetes.agent.pods.pod_changes import CONTAINER_LISTS, by_name, items_of
from switchyard.model.cluster.pod_part import MAIN_CONTAINER
from switchyard.model.job.image_rules import image_refusal

POD_RIGHTS = (
    *("securityContext", "hostNetwork", "hostPID", "hostIPC", "hostUsers"),
    "resources",
    *("serviceAccountName", "serviceAccount", "automountServiceAccountToken"),
    *("priorityClassName", "priority", "preemptionPolicy", "nodeName", "schedulerName"),
)
# Sources of volumes that Kubernetes' Pod Security Standards allow to every pod (level `restricted`).
COMMON_SOURCES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)
COMMON_PROJECTIONS = frozenset({"configMap", "downwardAPI", "secret"})
CLAIM = "persistentVolumeClaim"
Manifest = dict[str, Any]
Place = tuple[str, ...]


def pod_security(site: KubernetesSite) -> Manifest:
    """By default the image's own user counts, also root: most images expect it."""
    numbers = {"runAsUser": site.run_as_user, "runAsGroup": site.run_as_group, "fsGroup": site.fs_group}
    context: Manifest = {key: number for key, number in numbers.items() if number is not None}
    if site.security is PodSecurity.RESTRICTED:
        context["runAsNonRoot"] = True
    if site.security is not PodSecurity.PRIVILEGED:
        context["seccompProfile"] = {"type": "RuntimeDefault"}
    return context


def container_security(site: KubernetesSite) -> Manifest:
    if site.security is PodSecurity.PRIVILEGED:
        return {}
    context: Manifest = {"allowPrivilegeEscalation": False}
    if site.security is PodSecurity.RESTRICTED:
        context["capabilities"] = {"drop": ["ALL"]}
    return {"securityContext": context}


def check_security(given: Manifest, patched: Manifest, site: Site) -> None:
    """Raise PolicyRefused for an image or a right that the site does not give. `given`: before the job's changes."""
    before, after = given["spec"], patched["spec"]
    _check_images(before, after, site)
    if kubernetes_of(site).security is not PodSecurity.PRIVILEGED:
        for place in _rights(before, after):
            if not any(is_named(path, place) for path in kubernetes_of(site).patch_paths):
                raise PolicyRefused(
                    f"This site does not let jobs set /{'/'.join(place)} of their pods: no path of its `patch_paths` "
                    "names this place, and its `security` is not `privileged`."
                )
    files_volume = kubernetes_of(site).files_volume or {}
    for volume in _added(before, after, "volumes"):
        if CLAIM in volume and CLAIM in files_volume and _claim(volume) == _claim(files_volume):
            raise PolicyRefused("A volume of this job is the one with the files of all jobs.")


def secure_containers(given: Manifest, patched: Manifest, site: KubernetesSite) -> Manifest:
    """The pod template with the site's security for the containers that the job added."""
    secured = dict(patched["spec"])
    for group in CONTAINER_LISTS:
        known = by_name(given["spec"], group)
        if group in secured:
            secured[group] = [
                one if one["name"] in known else _secured(one, container_security(site))
                for one in items_of(secured, group)
            ]
    return {**patched, "spec": secured}


def _secured(container: Manifest, context: Manifest) -> Manifest:
    return {
        **container,
        **{key: {**value, **(container.get(key) or {})} for key, value in context.items()},
    }


def _check_images(before: Manifest, after: Manifest, site: Site) -> None:
    offers = kubernetes_image_offers(site)
    for group in CONTAINER_LISTS:
        known = by_name(before, group)
        for name, container in by_name(after, group).items():
            image = container.get("image")
            if name in known and known[name].get("image") == image:
                continue
            if not isinstance(image, str) or not image:
                raise PolicyRefused(f"The container {name[:80]!r} of this job's pod has no image.")
            if why := image_refusal(image, offers):
                raise PolicyRefused(f"This cluster does not run the image of the container {name[:80]!r}: {why}.")


def _rights(before: Manifest, after: Manifest) -> Iterator[Place]:
    """Places with rights that the job's changes set."""
    for key in POD_RIGHTS:
        if before.get(key) != after.get(key):
            yield "spec", key
    for volume in _added(before, after, "volumes"):
        for source in sorted(volume.keys() - COMMON_SOURCES - {"name"}):
            yield "spec", "volumes", "-", source
        for projection in items_of(volume.get("projected") or {}, "sources"):
            for kind in sorted(projection.keys() - COMMON_PROJECTIONS):
                yield "spec", "volumes", "-", "projected", "sources", "-", kind
    for group in CONTAINER_LISTS:
        known = by_name(before, group)
        for name, container in by_name(after, group).items():
            old = known.get(name, {})
            place = ("spec", group, "0" if name == MAIN_CONTAINER and group == "containers" else "-")
            if old.get("securityContext") != container.get("securityContext"):
                yield *place, "securityContext"
            if any(
                port.get("hostPort") for port in items_of(container, "ports") if port not in (old.get("ports") or ())
            ):
                yield *place, "ports", "-", "hostPort"


def _added(before: Manifest, after: Manifest, group: str) -> list[Manifest]:
    known = by_name(before, group)
    return [item for name, item in by_name(after, group).items() if name not in known]


def is_named(path: str, place: Place) -> bool:
    """Whether a path is for this place or one below it, and not only for one above it."""
    parts = path.split("/")[1:]
    return len(parts) >= len(place) and all(
        part == name or (part == "*" and name != place[-1]) for part, name in zip(parts, place, strict=False)
    )


def _claim(volume: Manifest) -> Any:
    claim = volume[CLAIM]
    return claim.get("claimName") if isinstance(claim, dict) else claim
