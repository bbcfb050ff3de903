"""A stream without a session goes on from a checkpoint that Spark has written."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.golden.library import Golden, unpack

from epochal import testing


@pytest.mark.parametrize("release", ["3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0"])
def test_pairs_that_spark_has_seen_are_dropped(release: str, tmp_path: Path) -> None:
    place = unpack(Golden(release, "dedup"), tmp_path)
    pairs = testing.stream("k string, r bigint")
    driver = testing.Driver(pairs.drop_duplicates(), checkpoint=place.checkpoint)
    seen = [(row["k"], row["r"]) for row in place.facts["output"]]
    assert sorted(driver.state()) == sorted(seen)
    driver.feed([*seen, ("k0", 1_000)])
    assert driver.run() == [{"k": "k0", "r": 1_000}]
    assert min(driver.output_by_epoch) == max(place.facts["commits"]) + 1
    driver.restart()
    driver.feed([("k0", 1_000)])
    assert driver.run() == []
