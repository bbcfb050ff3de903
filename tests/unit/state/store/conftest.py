"""Runs the tests of stores with rows in memory and with rows on disk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.state.stores import on_disk

from epochal.state.disk.local_database import MIN_MEMORY_BYTES, LocalDatabase


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDatabase]:
    opened = LocalDatabase(str(tmp_path_factory.mktemp("database")), MIN_MEMORY_BYTES)
    yield opened
    opened.close()


@pytest.fixture(params=["memory", "disk"])
def rows_in(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where the providers that `tests.unit.state.stores` makes keep their rows."""
    chosen = request.getfixturevalue("database") if request.param == "disk" else None
    token = on_disk.set(chosen)
    yield
    on_disk.reset(token)
