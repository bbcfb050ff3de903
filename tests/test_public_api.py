"""The public surface, pinned: a change here is a change for users and belongs in the CHANGELOG."""

from __future__ import annotations

import importlib
import subprocess
import sys

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


@pytest.mark.parametrize(
    "module", ["epochal.checkpoint", "epochal.continuous", "epochal.kafka", "epochal.state"]
)
def test_dir_shows_exactly_the_public_names(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in dir(found) if not name.startswith("__")] == sorted(found.__all__)


@pytest.mark.parametrize(
    ("imports", "modules"), [("epochal", []), ("epochal.state.store.ids", ["state"])]
)
def test_dir_of_the_package_shows_calls_and_imported_public_modules(
    imports: str, modules: list[str]
) -> None:
    program = f"import epochal, {imports}; print(*dir(epochal))"
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    public = [name for name in shown if not name.startswith("__")]
    assert public == sorted(["read_stream", "register", "streams", *modules])
    assert "__version__" in shown
