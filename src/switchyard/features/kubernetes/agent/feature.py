"""What Kubernetes adds to the agent's doctor and to `discover`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from switchyard.agent.feature import AgentFeature, CanaryAdvice, ClusterCheck, Finding, SmallJob, SystemsQuestion
from switchyard.agent.site.site import Site
from switchyard.features.kubernetes.agent.kubernetes_site import kubernetes_of


class KubernetesFeature(AgentFeature):
    kind = "kubernetes"
    canary_advice = CanaryAdvice.of("Look at the Job and its pod: `kubectl describe job NAME`, `kubectl get events`.")
    nobody_advice = "See `kubectl describe nodes`."
    has_local_accounts = False
    has_images = True

    def check(self, site: Site, environment: Mapping[str, str], namespaces: Sequence[str]) -> ClusterCheck:
        from switchyard.features.kubernetes.agent.doctor.doctor_kubernetes import check_kubernetes

        findings = check_kubernetes(kubernetes_of(site), environment, namespaces=namespaces)
        return ClusterCheck(findings, any(each.check == self.kind and each.is_ok is False for each in findings))

    def small_job(self, site: Site, namespaces: Sequence[str]) -> SmallJob | Finding:
        """In the first namespace that was named, or in that of the project `default`."""
        from switchyard.features.kubernetes.agent.doctor.doctor_kubernetes import project_of

        section = kubernetes_of(site)
        if not section.image:
            advice = "Name a small image with /bin/echo in it: `kubernetes: {image: …}` in the site's file."
            return Finding("canary", None, "there is no image for a small job", advice)
        place = project_of(section, namespaces[0]) if namespaces else None
        return SmallJob(*place) if place else SmallJob()

    def describe_systems(self, question: SystemsQuestion) -> tuple[dict[str, Any], dict[str, str]]:
        """As the kubelets of all nodes say, and the Jobs on them."""
        from switchyard.features.kubernetes.agent.namespaces.site_access import open_api
        from switchyard.features.kubernetes.agent.nodes.node_systems import NOBODY, DiscoveryJob, describe_node_systems

        section = kubernetes_of(question.site)
        with contextlib.closing(open_api(section, question.environment)) as api:
            job = None
            if question.image:
                job = DiscoveryJob(
                    namespace=question.namespace or section.fixed_namespace or api.namespace or "default",
                    image=question.image,
                    pull_secrets=tuple(section.pull_secrets),
                    user=NOBODY if section.run_as_user is None else section.run_as_user,
                )
            return describe_node_systems(api, job)
