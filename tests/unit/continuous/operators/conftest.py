"""Runs the tests of stateful operators with state in memory and with state on disk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.continuous.operators.driving import on_disk

from epochal.continuous.operators import containers
from epochal.state.disk.local_database import MIN_MEMORY_BYTES, LocalDatabase


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDatabase]:
    opened = LocalDatabase(str(tmp_path_factory.mktemp("database")), MIN_MEMORY_BYTES)
    yield opened
    opened.close()


@pytest.fixture(params=["memory", "disk"])
def state_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where the operators of `Driver` keep their state. On disk they hold hardly any of it."""
    chosen = request.getfixturevalue("database") if request.param == "disk" else None
    monkeypatch.setattr(containers, "_MIN_VALUES", 2)
    monkeypatch.setattr(containers, "_MAX_RECENT", 3)
    token = on_disk.set(chosen)
    yield request.param
    on_disk.reset(token)
