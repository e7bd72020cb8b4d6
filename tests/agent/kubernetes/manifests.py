"""Manifests of leases, for tests of what Kubernetes is told."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.agent.site.site import Site, site_type
from switchyard.errors import PolicyRefused
from switchyard.features.kubernetes.agent.pods.manifest import job_manifest
from switchyard.model.cluster.poll import Lease
from switchyard.model.executions.execution import ExecutionConfig
from switchyard.model.job.job import Native
from switchyard.model.wire.decode import convert
from tests.agent.builders import a_lease

Body = dict[str, Any]


def a_site(**sections: Any) -> Site:
    return convert(sections, site_type(), where="site.yaml")


def of(lease: Lease, site: Site | None = None, **options: Any) -> Body:
    return job_manifest(lease, site or Site(), cluster="alpha", **options)


def pod_of(manifest: Body) -> Body:
    spec: Body = manifest["spec"]["template"]["spec"]
    return spec


def container_of(manifest: Body) -> Body:
    main: Body = pod_of(manifest)["containers"][0]
    return main


def variables_of(manifest: Body) -> dict[str, str]:
    return {row["name"]: row["value"] for row in container_of(manifest)["env"] if "value" in row}


def one(*command: str, **spec: Any) -> Lease:
    for name, kind in (("execution", ExecutionConfig), ("native", Native)):
        if name in spec:
            spec[name] = convert(spec[name], kind, where=name)
    return a_lease(*(command or ("true",)), image="busybox", **spec)


def refusal(lease: Lease, site: Site | None = None) -> str:
    with pytest.raises(PolicyRefused) as caught:
        of(lease, site)
    return caught.value.detail
