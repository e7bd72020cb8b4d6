"""Labels and annotations of Jobs and pods: what the agent sets, and what it takes from users. Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from switchyard.agent.loop.need import spec_of
from switchyard.errors import PolicyRefused
from switchyard.features.kubernetes.agent.kubernetes_names import (
    OWN_PREFIX,
    is_free_key,
    is_label_key,
    is_label_value,
    label_value,
)
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.model.cluster.poll import Lease
from switchyard.model.executions.execution import ExecutionConfig

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGER = "switchyard"
CLUSTER_LABEL = f"{OWN_PREFIX}cluster"  # one watch follows all Jobs and pods of an agent by these two labels
JOB_LABEL = f"{OWN_PREFIX}job"
GANG_LABEL = f"{OWN_PREFIX}gang"
LABELS_ANNOTATION = f"{OWN_PREFIX}labels"  # all labels of the job, also those that Kubernetes refuses
ANNOTATIONS_ANNOTATION = f"{OWN_PREFIX}annotations"  # annotations whose keys Kubernetes refuses
NAME_ANNOTATION, OWNER_ANNOTATION = f"{OWN_PREFIX}name", f"{OWN_PREFIX}owner"
BATCH_PREFIX = "batch.kubernetes.io/"
JOB_NAME_LABEL = f"{BATCH_PREFIX}job-name"  # set by Kubernetes
INDEX_LABEL = f"{BATCH_PREFIX}job-completion-index"  # set by Kubernetes; an annotation in older versions
TRACKING_FINALIZER = f"{BATCH_PREFIX}job-tracking"  # of pods, until their Job has counted them
# Set by Kubernetes under their old names; a Job whose template has others is refused.
OLD_JOB_LABELS = frozenset({"job-name", "controller-uid"})
START_GATE = f"{OWN_PREFIX}start"  # the scheduling gate of pods, which the agent lifts from one pod of each task
STARTED_ANNOTATION = f"{OWN_PREFIX}started"  # of a pod: when the agent lifted its gate
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
ANNOTATIONS_BYTES_MAX = 256 * 1024  # of all annotations of an object, for Kubernetes


def selector(cluster: str) -> str:
    """The label selector of everything that the agent of a cluster made."""
    return f"{MANAGED_BY_LABEL}={MANAGER},{CLUSTER_LABEL}={label_value(cluster)}"


def attempt_labels(lease: Lease, cluster: str) -> dict[str, str]:
    """The labels that name an attempt. No other attempt has the same."""
    return {
        MANAGED_BY_LABEL: MANAGER,
        CLUSTER_LABEL: label_value(cluster),
        JOB_LABEL: lease.job,
        f"{OWN_PREFIX}attempt": str(lease.attempt),
        f"{OWN_PREFIX}fence": str(lease.fence),
    }


def labels_of(lease: Lease, cluster: str, site: KubernetesSite) -> dict[str, str]:
    """Labels of a Job and its pods. Ours win over the user's."""
    rules = spec_of(lease).execution or ExecutionConfig()
    asked = {**(rules.labels or {}), **lease.labels}
    users = {key: text for key, text in asked.items() if is_allowed_key(key, site) and is_label_value(text)}
    return {
        **users,
        **attempt_labels(lease, cluster),
        f"{OWN_PREFIX}owner": label_value(lease.owner),
        f"{OWN_PREFIX}project": label_value(lease.project),
        f"{OWN_PREFIX}domain": label_value(lease.domain),
    }


def annotations_of(lease: Lease, site: KubernetesSite) -> dict[str, str]:
    """Annotations of a Job and its pods. Raises PolicyRefused if Kubernetes does not take so many bytes."""
    spec = spec_of(lease)
    rules = spec.execution or ExecutionConfig()
    asked = rules.annotations or {}
    users = {key: text for key, text in asked.items() if is_allowed_key(key, site)}
    refused = {key: text for key, text in asked.items() if key not in users}
    labels = {**(rules.labels or {}), **lease.labels}
    ours = {
        NAME_ANNOTATION: lease.name,
        OWNER_ANNOTATION: lease.owner,
        LABELS_ANNOTATION: _json(labels) if labels else "",
        ANNOTATIONS_ANNOTATION: _json(refused) if refused else "",
    }
    if not rules.interruptible:
        users.setdefault(SAFE_TO_EVICT, "false")  # else an autoscaler may empty the node
    annotations = {**users, **{key: text for key, text in ours.items() if text}}
    size = sum(len(key.encode()) + len(text.encode()) for key, text in annotations.items())
    if size > ANNOTATIONS_BYTES_MAX:
        raise PolicyRefused(
            f"Its annotations and labels have {size} bytes, and Kubernetes takes {ANNOTATIONS_BYTES_MAX} in all."
        )
    return annotations


def is_allowed_key(key: str, site: KubernetesSite) -> bool:
    """Whether a user's label or annotation may have this key on the cluster."""
    if not is_label_key(key) or is_own_key(key):
        return False
    return is_free_key(key) or any(fnmatchcase(key, pattern) for pattern in site.allow_keys)


def is_own_key(key: str) -> bool:
    """Whether only the agent or Kubernetes sets this label or annotation."""
    return key.startswith((OWN_PREFIX, BATCH_PREFIX)) or key == MANAGED_BY_LABEL or key in OLD_JOB_LABELS


def _json(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()
