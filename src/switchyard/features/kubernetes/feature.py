"""The feature Kubernetes, as the core finds it."""

from __future__ import annotations

from switchyard.feature import Feature

FEATURE = Feature(
    name="kubernetes",
    site={"kubernetes": "switchyard.features.kubernetes.agent.kubernetes_site:KubernetesSite"},
    agent="switchyard.features.kubernetes.agent.feature:KubernetesFeature",
)
