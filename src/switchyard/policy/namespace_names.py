"""The name of the namespace that a project has in a domain, from the operator's template."""

from __future__ import annotations

import re

NAMESPACE_TEMPLATE = "{{ project }}-{{ domain }}"
VARIABLE = re.compile(r"\{\{ *([A-Za-z_][A-Za-z0-9_.-]*) *\}\}")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def namespace_of(template: str, *, project: str, domain: str) -> str:
    """Return the namespace of a project and domain. Raises ValueError for a name that Kubernetes refuses."""
    unknown = sorted(set(VARIABLE.findall(template)) - {"project", "domain"})
    if unknown:
        raise ValueError(f"{unknown[0]!r} is unknown in namespace_mapping.template; known: project, domain")
    name = VARIABLE.sub(lambda match: {"project": project, "domain": domain}[match[1]], template)
    if not _NAMESPACE.fullmatch(name):
        raise ValueError(
            f"{name!r} is no namespace (a-z, 0-9 and - inside, at most 63 characters); it comes from the template "
            f"{template!r}"
        )
    return name


def is_scope_named(template: str) -> bool:
    """Whether every project in every domain is meant to have a namespace of its own."""
    return {"project", "domain"} <= set(VARIABLE.findall(template))


def is_variable(name: str) -> bool:
    """Whether a template could name it."""
    return VARIABLE.fullmatch(f"{{{{ {name} }}}}") is not None
