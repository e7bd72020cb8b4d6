"""What is secret of a job's spec: values that may hold passwords. Only the owner and operators read them. Pure.

A join token in the environment, such as that of a pilot, is shown to the owner alone: who has it joins as an agent.
"""

from __future__ import annotations

from msgspec import convert, to_builtins
from msgspec.structs import replace

from switchyard.model.executions.execution import ExecutionConfig, SecurityContext
from switchyard.model.job.job import JobSpec
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.rules.attributes import JobPolicy, UsedValue

HIDDEN_VALUE = "(hidden)"  # in the place of a value in a job's policy
EXECUTION_KIND = "workflow-execution-config"  # the attribute kind whose values become `spec.execution`
# A stored spec without any of these keys holds no secret: most specs need not be decoded to know it.
_SECRET_KEYS = ('"env"', '"envs"', '"security_context"', '"options"', '"pod"', '"secrets"')
_JOIN_PREFIX = "join_"  # with which join tokens begin (service/core/agents/credential.py)
_OAUTH2_SHOWN = frozenset({"client_id"})


def may_hold_secrets(body: str) -> bool:
    """Whether a stored spec can hold a secret: a quick look at its text."""
    return any(key in body for key in _SECRET_KEYS)


def redact_spec(spec: JobSpec) -> JobSpec:
    """The spec without its secrets; the same object if it has none.

    Secret are the environment, the environment of `execution`, the secrets and tokens of the security context and what
    the job needs of the site for them, the native options, which carry values for the batch system such as
    `--export=NAME=VALUE`, and the parts of a pod, whose containers have environments of their own.
    """
    native = spec.native
    if native is not None and native.options:
        native = replace(native, options=[])
    execution = _redact_execution(spec.execution) if spec.execution is not None else None
    site = spec.site
    if site is not None and site.secrets:
        site = replace(site, secrets=()) if site.data is not None else None
    if (
        not spec.env
        and spec.pod is None
        and native is spec.native
        and execution is spec.execution
        and site is spec.site
    ):
        return spec
    return replace(spec, env={}, native=native, execution=execution, pod=None, site=site)


def may_hold_join_token(body: str) -> bool:
    """Whether a stored spec can hold a join token: a quick look at its text."""
    return f'"{_JOIN_PREFIX}' in body


def hide_join_tokens(spec: JobSpec) -> JobSpec:
    """The spec with join tokens of its environment hidden; the same object if it has none."""
    if not any(value.startswith(_JOIN_PREFIX) for value in spec.env.values()):
        return spec
    env = {name: HIDDEN_VALUE if value.startswith(_JOIN_PREFIX) else value for name, value in spec.env.items()}
    return replace(spec, env=env)


def redact_policy(policy: JobPolicy) -> JobPolicy:
    """The rules a job was admitted under, without the secrets that the job or a rule put into its spec."""
    return replace(policy, values=[_redact_used_value(value) for value in policy.values])


def _redact_execution(execution: ExecutionConfig) -> ExecutionConfig:
    context = execution.security_context
    redacted = _redact_security_context(context) if context is not None else None
    if not execution.envs and redacted is context:
        return execution
    return replace(execution, envs=None, security_context=redacted)


def _redact_security_context(context: SecurityContext) -> SecurityContext:
    run_as = context.run_as
    client = run_as.oauth2_client if run_as is not None else None
    if run_as is not None and client and not _OAUTH2_SHOWN.issuperset(client):
        shown = {key: value for key, value in client.items() if key in _OAUTH2_SHOWN}
        run_as = replace(run_as, oauth2_client=shown or None)
    if run_as is context.run_as and not context.secrets and not context.tokens:
        return context
    return replace(context, run_as=run_as, secrets=[], tokens=[])


def _redact_used_value(used: UsedValue) -> UsedValue:
    if used.kind != EXECUTION_KIND:
        return used
    try:
        execution = convert({used.field: used.value}, ExecutionConfig)
    except UNREADABLE_ERRORS:  # written by another version, so nobody knows whether it is secret
        return replace(used, value=HIDDEN_VALUE)
    redacted = _redact_execution(execution)
    if redacted is execution:
        return used
    shown = to_builtins(redacted).get(used.field)
    return replace(used, value=shown or HIDDEN_VALUE)
