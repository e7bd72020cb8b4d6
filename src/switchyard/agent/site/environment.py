"""The environment variables of jobs, the same for every backend: the job's identity and its rules."""

from __future__ import annotations

import msgspec

from switchyard.agent.loop.need import spec_of
from switchyard.model.cluster.poll import Lease
from switchyard.model.executions.execution import ExecutionConfig, RunAs, SecurityContext
from switchyard.model.job.site_needs import ROLE_VARIABLE

FILES_VARIABLE = "SWITCHYARD_FILES"  # the folder of a job with files, for a job that names another `cwd`


def job_variables(lease: Lease, cluster: str) -> dict[str, str]:
    """Variables of a job: those of the rules, then the job's, then ours. Later ones win."""
    spec = spec_of(lease)
    rules = spec.execution or ExecutionConfig()
    return {**(rules.envs or {}), **spec.env, **_identity(lease, cluster), **_rules(lease, rules)}


def _identity(lease: Lease, cluster: str) -> dict[str, str]:
    spec = spec_of(lease)
    variables = {
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
        variables["SWITCHYARD_WORKFLOW"] = lease.workflow
    if lease.launch_plan is not None:
        variables["SWITCHYARD_LAUNCH_PLAN"] = lease.launch_plan
    if lease.lo is not None:
        variables["SWITCHYARD_ARRAY_INDEX"] = str(lease.lo)
    if spec.image is not None:
        variables["SWITCHYARD_IMAGE"] = spec.image  # the backend decides whether it uses the image
    return variables


def _rules(lease: Lease, rules: ExecutionConfig) -> dict[str, str]:
    """Variables that tell the job its rules. The identity in them is not enforced here: that is up to the cluster."""
    context = rules.security_context or SecurityContext()
    run_as = context.run_as or RunAs()
    prefix = rules.raw_output_data_config.output_location_prefix if rules.raw_output_data_config else None
    variables = {
        "SWITCHYARD_LABELS": _json(lease.labels) if lease.labels else None,
        "SWITCHYARD_ANNOTATIONS": _json(rules.annotations) if rules.annotations else None,
        "SWITCHYARD_OUTPUT_PREFIX": f"{prefix.rstrip('/')}/{lease.job}" if prefix else None,
        "SWITCHYARD_OVERWRITE_CACHE": "true" if rules.overwrite_cache else None,
        "SWITCHYARD_INTERRUPTIBLE": None if rules.interruptible is None else str(rules.interruptible).lower(),
        ROLE_VARIABLE: run_as.iam_role,
        "SWITCHYARD_OAUTH2_CLIENT_ID": _client_id(run_as),
        "SWITCHYARD_SERVICE_ACCOUNT": run_as.k8s_service_account,
        "SWITCHYARD_EXECUTION_IDENTITY": run_as.execution_identity,
        "SWITCHYARD_SECURITY_CONTEXT": _json(rules.security_context) if rules.security_context else None,
    }
    return {name: text for name, text in variables.items() if text is not None}


def _client_id(run_as: RunAs) -> str | None:
    client = (run_as.oauth2_client or {}).get("client_id")
    return client if isinstance(client, str) and client else None


def _json(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()
