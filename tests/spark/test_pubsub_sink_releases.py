"""`write` and `writeStream.format("pubsub")` on every release that has Python data sources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.integration.pubsub_world import World
from tests.spark.releases import ROOT, environment_of, run_module


@pytest.mark.long
@pytest.mark.parametrize("release", ["4.0.5", "4.1.4", "4.2.1", "4.3.0"])
def test_a_release_publishes_every_row(release: str, world: World, tmp_path: Path) -> None:
    topic, subscription = world.pair()
    given = json.dumps({**world.options, "topicId": topic})
    environment = environment_of(release, ROOT / "src")
    run_module("tests.spark.pubsub_sink_child", given, tmp_path, env=environment)
    rows = [json.loads(each.message.data) for each in world.pull(subscription, 200)]
    assert sorted(row["id"] for row in rows) == list(range(200))
    (seventh,) = [row for row in rows if row["id"] == 7]
    assert seventh == {
        "id": 7,
        "at": "2026-05-01T12:00:00.000000Z",
        "nested": {"d": "7.00", "a": [7], "m": {"k": 7}},
    }
