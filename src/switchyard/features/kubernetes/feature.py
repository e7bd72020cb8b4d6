"""The feature Kubernetes, as the core finds it."""

from __future__ import annotations

from switchyard.feature import Feature

FEATURE = Feature(
    name="kubernetes",
    commands={
        "Rules": [
            (
                "cluster-resources",
                "switchyard.features.kubernetes.cli.cluster_resources",
                "Render the templates of a project's namespace, or show what would change",
            ),
        ]
    },
    config={"cluster_resources": "switchyard.features.kubernetes.server.feature:ClusterResourcesSection"},
    site={"kubernetes": "switchyard.features.kubernetes.agent.kubernetes_site:KubernetesSite"},
    server="switchyard.features.kubernetes.server.feature:KubernetesServer",
    agent="switchyard.features.kubernetes.agent.feature:KubernetesFeature",
)
