"""The ground under all resume tests: an untouched checkpoint, moved elsewhere, ends as it did."""

from pathlib import Path
from typing import Any

import pytest
from tests.golden.library import Golden, cases, facts, unpack
from tests.spark.releases import RELEASES, resume

EVERYDAY = ("windowed", "join_outer", "file_sink", "interrupted", "rocksdb_changelog")


def assert_undisturbed(goldens: list[Golden], directory: Path) -> None:
    places = [unpack(golden, directory / golden.case, relocate=True) for golden in goldens]
    resumed = resume(goldens[0].release, places)
    for place, query in zip(places, resumed, strict=True):
        assert query.query_id == place.facts["query_id"]
        assert _batches(query.progress) == _batches(place.facts["undisturbed"]["progress"])
        assert query.output == place.facts["undisturbed"]["output"]


@pytest.mark.parametrize(
    "release",
    [
        pytest.param(release, marks=() if release == RELEASES[-1] else pytest.mark.long)
        for release in RELEASES
    ],
)
def test_a_query_moved_to_another_directory_ends_as_the_undisturbed_one(
    release: str, tmp_path: Path
) -> None:
    assert_undisturbed([Golden(release, case) for case in EVERYDAY], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("release", RELEASES)
def test_every_resumable_query_ends_as_the_undisturbed_one(release: str, tmp_path: Path) -> None:
    resumable = [golden for golden in cases(release=release) if facts(golden)["resumable"]]
    assert_undisturbed(resumable, tmp_path)


def _batches(progress: list[dict[str, Any]]) -> list[tuple[int, list[Any], list[Any]]]:
    """What was read and what state became of it. The sources' descriptions name directories."""
    return [
        (
            batch["batchId"],
            [(source["startOffset"], source["endOffset"]) for source in batch["sources"]],
            batch["stateOperators"],
        )
        for batch in progress
    ]
