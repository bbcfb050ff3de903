"""Pins the public API. A change here affects users and belongs in the CHANGELOG."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

SURFACE = {
    "epochal": [
        "__version__",
        "check",
        "explain",
        "map_partitions_with_state_store",
        "read_state",
        "read_state_changes",
        "read_stream",
        "register",
        "streams",
        "write_stream",
    ],
    "epochal.checkpoint": [
        "Checkpoint",
        "CommitLog",
        "FileSinkLog",
        "FileSourceLog",
        "MetadataLog",
        "OffsetLog",
    ],
    "epochal.connectors.contract": [
        "AcknowledgingReader",
        "ReaderFactory",
        "Sink",
        "SinkWriter",
        "Source",
        "SourceReader",
        "WriterContext",
        "WriterFactory",
    ],
    "epochal.connectors.formats": ["SinkFormat", "SinkRequest"],
    "epochal.connectors.generator": ["GeneratorSource"],
    "epochal.continuous": ["session", "sliding", "tumbling"],
    "epochal.continuous.api.dataframe_writer": ["DataFrameWriter"],
    "epochal.continuous.api.query_handle": ["StreamingQuery"],
    "epochal.continuous.api.query_manager": ["StreamingQueryManager"],
    "epochal.continuous.api.readwriter": ["StreamReader", "StreamWriter"],
    "epochal.continuous.api.stream": ["GroupedStream", "Stream"],
    "epochal.epoch.contract": ["CommittedSink", "LoggedSource"],
    "epochal.kafka": ["KafkaGroup", "OffsetCommitter"],
    "epochal.metrics.logs": ["JsonFormatter"],
    "epochal.testing": [
        "Driver",
        "FuzzError",
        "SparkDriver",
        "frame",
        "rows",
        "rows_equal",
        "stream",
    ],
    "epochal.state": [
        "HDFSBackedStateStoreProvider",
        "PreparedVersion",
        "ReadStateStore",
        "RocksDBStateStoreProvider",
        "StateStore",
        "StateStoreConf",
        "StateStoreId",
        "StateStoreProvider",
        "StateStoreProviderId",
        "StructType",
        "parse_schema",
    ],
}
"""Every public module with all its public names."""

RE_EXPORTING = [
    "epochal",
    "epochal.checkpoint",
    "epochal.continuous",
    "epochal.kafka",
    "epochal.state",
    "epochal.testing",
]
"""The modules that exist only for their public names."""


@pytest.mark.parametrize("module", sorted(SURFACE))
def test_every_public_name_exists(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in SURFACE[module] if not hasattr(found, name)] == []


def test_state_still_has_the_names_that_were_published_there_first() -> None:
    import epochal
    import epochal.state as first

    for name in ("map_partitions_with_state_store", "read_state", "read_state_changes"):
        assert getattr(first, name) is getattr(epochal, name)


@pytest.mark.parametrize("module", RE_EXPORTING)
def test_a_module_exports_its_public_names_and_nothing_else(module: str) -> None:
    assert sorted(importlib.import_module(module).__all__) == SURFACE[module]


def test_the_reference_documents_the_public_names_and_nothing_else() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    documented = sorted(re.findall(r"^### `(.+)`$", page, re.M))
    public = [f"{module}.{name}" for module, names in SURFACE.items() for name in names]
    assert documented == sorted(set(public) - {"epochal.__version__"})


@pytest.mark.parametrize(
    "module", ["epochal.checkpoint", "epochal.continuous", "epochal.kafka", "epochal.state"]
)
def test_dir_shows_exactly_the_public_names(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in dir(found) if not name.startswith("__")] == sorted(found.__all__)


@pytest.mark.parametrize(
    ("imports", "modules"),
    [("epochal", []), ("epochal.state.store.conf", ["checkpoint", "errors", "state"])],
)
def test_dir_of_the_package_shows_calls_and_imported_public_modules(
    imports: str, modules: list[str]
) -> None:
    program = f"import epochal, {imports}; print(*dir(epochal))"
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    public = [name for name in shown if not name.startswith("__")]
    calls = [name for name in SURFACE["epochal"] if name != "__version__"]
    assert public == sorted([*calls, *modules])
    assert "__version__" in shown
