"""The config sections `moving` and `spill`, and sticky pools: what they say, and every mistake in them at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.errors import EXIT_USAGE, Malformed
from switchyard.route.moving import MovingSettings
from switchyard.server.commands.command import main
from switchyard.server.config.config import Config, read_config
from switchyard.server.config.platform_config import layout_of, platform_of

POOLS = "clusters: {clusterConfigs: [{name: a}], poolNameClusterMap: {main: [{id: a}], burst: [{id: a}]}"


def test_what_the_sections_say() -> None:
    text = POOLS + (
        ", stickyPools: [main]}\n"
        "moving: {idle_takes_after: 5m, rest: 90, gain: 2m, gain_cost: 0.5, gain_share: 0.1}\n"
        "spill: {default: [reject after 7d], pools: {main: [after 10m try pool burst, reject after 24h]}}\n"
    )
    config = read_config(text, where="yard.yaml")
    assert config.moving.terms == MovingSettings(300_000_000, 90_000_000, 120, 0.5, 0.1)
    assert layout_of(config).sticky == ["main"]
    rules = {"": ("reject after 7d",), "main": ("after 10m try pool burst", "reject after 24h")}
    assert platform_of(config).spill == rules


def test_without_them_an_idle_cluster_takes_over_after_half_a_minute_and_nothing_spills() -> None:
    assert Config().moving.terms == MovingSettings()
    assert MovingSettings().idle_after_us == 30_000_000
    assert platform_of(Config()).spill == {}
    assert read_config("moving: {idle_takes_after: never}", where="x").moving.terms.idle_after_us is None


BAD = [
    ("moving: {idle_takes_after: soon}", "moving: 'soon' is not a duration"),
    ("moving: {idle_takes_after: 0}", "moving.idle_takes_after: "),
    ("moving: {gain_share: 2}", "moving.gain_share: "),
    ("moving: {gain_cost: -1}", "moving.gain_cost: "),
    ("moving: {gains: 1}", "moving.gains: unknown key; known here: idle_takes_after, "),
    ("spill: [reject after 1h]", "spill: "),
    ("spill: {default: [whenever]}", "spill: default: 'whenever' is not a spill rule"),
    ("spill: {pools: {a: [reject after x]}}", "spill: pools.a: 'reject after x': 'x' is not a duration"),
    ("spill: {queues: {}}", "spill.queues: unknown key; known here: default, pools"),
    ("clusters: {stickyPools: main}", "clusters.stickyPools: "),
]


@pytest.mark.parametrize(("text", "says"), BAD)
def test_a_mistake_is_said_with_its_place(text: str, says: str) -> None:
    with pytest.raises(Malformed) as raised:
        read_config(text, where="yard.yaml")
    assert says in raised.value.detail


def test_every_pool_that_is_not_there_is_said_at_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = POOLS + (
        ", stickyPools: [glue]}\n"
        "spill: {default: [after 1m try pool mars], pools: {main: [after 1m try pool venus], moon: []}}\n"
    )
    (tmp_path / "yard.yaml").write_text(text)
    argv = ["--data", str(tmp_path), "--http", "127.0.0.1:1", "--config", str(tmp_path / "yard.yaml")]
    assert main(argv) == EXIT_USAGE
    said = capsys.readouterr().err
    for mistake in (
        "spill.default: there is no pool 'mars'",
        "spill.pools.main: there is no pool 'venus'",
        "spill.pools: there is no pool 'moon'",
        "clusters.stickyPools: there is no pool 'glue'",
    ):
        assert mistake in said, said
