"""The error of Flyte's API where the package flyteidl is not installed."""

from __future__ import annotations

from switchyard.features.flyte.server.grpc_status import FlyteNotServed


def is_flyteidl_installed() -> bool:
    """flyteidl is optional: it has no release yet for the newest Pythons."""
    try:
        import flyteidl  # noqa: F401
    except ImportError:
        return False
    return True


def not_installed_error() -> FlyteNotServed:
    return FlyteNotServed(
        "Flyte's interface is not served here: the package flyteidl is not installed.",
        next_step="Install it beside the server (`pip install 'flyteidl>=1.16,<2'`); it needs a Python below 3.14.",
    )
