"""Which namespaces a Kubernetes cluster serves. Its agents get the rendered objects of these, with their Secrets.

Only platform administrators say that a cluster is a Kubernetes cluster, and which namespaces it serves. The backend
that an agent names when it joins is not believed: whoever holds a join token could name any.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from switchyard.errors import Conflict, Denied
from switchyard.model.cluster.cluster import POLLING_BACKEND, InviteRequest
from switchyard.model.cluster.namespace_resources import BACKEND
from switchyard.model.rules.access import Role
from switchyard.service.core.context import bump_version
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.store.clusters import clusters

ALL_NAMESPACES = ("*",)


def encode_patterns(patterns: Sequence[str]) -> str:
    return msgspec.json.encode(sorted(set(patterns))).decode()


def need_right_to_serve(actor: Actor, patterns: Sequence[str] | None) -> None:
    """Refuse to let anybody but a platform administrator say which namespaces a cluster serves. None: nothing is said.

    Without this rule, an administrator of one cluster could read the Secrets of all projects.
    """
    if patterns is not None:
        actor.need_platform(Role.ADMIN)


def serve_invited(batch: Batch, row: clusters.ClusterRow, request: InviteRequest) -> None:
    """Set what an invite says of the namespaces of a cluster that is there."""
    if request.namespaces:
        update = clusters.ClusterUpdate(namespaces=encode_patterns(request.namespaces))
        clusters.cluster_change(batch.tx, row.id, update)
        bump_version(batch, Topic.CLUSTERS)
        batch.clusters.add(row.id)  # wake parked polls: there may be other objects for their agents
    elif request.is_for_job and serves_any(row):
        raise Conflict(
            f"The cluster {row.name} serves namespaces of Kubernetes, and the token of a pilot is for other clusters.",
            next_step="Choose a new name for the pilot; a platform administrator may name `namespaces` in the invite.",
        )


def need_declared_backend(batch: Batch, cluster_id: str, backend: str) -> None:
    """Refuse an agent whose backend gives it rights, unless a platform administrator gave these to the cluster."""
    if backend == POLLING_BACKEND:
        raise Denied(
            f"The backend {POLLING_BACKEND} is for clusters that only poll, by gRPC.",
            next_step="Start the agent with --backend local, slurm, flux or kubernetes.",
        )
    if backend != BACKEND:
        return
    row = clusters.cluster_by_id(batch.tx, cluster_id)
    if row is not None and not serves_any(row):
        raise Denied(
            f"The cluster {row.name} is not registered as a Kubernetes cluster: it serves no namespaces.",
            next_step=f"Ask a platform administrator to run `yard cluster edit {row.name} --namespaces '*'`, or with "
            "names of namespaces instead of '*'. Its agents get the objects of these namespaces, with their Secrets.",
        )


def serves_any(row: clusters.ClusterRow) -> bool:
    return row.namespaces != "[]"
