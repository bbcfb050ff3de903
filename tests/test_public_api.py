"""Pins the public API. A change here affects users and belongs in the CHANGELOG."""

from __future__ import annotations

import importlib

import pytest

SURFACE = {
    "epochal": ["__version__", "read_stream", "register", "streams"],
    "epochal.checkpoint": [
        "Checkpoint",
        "CommitLog",
        "FileSinkLog",
        "FileSourceLog",
        "MetadataLog",
        "OffsetLog",
    ],
    "epochal.kafka": ["KafkaGroup", "OffsetCommitter"],
    "epochal.state": [
        "HDFSBackedStateStoreProvider",
        "StateStoreConf",
        "StateStoreId",
        "map_partitions_with_state_store",
        "read_state",
    ],
}


@pytest.mark.parametrize("module", sorted(SURFACE))
def test_the_promised_names_are_there(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in SURFACE[module] if not hasattr(found, name)] == []


@pytest.mark.parametrize("module", sorted(SURFACE))
def test_everything_exported_exists(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in found.__all__ if not hasattr(found, name)] == []
    assert set(SURFACE[module]) <= set(found.__all__)
