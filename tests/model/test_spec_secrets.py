"""What is secret of a spec, and that each place of it is left out."""

from __future__ import annotations

import msgspec
import pytest

from switchyard.model.job.job import JobSpec
from switchyard.model.job.spec_secrets import (
    HIDDEN_VALUE,
    hide_join_tokens,
    may_hold_join_token,
    may_hold_secrets,
    redact_policy,
    redact_spec,
)
from switchyard.model.rules.attributes import JobPolicy, UsedValue
from switchyard.model.rules.scope import Level

SECRET = "hunter2"
CONTEXTS = (
    {"secrets": [{"key": SECRET}]},
    {"tokens": [{"name": SECRET}]},
    {"run_as": {"iam_role": "r", "oauth2_client": {"client_id": "c", "client_secret": {"key": SECRET}}}},
)


@pytest.mark.parametrize(
    "secret",
    [
        {"env": {"A": SECRET}},
        {"execution": {"envs": {"A": SECRET}}},
        {"native": {"qos": "low", "options": [f"--export=A={SECRET}"]}},
        {"site": {"data": "/x", "secrets": [{"key": SECRET}]}, "files": {}},
        {"site": {"secrets": [{"key": SECRET}]}, "files": {}},
        {"pod": {"spec": {"initContainers": [{"name": "side", "args": [SECRET]}]}}},
        *({"execution": {"security_context": context}} for context in CONTEXTS),
    ],
)
def test_each_secret_is_left_out_and_the_rest_is_shown(secret: dict[str, object]) -> None:
    spec = msgspec.convert({"command": ["run"], "cwd": "/here"} | secret, JobSpec)
    assert may_hold_secrets(msgspec.json.encode(spec).decode())
    shown = redact_spec(spec)
    assert SECRET not in msgspec.json.encode(shown).decode()
    assert (shown.command, shown.cwd) == (spec.command, spec.cwd)
    assert redact_spec(shown) is shown, "nothing is left to hide"


def test_a_join_token_is_hidden_by_itself() -> None:
    spec = JobSpec(command=["pilot"], env={"YARD_JOIN_TOKEN": "join_01X_s", "A": "b"})
    assert may_hold_join_token(msgspec.json.encode(spec).decode())
    shown = hide_join_tokens(spec)
    assert shown.env == {"YARD_JOIN_TOKEN": HIDDEN_VALUE, "A": "b"}
    assert hide_join_tokens(shown) is shown
    assert not may_hold_join_token(msgspec.json.encode(shown).decode())


def test_a_spec_without_secrets_is_shown_as_it_is() -> None:
    spec = msgspec.convert(
        {
            "command": ["run"],
            "native": {"qos": "low"},
            "execution": {"interruptible": True, "security_context": {"run_as": {"iam_role": "r"}}},
        },
        JobSpec,
    )
    assert redact_spec(spec) is spec


def test_the_rules_of_a_job_show_which_level_gave_a_secret_and_not_the_secret() -> None:
    kind = "workflow-execution-config"
    values = [
        UsedValue(kind, "envs", {"A": SECRET}, Level.REQUEST),
        *(UsedValue(kind, "security_context", context, Level.PROJECT) for context in CONTEXTS),
        UsedValue(kind, "from-another-version", {"A": SECRET}, Level.REQUEST),
        UsedValue(kind, "max_parallelism", 4, Level.REQUEST),
        UsedValue("task-resources", "defaults.cpu", "2", Level.DOMAIN),
    ]
    shown = redact_policy(JobPolicy(1, values)).values
    assert SECRET not in msgspec.json.encode(shown).decode()
    assert shown[0] == UsedValue(kind, "envs", HIDDEN_VALUE, Level.REQUEST)
    assert shown[3].value == {"run_as": {"iam_role": "r", "oauth2_client": {"client_id": "c"}}}
    assert shown[-2:] == values[-2:]
