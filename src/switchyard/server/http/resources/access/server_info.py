"""The server itself: its version, the schema of a job file, and who the caller is."""

from __future__ import annotations

from importlib.metadata import version as package_version
from typing import Any

from switchyard.model.job import jobfile
from switchyard.model.wire.api import Me, Version
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Caller, Endpoint
from switchyard.service.access import users


def version(call: Call) -> Version:
    return Version(package_version("switchyard"), call.context.now_us())


def job_schema(_call: Call) -> dict[str, Any]:
    return jobfile.job_file_schema()


def whoami(call: Call) -> Me:
    return users.describe_caller(call.context, call.actor)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/version", "The server's version and clock", Version, version, caller=Caller.ANYBODY),
    Endpoint("GET", "/v1/schema", "The JSON Schema of a job file", dict[str, Any], job_schema, caller=Caller.ANYBODY),
    Endpoint("GET", "/v1/whoami", "Your user, groups and grants", Me, whoami),
)
