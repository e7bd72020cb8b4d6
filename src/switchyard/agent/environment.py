"""What a job's process is told by its environment, the same at every backend: who it is, and which rules hold."""

from __future__ import annotations

import msgspec

from switchyard.agent.need import spec_of
from switchyard.model.execution import ExecutionConfig, RunAs, SecurityContext
from switchyard.model.poll import Lease

# What a supervisor and its job may have of the agent's environment; a join token, say, is not theirs to see.
INHERITED_VARIABLES = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "SLURM_CONF",
    "SSH_AUTH_SOCK",
)


def job_variables(lease: Lease, cluster: str) -> dict[str, str]:
    """What a job adds to its backend's environment: what the rules set, its own, then ours, which none replaces."""
    spec = spec_of(lease)
    rules = spec.execution or ExecutionConfig()
    return {**(rules.envs or {}), **spec.env, **_identity(lease, cluster), **_rules(lease, rules)}


def _identity(lease: Lease, cluster: str) -> dict[str, str]:
    spec = spec_of(lease)
    found = {
        "SWITCHYARD_JOB_ID": lease.job,
        "SWITCHYARD_ATTEMPT": str(lease.attempt),
        "SWITCHYARD_FENCE": str(lease.fence),
        "SWITCHYARD_CLUSTER": lease.cluster or cluster,
        "SWITCHYARD_TASKS": str(spec.resources.tasks),
        "SWITCHYARD_CORES": str(spec.resources.asked.cores),
        "SWITCHYARD_PROJECT": lease.project,
        "SWITCHYARD_DOMAIN": lease.domain,
    }
    if lease.workflow is not None:
        found["SWITCHYARD_WORKFLOW"] = lease.workflow
    if lease.launch_plan is not None:
        found["SWITCHYARD_LAUNCH_PLAN"] = lease.launch_plan
    if lease.lo is not None:
        found["SWITCHYARD_ARRAY_INDEX"] = str(lease.lo)
    if spec.image is not None:
        found["SWITCHYARD_IMAGE"] = spec.image  # told; whether it is obeyed is the backend's
    return found


def _rules(lease: Lease, rules: ExecutionConfig) -> dict[str, str]:
    """What the rules say about how it runs. Whom it runs as is told, not enforced: that is the cluster's."""
    context = rules.security_context or SecurityContext()
    who = context.run_as or RunAs()
    prefix = rules.raw_output_data_config.output_location_prefix if rules.raw_output_data_config else None
    said = {
        "SWITCHYARD_LABELS": _json(lease.labels) if lease.labels else None,
        "SWITCHYARD_ANNOTATIONS": _json(rules.annotations) if rules.annotations else None,
        "SWITCHYARD_OUTPUT_PREFIX": f"{prefix.rstrip('/')}/{lease.job}" if prefix else None,
        "SWITCHYARD_OVERWRITE_CACHE": "true" if rules.overwrite_cache else None,
        "SWITCHYARD_INTERRUPTIBLE": None if rules.interruptible is None else str(rules.interruptible).lower(),
        "SWITCHYARD_IAM_ROLE": who.iam_role,
        "SWITCHYARD_SERVICE_ACCOUNT": who.k8s_service_account,
        "SWITCHYARD_EXECUTION_IDENTITY": who.execution_identity,
        "SWITCHYARD_SECURITY_CONTEXT": _json(rules.security_context) if rules.security_context else None,
    }
    return {name: text for name, text in said.items() if text is not None}


def _json(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()
