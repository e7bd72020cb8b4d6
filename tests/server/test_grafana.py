"""The dashboard and the alerts name only metrics that a server exports, by labels that those have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from switchyard.server.metrics import Metrics
from tests.service.rig import Rig

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "grafana"
DASHBOARD = json.loads((FOLDER / "switchyard-routing.json").read_text(encoding="utf-8"))
NAME = re.compile(r"\b((?:switchyard|process|python)_[a-z_]+)(?:\{([^}]*)\})?")
LABEL = re.compile(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"')
BY = re.compile(r"by \(([^)]*)\)")
ADDED = {"instance", "job", "le"}  # by Prometheus, and by histograms


def expressions() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]
    for group in yaml.safe_load((FOLDER / "switchyard-alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Every series a server can export, with its labels."""
    folder = tmp_path_factory.mktemp("metrics")
    rig = Rig(f"sqlite:///{folder / 'yard.db'}", folder)
    try:
        text = Metrics(rig.yard).text().decode()
        labels_by_name: dict[str, set[str]] = {}
        for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
            suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            labels_by_name |= {name + suffix: set() for suffix in suffixes}
        for name, labels in re.findall(r"^([a-z_]+)(?:\{(.*)\})? ", text, re.MULTILINE):
            labels_by_name.setdefault(name, set()).update(re.findall(r'([a-z_]+)="', labels))
        for metric in Metrics(rig.yard).collect():
            for name in labels_by_name:
                if name == metric.name or name.startswith(f"{metric.name}_"):
                    labels_by_name[name] |= set(getattr(metric, "_labelnames", ()))
        return labels_by_name
    finally:
        rig.close()


@pytest.mark.parametrize(("where", "expr"), list(expressions()))
def test_every_expression_names_what_is_exported(exported: dict[str, set[str]], where: str, expr: str) -> None:
    named = NAME.findall(expr)
    assert named, f"{where}: {expr}"
    for name, selector in named:
        assert name in exported, f"{where}: {name} is not exported"
        unknown = set(LABEL.findall(selector)) - exported[name] - ADDED
        assert not unknown, f"{where}: {name} has no label {unknown}"
    grouped = {label.strip() for group in BY.findall(expr) for label in group.split(",")}
    assert grouped <= ADDED.union(*(exported[name] for name, _ in named)), where


def test_the_dashboard_has_the_form_that_grafana_reads() -> None:
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {panel["type"] for panel in panels} <= {"timeseries", "stat"}
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for target in panel["targets"]:
            assert target["expr"].count("(") == target["expr"].count(")")
            assert target["datasource"]["uid"] == "${datasource}"
    titles = " ".join(panel["title"] for panel in panels).lower()
    for word in ("decisions", "pending by reason", "refusals", "quote error", "decision time", "queue use"):
        assert word in titles


def test_the_samples_are_yaml_of_the_right_form() -> None:
    providers = yaml.safe_load((FOLDER / "provisioning/dashboards/switchyard.yaml").read_text())
    assert providers["apiVersion"] == 1
    assert providers["providers"][0]["options"]["path"]
    sources = yaml.safe_load((FOLDER / "provisioning/datasources/prometheus.yaml").read_text())
    assert sources["datasources"][0]["type"] == "prometheus"
    scrape = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    assert scrape["scrape_configs"][0]["authorization"]["credentials_file"]
    assert (FOLDER / scrape["rule_files"][0]).is_file()
