"""The config file and the settings: every section is known, every mistake is listed, and all of them at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.connection import is_loopback
from switchyard.errors import EXIT_USAGE, Malformed
from switchyard.features.rainbow.server.rainbow_section import rainbow_section
from switchyard.server.commands.command import main
from switchyard.server.config.config import Config, config_type, read_config
from switchyard.server.config.settings import Settings, parse_address

WHOLE = """
clusters:
  clusterConfigs:
    - {name: alpha, endpoint: "https://alpha:6443", enabled: true, auth: {type: file_path, tokenPath: /t, certPath: /c}}
    - name: beta
      enabled: false
  poolNameClusterMap: {gpu: [{id: alpha, weight: 1}, {id: beta, weight: 99}]}
  labelClusterMap: {team1: [{id: alpha, weight: 0.5}, {id: beta}]}
  defaultExecutionLabel: team1
  clusterPoolAssignments: {production: {pool: gpu}}
queues:
  - {name: fast, attributes: [quick], limits: {running: 10, projects: {ml: 2}}, priority: 5, native: {slurm: short}}
domains: [development, {id: production, name: Production, tags: [fast]}]
task_resources:
  defaults: {cpu: 500m, memory: 1Gi, gpu: 0, ephemeral_storage: 5Gi}
  limits: {cpu: 2, memory: 8Gi, storage: 20Gi}
execution_config: {max_parallelism: 25, interruptible: true, labels: {a: b}, annotations: {}, envs: {A: "1"}}
quality_of_service:
  tierExecutionValues: {HIGH: {queueingBudget: 1m}}
  defaultTiers: {production: HIGH}
cluster_resources:
  templatePath: /etc/yard
  templateData: {quota: {value: "4"}}
  customData: {production: [{quota: {value: "8"}}]}
  refreshInterval: 5m
namespace_mapping: {template: "{{ project }}-{{ domain }}"}
resourcemanager:
  type: redis
  resourceMaxQuota: 1000
  redis: {hostPaths: ["redis:6379"], hostKey: k, maxRetries: 1, primaryName: p}
  taskTypes: {spark: {default: 5}}
rainbow: {registration_secret: chocolate-cookies, anonymous_match: true}
match: {engine: walk, allowed: [walk]}
selection: {name: weighted, options: {a: 1}}
"""


def test_every_section_is_accepted() -> None:
    config = read_config(WHOLE, where="yard.yaml")
    assert config.domain_names == {"development", "production"}
    assert [queue.name for queue in config.queues] == ["fast"]
    assert config.clusters.poolNameClusterMap["gpu"][1].weight == 99
    assert rainbow_section(config) is not None


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "{}", "---\n"])
def test_an_empty_file_is_the_default(text: str) -> None:
    assert read_config(text, where="f") == config_type()()
    assert Config().domain_names == {"development", "staging", "production"}


def mistakes(text: str) -> list[str]:
    with pytest.raises(Malformed) as caught:
        read_config(text, where="yard.yaml")
    head, *rest = caught.value.detail.split("\n")
    assert head.startswith("yard.yaml")
    assert caught.value.next_step
    return [line.removeprefix("  - ") for line in rest]


def test_all_mistakes_are_listed_at_once_with_their_places() -> None:
    listed = mistakes(
        """
colour: red
clusters:
  clusterConfigs: [{name: "bad name"}, {endpoint: x}, {name: ok, enabled: maybe}]
  poolNameClusterMap: {"bad pool": [{id: a, weight: -1}]}
queues: [{name: q, limits: {running: -5}, speed: 9}]
task_resources: {defaults: {cpu: [1]}, limitz: {}}
execution_config: {max_parallelism: many}
resourcemanager: {type: magic, resourceMaxQuota: -1}
rainbow: {}
"""
    )
    places = [
        "colour: unknown key",
        "clusters.clusterConfigs[0].name",
        "clusters.clusterConfigs[1].name: missing",
        "clusters.clusterConfigs[2].enabled",
        "(name 'bad pool')",
        "[0].weight",
        "poolNameClusterMap.bad pool: 'a' is not in clusterConfigs",
        "queues[0].limits.running",
        "queues[0].speed: unknown key",
        "task_resources.defaults.cpu",
        "task_resources.limitz: unknown key",
        "execution_config.max_parallelism",
        "resourcemanager.type",
        "resourcemanager.resourceMaxQuota",
        "rainbow.registration_secret: missing",
    ]
    for place in places:
        assert any(place in mistake for mistake in listed), (place, listed)
    assert len(listed) == len(places)


def test_an_unknown_key_is_told_the_known_ones() -> None:
    (mistake,) = mistakes("match: {engin: walk}\n")
    assert mistake == "match.engin: unknown key; known here: engine, allowed (line 1, column 9)"


@pytest.mark.parametrize("text", ["rainbow:\n", "rainbow: {registration_secret: '  '}\n", "rainbow: ~\nmatch: {}\n"])
def test_a_section_without_what_it_needs_is_a_mistake(text: str) -> None:
    (mistake,) = mistakes(text)
    assert "registration_secret" in mistake


@pytest.mark.parametrize("text", ["[]", "7", "just words", "clusters: []", "queues: {}", "domains: 7", "rainbow: yes"])
def test_a_section_of_the_wrong_shape_is_one_mistake(text: str) -> None:
    assert len(mistakes(text)) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("match: {engine: a\n", "line 2"),
        ("match: {}\nmatch: {}\n", "line 2, column 1: the field 'match' is given twice"),
        ("a: &x {}\nb: *x\n", "aliases"),
        ("[" * 500, "deep"),
    ],
)
def test_what_is_no_yaml_is_said_with_its_place(text: str, says: str) -> None:
    with pytest.raises(Malformed, match=says):
        read_config(text, where="yard.yaml")


def test_a_file_full_of_mistakes_is_not_listed_for_ever() -> None:
    assert len(mistakes("".join(f"key{number}: 1\n" for number in range(5000)))) <= 100


# --- the command line


def complaint(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == EXIT_USAGE
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "\nnext: " in said
    return said


def test_all_mistakes_of_the_settings_are_listed_at_once(capsys, tmp_path: Path) -> None:
    config = tmp_path / "yard.yaml"
    config.write_text("colour: red\nmatch: {engin: x}\nqueues: [{name: a}, {name: a}]\n", encoding="utf-8")
    said = complaint(
        capsys,
        *("--http", "0.0.0.0:99999", "--grpc", "nowhere", "--no-auth", "--tls-cert", str(tmp_path / "missing.pem")),
        *("--config", str(config), "--database", "mysql://x", "--data", str(tmp_path)),
    )
    options = ("--http", "--grpc", "--tls-cert: cannot read", "go together", "--database")
    for part in (*options, "colour", "engin", "'a' is given twice"):
        assert part in said, part


def test_mistakes_of_shape_hide_none_between_the_parts(capsys, tmp_path: Path) -> None:
    config = tmp_path / "yard.yaml"
    config.write_text(
        """\
clusters:
  clusterConfigs: [{name: a}, {name: a}]
  poolNameClusterMap: {main: [{id: a, weight: -1}]}
  defaultExecutionLabel: nope
  clusterPoolAssignments: {production: {pool: nopool}, nowhere: {pool: main}}
queues: [{name: q, speed: 9}, {name: q, attributes: [x]}]
domains: [{id: production, hue: 1, tags: [x, unknown]}]
selection: {name: nosel}
resourcemanager: {type: redis}
"""
    )
    said = complaint(capsys, "--config", str(config), "--data", str(tmp_path))
    for part in (
        "clusters.clusterConfigs: 'a' is given twice",
        "poolNameClusterMap.main[0].weight",
        "clusters.defaultExecutionLabel: labelClusterMap has no label 'nope' (line 4, column 3)",
        "there is no pool 'nopool'",
        "clusters.clusterPoolAssignments.nowhere: there is no such domain (line 5",
        "queues[0].speed",
        "queues: 'q' is given twice (line 6",
        "domains[0]",
        "nosel",
        "resourcemanager.redis.hostPaths",
    ):
        assert said.count(part) == 1, (part, said)
    assert "no pool 'main'" not in said
    assert "unknown tag" not in said


def test_the_number_of_mistakes_is_that_of_all_of_them(capsys, tmp_path: Path) -> None:
    config = tmp_path / "yard.yaml"
    config.write_text("match: {engin: x}\nclusters: {defaultExecutionLabel: nope}\nselection: {name: nosel}\n")
    said = complaint(capsys, "--config", str(config), "--data", str(tmp_path))
    assert f"{config} has 3 mistakes:" in said
    assert said.count("  - ") == 4, "one for the file"


def test_a_name_of_a_section_with_mistakes_is_not_called_unknown(capsys, tmp_path: Path) -> None:
    config = tmp_path / "yard.yaml"
    config.write_text("domains: [{id: moon, hue: 1}]\nclusters: {clusterPoolAssignments: {moon: {pool: p}}}\n")
    said = complaint(capsys, "--config", str(config), "--data", str(tmp_path))
    assert "domains[0]" in said
    assert "no such domain" not in said


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--http", "127.0.0.1"], "not HOST:PORT"),
        (["--http", ":8080"], "not HOST:PORT"),
        (["--http", "127.0.0.1:0"], "not HOST:PORT"),
        (["--http", "127.0.0.1:65536"], "not HOST:PORT"),
        (["--http", "127.0.0.1:80a"], "not HOST:PORT"),
        (["--http", "127.0.0.1:٨٠"], "not HOST:PORT"),
        (["--http", "0.0.0.0:8080", "--no-auth"], "loopback only"),
        (["--http", "[::]:8080", "--no-auth"], "loopback only"),
        (["--http", "example.org:8080", "--no-auth"], "loopback only"),
        (["--http", "127.0.0.1:8080", "--grpc", "0.0.0.0:9090", "--no-auth"], "--grpc is 0.0.0.0"),
        (["--tls-cert", __file__], "go together"),
        (["--tls-key", __file__], "go together"),
        (["--config", "/nonexistent/yard.yaml"], "cannot read"),
        (["--config", "/"], "cannot read"),
        (["--database", "oracle://x"], "sqlite:/// or postgresql://"),
    ],
)
def test_a_mistake_of_the_settings_stops_the_start(capsys, tmp_path: Path, argv: list[str], says: str) -> None:
    assert says in complaint(capsys, *argv, "--data", str(tmp_path / "data"))
    assert not (tmp_path / "data").exists()


def test_an_unknown_option_is_a_usage_error(capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--colour", "red"])
    assert caught.value.code == EXIT_USAGE


def test_addresses(tmp_path: Path) -> None:
    assert parse_address("127.0.0.1:8080") == ("127.0.0.1", 8080)
    assert parse_address("[::1]:8080") == ("::1", 8080)
    assert Settings(tmp_path, ("::1", 80), "sqlite:///x").url == "http://[::1]:80"
    assert Settings(tmp_path, ("h", 443), "sqlite:///x", tls_cert=Path("c")).url == "https://h:443"
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.evil.org", ""))


@pytest.mark.parametrize("deadline", ["0", "-1", "61", "soon", "2s"])
def test_a_deadline_for_quotes_is_some_seconds(deadline: str) -> None:
    (said,) = mistakes(f"selection: {{quote_deadline_s: {deadline}}}")
    assert said.startswith("selection.quote_deadline_s: ")
    assert read_config("selection: {quote_deadline_s: 1}", where="f").selection.quote_wait_us == 1_000_000
