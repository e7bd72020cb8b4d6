"""flytekit, as it is installed by anybody, against our gRPC port: projects, attributes, tokens, TLS."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.acceptance.flyte.flyte_site import sqlite_first
from tests.acceptance.stage import Secret
from tests.processes import PATIENCE_S, free_port
from tests.programs import START_S, YARD, Server, call, isolated_env, start_server, yard
from tests.server.flyte_doors import Doors, opened
from tests.warm_programs import FLYTEKIT_MODULES, run_script

CLIENT = Path(__file__).with_name("flytekit_client.py")
CLIENT_S = PATIENCE_S
PROJECT, DEV = "kit", "development"
HERE = {"project": PROJECT, "domain": DEV}


def flytekit(folder: Path, story: str, endpoint: str, **platform: Any) -> Any:
    """What came of a story, told by flytekit's own client."""
    config = json.dumps({"endpoint": endpoint, "insecure": True, **platform})
    done = client(folder, story, config)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def client(folder: Path, story: str, config: str) -> subprocess.CompletedProcess[str]:
    words = [str(CLIENT), story, config]
    return run_script(words, env=isolated_env(folder), cwd=folder, timeout_s=CLIENT_S, modules=FLYTEKIT_MODULES)


def label(value: str) -> dict[str, Any]:
    return {"execution_cluster_label": {"value": value}}


@sqlite_first
def test_flytekit_makes_projects_and_reads_and_writes_their_attributes(tmp_path: Path, database_url: str) -> None:
    with opened(tmp_path, database=database_url) as doors:
        assert_projects(flytekit(tmp_path, "projects", doors.grpc), doors)
        assert_attributes(flytekit(tmp_path, "attributes", doors.grpc))


def assert_projects(told: Any, doors: Doors) -> None:
    assert told.pop("again")[:2] == ["FlyteEntityAlreadyExistsException", "ALREADY_EXISTS"]
    assert told.pop("version") == doors.v1("GET", "/v1/version")["version"]
    assert told == {
        "listed": {
            "default": ["default", "made at first start", 0],
            PROJECT: ["Flytekit's own", "made by flytekit", 0],
        },
        "token": "",
        "after archiving": ["default"],
        "a rule for an archived one": [
            "FlyteInvalidInputException",
            "INVALID_ARGUMENT",
            f"project [{PROJECT}] is not active",
        ],
        "after all": ["default", PROJECT],
        "domains": [DEV, "staging", "production"],
    }


def assert_attributes(told: Any) -> None:
    name = f"Resource [{{Project:{PROJECT} Domain:{DEV} Workflow: LaunchPlan: ResourceType:EXECUTION_CLUSTER_LABEL}}]"
    assert told.pop("missing") == ["FlyteEntityNotExistException", "NOT_FOUND", f"{name} not found"]
    refused = told.pop("refused")
    assert refused[:2] == ["FlyteInvalidInputException", "INVALID_ARGUMENT"]
    assert "no label 'nowhere'" in refused[2]
    assert told.pop("no execution")[1] == "NOT_FOUND"
    override = {"task_type": "python", "plugin_id": ["plugin"], "missing_plugin_behavior": "USE_DEFAULT"}
    of_the_domain = [
        {"cluster_resource_attributes": {"attributes": {"projectQuotaCpu": "1000"}}},
        {"execution_queue_attributes": {"tags": ["bar", "baz"]}},
        label("PD"),
        {"plugin_overrides": {"overrides": [override]}},
    ]
    flow = HERE | {"workflow": "app.flow"}
    task = {"task_resource_attributes": {"limits": {"cpu": "2"}}}
    assert told == {
        "of the domain": [{"attributes": HERE | {"matching_attributes": each}} for each in of_the_domain],
        "of the workflow": {"attributes": flow | {"matching_attributes": label("W")}},
        "of another workflow": {"attributes": HERE | {"matching_attributes": label("PD")}},
        "of the project": {"attributes": {"project": PROJECT, "matching_attributes": task}},
        "all": {"configurations": [flow | {"attributes": label("W")}, HERE | {"attributes": label("PD")}]},
        "after the delete": {"configurations": [HERE | {"attributes": label("PD")}]},
    }


def test_flytekits_external_command_brings_the_users_token(tmp_path: Path) -> None:
    """A rule that flytekit wrote is in the audit under the name of the user whose token it sent."""
    with opened(tmp_path, auth=True) as doors:
        doors.v1("POST", "/v1/projects", {"name": "foreign"})

        def told(story: str, token: str) -> Any:
            file = tmp_path / "token"
            file.write_text(token)
            command = {"auth_mode": "externalcommand", "command": ["cat", str(file)]}
            return flytekit(tmp_path, story, doors.grpc, **command)

        assert doors.token is not None
        wanted = {"attributes": HERE | {"matching_attributes": label("PD")}}
        assert told("write", doors.token) == wanted
        path = f"/v1/attributes/execution-cluster-label/history?project={PROJECT}&domain={DEV}"
        assert [entry["actor"] for entry in doors.v1("GET", path)["items"]] == ["admin"]
        assert told("look", viewer(doors)) == {
            "projects": ["default", PROJECT],
            "label": wanted,
            "write": denied(f"admin on project {PROJECT}; vera has view."),
            "elsewhere": denied("view on project foreign; vera has none."),
            "register": denied("admin on the platform; vera has none."),
        }
        refused = told("reach", f"yard_{'0' * 26}_wrong")
        assert refused[:2] == ["FlyteAuthenticationException", "UNAUTHENTICATED"]
        bare = flytekit_without_a_token(tmp_path, doors)
        assert bare.returncode != 0, "flytekit's other ways need an OAuth2 server, and none is named to it"


def denied(said: str) -> list[str]:
    next_step = "Ask an administrator for the grant named above (`yard grant add`)."
    if " on project " in said:
        next_step = (
            "`yard project ls` lists the projects you may use; an administrator grants others (`yard grant add`)."
        )
    return ["FlyteSystemException", "PERMISSION_DENIED", f"This needs the role {said} {next_step}"]


def viewer(doors: Doors) -> Secret:
    doors.v1("POST", "/v1/users", {"name": "vera"})
    grant = {"role": "view", "to": "user", "subject": "vera", "on": "project", "object": PROJECT}
    doors.v1("POST", "/v1/grants", grant)
    return Secret(doors.v1("POST", "/v1/tokens", {"user": "vera"})["token"])


def flytekit_without_a_token(folder: Path, doors: Doors) -> subprocess.CompletedProcess[str]:
    config = json.dumps({"endpoint": doors.grpc, "insecure": True, "auth_mode": "ClientSecret"})
    return client(folder, "reach", config)


def test_tls_with_the_servers_certificate(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    named = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    argv = ["openssl", "req", "-x509", *curve, *named, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(argv, check=True, capture_output=True, timeout=PATIENCE_S)
    http, grpc = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    words = ["server", "--data", str(tmp_path / "data"), "--http", http, "--grpc", grpc]
    tls = ["--tls-cert", str(cert), "--tls-key", str(key)]
    trusting = {**isolated_env(tmp_path, url=f"https://{http}"), "SSL_CERT_FILE": str(cert)}
    with Server([*YARD, *words, *tls], tmp_path, name="server", env=isolated_env(tmp_path)) as server:
        server.wait_for(lambda: yard("whoami", env=trusting).returncode == 0, START_S, "the server answers")
        (tmp_path / "token").write_text(server.admin_token)
        command = {"auth_mode": "externalcommand", "command": ["cat", str(tmp_path / "token")]}
        told = flytekit(tmp_path, "reach", grpc, insecure=False, ca_cert_file_path=str(cert), **command)
        assert told == ["nothing"], "stands in the way"


def test_a_server_pays_only_for_the_doors_it_opens(tmp_path: Path) -> None:
    """gRPC and Flyte's messages are a fifth of a second and 25 MB: for those who ask for them."""
    with start_server(tmp_path, is_warm=False) as server:

        def has(library: str) -> bool:
            return library in Path(f"/proc/{server.pid}/maps").read_text()

        assert not has("cygrpc")
        assert not has("_upb")
        answer = call("GET", f"{server.url}/api/v1/domains")
        assert [domain["id"] for domain in answer.json["domains"]] == [DEV, "staging", "production"]
        assert has("_upb")
        assert not has("cygrpc")
