"""Site files as values, with the sections of features."""

from __future__ import annotations

from typing import Any

from switchyard.agent.site.site import Site, site_type


def site_with(**sections: Any) -> Site:
    site: Site = site_type()(**sections)
    return site
