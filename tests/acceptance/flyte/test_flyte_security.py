"""Security contexts of executions, by request and by rule: what a cluster gives, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.flyte.flyte_site import DEV, PROJECT, SLURM_DEFAULTS, FlyteSite, flyte_site, host_rule
from tests.acceptance.flyte.shell_tasks import HERE, an_id, closure_of, end_of, register
from tests.acceptance.slurm.slurm_stage import SITE
from tests.programs import call
from tests.slurm_bed import SlurmBed

pytestmark = pytest.mark.xdist_group("flyte-security")

CLIENT = {"client_id": "ann", "client_secret": {"group": "idp", "key": "client"}}
SECRET = {"group": "vault", "key": "word", "env_var": "MY_WORD"}
TOKEN = {"name": "API", "client": CLIENT, "token_endpoint": "https://idp/token"}
CONTEXT = {"run_as": {"iam_role": "arn:role", "oauth2_client": CLIENT}, "secrets": [SECRET], "tokens": [TOKEN]}


CHECKS = " && ".join(
    (
        *('test "$MY_WORD" = sesame', 'test "$SWITCHYARD_OAUTH2_CLIENT_SECRET" = hunter2'),
        *('test "$SWITCHYARD_OAUTH2_CLIENT_ID" = ann', 'test "$SWITCHYARD_IAM_ROLE" = arn:role'),
        *('test "$SWITCHYARD_TOKEN_API" = sesame', 'test "$FLYTE_TOKENS_ENV_PREFIX" = SWITCHYARD_TOKEN_'),
        'test "$(cat "$FLYTE_TOKENS_PATH_PREFIX/api")" = sesame',
    )
)


def site_sections(folder: Path) -> dict[str, Any]:
    (folder / "word").write_text("sesame")
    rows = [
        {"group": "vault", "key": "word", "file": str(folder / "word"), "projects": [PROJECT]},
        {"group": "idp", "key": "client", "env": "IDP_WORD", "projects": [PROJECT]},
        {"group": "oauth2_tokens", "key": "API", "file": str(folder / "word"), "projects": [PROJECT]},
    ]
    return {"images": [host_rule()], "secrets": rows}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlyteSite]:
    folder = tmp_path_factory.mktemp("security")
    with flyte_site(folder, site=site_sections(folder), environment={"IDP_WORD": "hunter2"}) as made:
        register(made, "checks", ["sh", "-c", CHECKS], outputs={})
        register(made, "any", ["true"], outputs={})
        yield made


def launch(site: FlyteSite, task: str, name: str, context: dict[str, Any] | None) -> Any:
    spec = {"launch_plan": an_id("TASK", task), **({"security_context": context} if context else {})}
    return site.doors.by_grpc("CreateExecution", {**HERE, "name": name, "spec": spec})


def set_rule(site: FlyteSite, context: dict[str, Any]) -> Any:
    config = {"max_parallelism": 3, "security_context": context}
    attributes = {"project": PROJECT, "domain": DEV, "matching_attributes": {"workflow_execution_config": config}}
    return site.doors.by_grpc("UpdateProjectDomainAttributes", {"attributes": attributes})


def drop_rule(site: FlyteSite) -> None:
    named = {"project": PROJECT, "domain": DEV, "resource_type": "WORKFLOW_EXECUTION_CONFIG"}
    assert site.doors.by_grpc("DeleteProjectDomainAttributes", named).code == "OK"


def test_a_task_gets_the_secrets_tokens_and_role_that_its_execution_names(site: FlyteSite) -> None:
    assert launch(site, "checks", "by-request", CONTEXT).code == "OK"
    assert end_of(site, "by-request")["phase"] == "SUCCEEDED", closure_of(site, "by-request")
    said = call("GET", f"{site.server.url}/v1/executions/{PROJECT}/{DEV}/by-request/explain").body.decode()
    assert "the IAM role arn:role is told to the job alone (SWITCHYARD_IAM_ROLE)" in said
    assert "hunter2" not in said + site.server.log + site.agent.log


def test_a_task_on_slurm_gets_the_same(tmp_path: Path, slurm: SlurmBed) -> None:
    cluster = slurm["alpha"]
    sections = {**site_sections(tmp_path), "slurm": {**SITE, "bin": str(cluster.bin)}}
    env = {"IDP_WORD": "hunter2"}
    with flyte_site(
        tmp_path, cluster="alpha", backend="slurm", site=sections, config=SLURM_DEFAULTS, environment=env
    ) as made:
        register(made, "checks", ["sh", "-c", CHECKS], outputs={})
        assert launch(made, "checks", "on-slurm", CONTEXT).code == "OK"
        assert end_of(made, "on-slurm")["phase"] == "SUCCEEDED", closure_of(made, "on-slurm")
        refused = launch(made, "checks", "refused", {"tokens": [{"name": "NOBODYS"}]})
        assert (refused.code, "security_context.tokens[0]" in refused.message) == ("INVALID_ARGUMENT", True), refused


def test_a_task_gets_the_tokens_that_it_names_itself(site: FlyteSite) -> None:
    script = 'test "$SWITCHYARD_TOKEN_API" = sesame'
    register(site, "own.token", ["sh", "-c", script], outputs={}, security_context={"tokens": [{"name": "API"}]})
    assert launch(site, "own.token", "own-token", None).code == "OK"
    assert end_of(site, "own-token")["phase"] == "SUCCEEDED", closure_of(site, "own-token")
    register(site, "no.token", ["true"], outputs={}, security_context={"tokens": [{"name": "NOBODYS"}]})
    refused = launch(site, "no.token", "no-token", None)
    assert (refused.code, "oauth2_tokens/NOBODYS" in refused.message) == ("INVALID_ARGUMENT", True), refused


def test_a_task_gets_what_a_rule_names(site: FlyteSite) -> None:
    assert set_rule(site, CONTEXT).code == "OK"
    try:
        assert launch(site, "checks", "by-rule", None).code == "OK"
        assert end_of(site, "by-rule")["phase"] == "SUCCEEDED", closure_of(site, "by-rule")
        plain = call("POST", f"{site.server.url}/v1/jobs", {"spec": {"command": ["true"]}, "project": PROJECT})
        assert plain.status == 422, plain.body
        detail = plain.json["detail"]
        assert "security_context.run_as.oauth2_client of the workflow execution config" in detail
        assert f"(project+domain level: project {PROJECT}, domain {DEV})" in detail
    finally:
        drop_rule(site)


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (
            {"secrets": [SECRET, {"group": "vault", "key": "absent"}]},
            "does not have the secret vault/absent (`secrets` in the agent's site file), which "
            "security_context.secrets[1] of the workflow execution config (request) asks for",
        ),
        (
            {"tokens": [{"name": "NOBODYS"}]},
            "the secret oauth2_tokens/NOBODYS (`secrets` in the agent's site file), which security_context.tokens[0] o",
        ),
        (
            {"run_as": {"oauth2_client": {"client_id": "a", "client_secret": {"key": "absent"}}}},
            "the secret absent (`secrets` in the agent's site file), which security_context.run_as.oauth2_client of",
        ),
        (
            {"run_as": {"oauth2_client": {"client_id": "a"}}},
            "security_context.run_as.oauth2_client of the workflow execution config (request) cannot be read: "
            "Object missing required field `client_secret`",
        ),
        (
            {"secrets": [{"group": "vault"}]},
            "security_context.secrets[0] of the workflow execution config (request) cannot",
        ),
        (
            {"secrets": [{"key": "a b"}]},
            "security_context.secrets[0] of the workflow execution config (request) cannot",
        ),
        ({"secrets": [{"key": "a", "env_var": "LD_PRELOAD"}]}, "with LD_PRELOAD programs load or run other code"),
        ({"secrets": [{"key": "a", "env_var": "1=2"}]}, "security_context.secrets[0] of the workflow execution config"),
        (
            {"tokens": [{"token_endpoint": "x"}]},
            "security_context.tokens[0] of the workflow execution config (request)",
        ),
    ],
)
def test_a_context_that_no_cluster_honours_is_refused_with_its_field_and_level(
    site: FlyteSite, context: dict[str, Any], words: str
) -> None:
    refused = launch(site, "any", "refused", context)
    assert (refused.code, words in refused.message) == ("INVALID_ARGUMENT", True), refused


def test_a_rule_that_no_cluster_honours_refuses_executions_with_its_level(site: FlyteSite) -> None:
    assert set_rule(site, {"tokens": [{"name": "NOBODYS"}]}).code == "OK"
    try:
        refused = launch(site, "any", "refused", None)
        assert refused.code == "INVALID_ARGUMENT"
        assert "security_context.tokens[0] of the workflow execution config (project+domain level: " in refused.message
    finally:
        drop_rule(site)
    refused = set_rule(site, {"run_as": {"oauth2_client": {"client_id": "a"}}})
    assert (refused.code, "security_context.run_as.oauth2_client" in refused.message) == ("INVALID_ARGUMENT", True)
