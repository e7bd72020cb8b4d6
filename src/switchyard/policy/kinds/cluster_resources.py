"""Cluster resources (1): free names and values for the templates of a namespace. They do not affect jobs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from switchyard.model.rules.scope import Level
from switchyard.policy.kinds.kind import Kind, Merge
from switchyard.policy.platform import Platform

RESERVED_KEYS = ("project", "domain", "namespace")  # set by the renderer itself
TemplateKey = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*(?!\n)$")]
TemplateValue = Annotated[str, Meta(max_length=4096, pattern=r"^[^\u0000]*$")]


class ClusterResourcesValue(Struct, frozen=True, forbid_unknown_fields=True):
    attributes: Annotated[dict[TemplateKey, TemplateValue], Meta(min_length=1, max_length=1000)]


class ClusterResourcesKind(Kind):
    number = 1
    name = "cluster-resource-attribute"
    title = "cluster resources"
    value = ClusterResourcesValue
    merge = Merge.KEY
    levels = (Level.DOMAIN, Level.PROJECT, Level.PROJECT_DOMAIN)
    depth = 2
    is_for_jobs = False
    sample: ClassVar[dict[str, Any]] = {"attributes": {"projectQuotaCpu": "1000", "projectQuotaMemory": "5Ti"}}

    def check(self, value: Any, platform: Platform) -> list[str]:
        return [
            f"attributes.{key}: this name is the renderer's own" for key in RESERVED_KEYS if key in value.attributes
        ]
