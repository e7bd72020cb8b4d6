"""The quota of a project, as the server renders it into namespaces."""

from __future__ import annotations

from tests.kube_cluster import KubernetesCluster

PROJECT = "flyteexamples"
NAMESPACE = f"{PROJECT}-development"
CRA = 'domain: development\nproject: flyteexamples\nattributes: {projectQuotaCpu: "1000", projectQuotaMemory: 5Ti}\n'
TEMPLATES = {
    "aa_namespace.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: '{{ namespace }}'}\n",
    "ab_quota.yaml": "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: project-quota}\nspec:\n  hard:\n"
    "    limits.cpu: '{{ projectQuotaCpu }}'\n    limits.memory: '{{ projectQuotaMemory }}'\n",
}


def hard_of(cluster: KubernetesCluster) -> dict[str, str]:
    found = cluster.get(f"/api/v1/namespaces/{NAMESPACE}/resourcequotas/project-quota")
    return dict(found["spec"]["hard"]) if found else {}
