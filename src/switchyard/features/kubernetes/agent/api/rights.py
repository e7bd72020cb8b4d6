"""The rights that the agent needs in a cluster, in one table, which the doctor and deploy/kubernetes/ follow. Pure.

A right of a namespace is needed in each namespace of jobs, and is given by a Role there. A right of the cluster is
about objects without a namespace, or about all namespaces at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

REVIEWS_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True, slots=True)
class Right:
    """Verbs on one kind of object. `resource` may name a subresource: `pods/log`.

    `is_required`: without it no job runs; else the purpose says what is missing.
    """

    group: str  # of the API; empty: the core group
    resource: str
    verbs: tuple[str, ...]
    purpose: str
    is_required: bool = True


# Without it, pods have no gate that keeps a second pod of a task from starting.
PATCH_PODS = Right(
    "",
    "pods",
    ("patch",),
    "without it, a command may run twice if the API server is killed while a pod is created",
    is_required=False,
)
NAMESPACE_RIGHTS = (
    Right("batch", "jobs", ("create", "get", "list", "watch", "delete"), "each attempt is a Job"),
    Right("", "pods", ("get", "list", "watch", "delete"), "exit codes and reasons; single tasks are cancelled by pod"),
    PATCH_PODS,
    Right("", "pods/log", ("get",), "the output of jobs"),
    Right("", "events", ("list", "watch"), "why a Job has no pod and why a pod waits"),
    Right("", "services", ("get", "create"), "one Service gives the pods of a gang their names", is_required=False),
    Right("", "resourcequotas", ("list",), "quotes and reasons know the quota", is_required=False),
    Right("", "namespaces", ("get",), "the doctor sees whether the namespace is there", is_required=False),
    Right("", "serviceaccounts", ("get",), "the doctor sees whether the jobs' account is there", is_required=False),
)
# One watch follows the jobs of all namespaces. With one namespace, its Role is enough.
WATCH_RIGHTS = (
    Right("batch", "jobs", ("list", "watch"), "jobs of all namespaces are followed by one watch"),
    Right("", "pods", ("list", "watch"), "and their pods"),
    Right("", "events", ("list", "watch"), "and the warnings about them"),
)
CLUSTER_RIGHTS = (
    Right("", "nodes", ("get", "list", "watch"), "what the cluster has; else give the agent a --graph"),
    Right("", "pods", ("list", "watch"), "what pods of others take of the nodes", is_required=False),
    Right("scheduling.k8s.io", "priorityclasses", ("get",), "the doctor checks priority classes", is_required=False),
)


def rule_of(right: Right) -> dict[str, Any]:
    """The rule of a Role or a ClusterRole that gives the right."""
    return {"apiGroups": [right.group], "resources": [right.resource], "verbs": list(right.verbs)}


def rule_text(right: Right) -> str:
    """The rule on one line of YAML, to be added under `rules:`."""
    verbs = ", ".join(right.verbs)
    return f'- {{apiGroups: ["{right.group}"], resources: ["{right.resource}"], verbs: [{verbs}]}}'


def review_body(right: Right, verb: str, namespace: str) -> dict[str, Any]:
    """The question whether we have one verb of a right. `namespace` empty: in all namespaces, or there is none."""
    resource, _, subresource = right.resource.partition("/")
    attributes = {"verb": verb, "group": right.group, "resource": resource}
    if subresource:
        attributes["subresource"] = subresource
    if namespace:
        attributes["namespace"] = namespace
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }


def missing_part(right: Right, missing: Iterable[str]) -> Right:
    """The right with the missing verbs only."""
    return replace(right, verbs=tuple(missing))
