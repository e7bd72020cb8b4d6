"""Cluster resources: the operator's templates, filled per project and domain, shown, kept and compared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.stage import Stage, staged
from tests.programs import isolated_env, yard

SAMPLES = Path(__file__).resolve().parents[3] / "examples" / "cluster-resources"
CRA = """\
domain: development
project: flyteexamples
attributes:
    projectQuotaCpu: "1000"
    projectQuotaMemory: 5Ti
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    shutil.copytree(SAMPLES, folder / "templates")
    (folder / "role").write_text("arn:aws:iam::1:role/jobs\n")
    config = {
        "cluster_resources": {
            "templatePath": "templates",
            "templateData": {
                "projectQuotaCpu": {"value": 4},
                "projectQuotaMemory": {"value": "8Gi"},
                "defaultIamRole": {"valueFrom": {"filePath": str(folder / "role")}},
                "imagePullSecret": {"valueFrom": {"env": "PULL_SECRET"}},
            },
            "customData": [{"production": [{"projectQuotaCpu": {"value": "64"}}]}],
        },
    }
    (folder / "yard.yaml").write_text(json.dumps(config))
    with staged(folder, extra=["--config", str(folder / "yard.yaml")], env={"PULL_SECRET": "registry"}) as made:
        made.yard("project", "create", "flyteexamples", check=True)
        yield made


def rendered(stage: Stage, project: str = "flyteexamples", domain: str = "development") -> dict[str, Any]:
    """The objects by kind and name."""
    said = stage.yard("cluster-resources", "render", "-p", project, "-d", domain, check=True).stdout
    objects = list(yaml.safe_load_all(said))
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in objects}


def quota(objects: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = objects["ResourceQuota/project-quota"]["spec"]["hard"]
    return found


def test_values_come_from_the_platform_the_domain_and_the_rows(stage: Stage, tmp_path: Path) -> None:
    objects = rendered(stage)
    assert quota(objects) == {"limits.cpu": "4", "limits.memory": "8Gi"}
    assert objects["Namespace/flyteexamples-development"]["metadata"]["labels"]["switchyard/project"] == "flyteexamples"
    account = objects["ServiceAccount/jobs"]["metadata"]
    assert account["annotations"] == {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/jobs"}
    assert account["namespace"] == "flyteexamples-development"
    assert objects["ServiceAccount/default"]["imagePullSecrets"] == [{"name": "registry"}]
    assert quota(rendered(stage, domain="production")) == {"limits.cpu": "64", "limits.memory": "8Gi"}
    file = tmp_path / "cra.yaml"
    file.write_text(CRA)
    stage.yard("update", "cluster-resource-attribute", "--attrFile", str(file), "--force", check=True)
    assert quota(rendered(stage)) == {"limits.cpu": "1000", "limits.memory": "5Ti"}
    assert quota(rendered(stage, domain="staging")) == {"limits.cpu": "4", "limits.memory": "8Gi"}
    made = stage.read("cluster-resources", "render", "-p", "flyteexamples", "-d", "development")
    assert made["values"]["projectQuotaCpu"].startswith("project+domain")
    assert made["values"]["imagePullSecret"] == "platform config"


def test_a_diff_is_against_the_last_render(stage: Stage, tmp_path: Path) -> None:
    stage.yard("project", "create", "compared", check=True)
    diff = ["cluster-resources", "diff", "-p", "compared", "-d", "staging"]
    new = stage.yard(*diff, check=True)
    assert "+kind: ResourceQuota" in new.stdout
    assert "Nothing was rendered yet" in new.stderr
    rendered(stage, "compared", "staging")
    same = stage.yard(*diff, check=True)
    assert (same.stdout, "No change since the last render" in same.stderr) == ("", True)
    set_values(stage, tmp_path, "compared", {"projectQuotaCpu": "12"})
    extra = stage.folder / "templates" / "zz_more.yaml"
    extra.write_text("kind: ConfigMap\nmetadata: {name: more}\n")
    changed = stage.yard(*diff, check=True).stdout
    extra.unlink()
    assert '-    limits.cpu: "4"' in changed
    assert '+    limits.cpu: "12"' in changed
    assert "+++ now/zz_more.yaml" in changed
    assert stage.yard(*diff, check=True).stdout.count("\n+") == 2  # a diff keeps nothing: the heading and the limit
    assert quota(rendered(stage, "compared", "staging"))["limits.cpu"] == "12"
    assert stage.yard(*diff, check=True).stdout == ""


def set_values(stage: Stage, tmp_path: Path, project: str, values: dict[str, str]) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"project": project, "attributes": values}))
    stage.yard("update", "cluster-resource-attribute", "--attr-file", str(file), "--force", check=True)


@pytest.mark.parametrize(
    "value", ['4"\n    evil: "1', "4\n---\nkind: Secret", "{a: b}", "# x", "{{ namespace }}", "&a *a"]
)
def test_a_value_cannot_become_yaml(stage: Stage, tmp_path: Path, value: str) -> None:
    calm = rendered(stage, "default")
    set_values(stage, tmp_path, "default", {"projectQuotaCpu": value, "imagePullSecret": value})
    hostile = rendered(stage, "default")
    assert hostile.keys() == calm.keys()
    assert quota(hostile) == {"limits.cpu": value, "limits.memory": "8Gi"}
    assert hostile["ServiceAccount/default"]["imagePullSecrets"] == [{"name": value}]
    stage.yard("delete", "cluster-resource-attribute", "-p", "default", "--force", check=True)


@pytest.mark.parametrize("name", ["namespace", "project", "domain"])
def test_crc_10_reserved_names_cannot_be_overridden(stage: Stage, tmp_path: Path, name: str) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(f"project: default\nattributes: {{{name}: kube-system}}\n")
    refused = stage.yard("update", "cluster-resource-attribute", "--attr-file", str(file), "--force")
    assert refused.returncode == 2
    assert f"attributes.{name}" in refused.stderr


def test_what_has_no_value_is_named_with_its_file(stage: Stage) -> None:
    extra = stage.folder / "templates" / "zz_more.yaml"
    extra.write_text("kind: ConfigMap\ndata:\n  a: {{ missing }}\n  b: {{ absent }}\n")
    done = stage.yard("cluster-resources", "render", "-p", "default", "-d", "development")
    extra.write_text("a: [1\n")
    broken = stage.yard("cluster-resources", "render", "-p", "default", "-d", "development")
    extra.unlink()
    assert (done.returncode, broken.returncode) == (2, 2)
    assert "zz_more.yaml: line 3: {{ missing }} has no value" in done.stderr
    assert "zz_more.yaml: line 4: {{ absent }} has no value" in done.stderr
    assert "zz_more.yaml: line 2" in broken.stderr
    assert quota(rendered(stage, "default"))  # and the server goes on


@pytest.mark.parametrize(
    ("project", "domain", "said"),
    [
        ("none", "development", "There is no project 'none'"),
        ("default", "none", "There is no domain 'none'"),
        ("Big_One", "development", "'Big_One-development' is no namespace"),
    ],
)
def test_whose_templates_cannot_be_filled(stage: Stage, project: str, domain: str, said: str) -> None:
    if project == "Big_One":
        stage.yard("project", "create", project, check=True)
    done = stage.yard("cluster-resources", "render", "-p", project, "-d", domain)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_source_that_cannot_be_read_is_named(stage: Stage) -> None:
    role = stage.folder / "role"
    kept = role.read_text()
    role.unlink()
    done = stage.yard("cluster-resources", "render", "-p", "default", "-d", "development")
    role.write_text(kept)
    assert done.returncode == 2
    assert "defaultIamRole (platform config)" in done.stderr


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"templatePath": "nowhere"}, "there is no folder"),
        ({"templateData": {"namespace": {"value": "x"}}}, "namespace is set by the server"),
        ({"customData": {"nowhere": {"a": {"value": "x"}}}}, "customData.nowhere: there is no such domain"),
        ({"templateData": {"a": {"valeu": "x"}}}, "templateData.a"),
    ],
)
def test_mistakes_of_the_config_stop_the_start(tmp_path: Path, section: dict[str, Any], said: str) -> None:
    (tmp_path / "yard.yaml").write_text(json.dumps({"cluster_resources": section}))
    asked = ["server", "--data", str(tmp_path / "data"), "--config", str(tmp_path / "yard.yaml")]
    done = yard(*asked, env=isolated_env(tmp_path))
    assert done.returncode == 2
    assert said in done.stderr


def test_a_server_without_templates_says_so(tmp_path: Path) -> None:
    with staged(tmp_path) as bare:
        done = bare.yard("cluster-resources", "render", "-p", "default", "-d", "development")
    assert done.returncode == 2
    assert "cluster_resources.templatePath" in done.stderr
