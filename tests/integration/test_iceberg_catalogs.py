"""The Iceberg sink with other catalogs and storages: a REST catalog, and tables on S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.iceberg_tables import SmallEngine, Warehouse, numbers
from tests.integration.test_iceberg_maintenance import EPOCHS, commit_all, maintenance_of, race
from tests.rigs.guarded_proxy import guarded_proxy
from tests.rigs.iceberg_rest import RestCatalog, running_rest_catalog
from tests.rigs.s3 import S3, running_s3

from epochal.errors import TableError

pytestmark = pytest.mark.timeout(900)  # the first test may fetch a server's many jars


@pytest.fixture(scope="module")
def rest() -> Iterator[RestCatalog]:
    with running_rest_catalog() as running:
        yield running


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with running_s3("tables") as running:
        yield running


@pytest.fixture(params=["rest", "s3"])
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Warehouse:
    if request.param == "rest":
        found: RestCatalog = request.getfixturevalue("rest")
        return Warehouse(tmp_path, found.settings)
    store: S3 = request.getfixturevalue("s3")
    settings = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{store.bucket}/{uuid4()}",
        "s3.endpoint": store.endpoint,
        "s3.access-key-id": store.access_key,
        "s3.secret-access-key": store.secret_key,
        "s3.region": "us-east-1",
    }
    return Warehouse(tmp_path, settings)


@pytest.fixture
def table() -> str:
    return f"db.t{uuid4().hex}"


def ids(warehouse: Warehouse, table: str) -> list[int]:
    return [row["id"] for row in warehouse.rows(table)]


def test_epochs_recovery_and_upkeep_are_as_on_local_disks(
    warehouse: Warehouse, tmp_path: Path, table: str
) -> None:
    options = warehouse.options(table)
    with SmallEngine(options, tmp_path / "checkpoint", partition_by=["v"]).started() as engine:
        for epoch in range(12):
            engine.run(epoch, numbers(epoch, text="one"))
        decided = engine.prepare(12, numbers(12, text="two"))
        engine.decide(12, decided)
        engine.prepare(13, numbers(99))
    with SmallEngine(options, tmp_path / "checkpoint", attempt=2) as engine:
        assert engine.start() == 13
        engine.run(13, numbers(13))
        more = {"compact": "true", "expireSnapshotsKeep": "1"}
        maintenance_of(warehouse, engine, table=table, **more).run_all()
        engine.run(14, numbers(14))
    assert ids(warehouse, table) == list(range(15))
    assert len(warehouse.named_files(table)) == 4
    assert len(warehouse.table(table).metadata.snapshots) <= 3


def test_two_drivers_commit_every_epoch_once(
    warehouse: Warehouse, tmp_path: Path, table: str
) -> None:
    race(warehouse.options(table), tmp_path / "checkpoint", commit_all)
    assert ids(warehouse, table) == [*range(EPOCHS), *([1000] * EPOCHS)]


def test_a_rest_catalog_that_denies_access_says_so_and_nothing_is_lost(
    rest: RestCatalog, tmp_path: Path, table: str
) -> None:
    denied = r"catalog tests denies access .*Check the settings catalog"
    with guarded_proxy(rest.settings["uri"], "Bearer right-token") as proxy:
        settings = {"type": "rest", "uri": proxy.url, "token": "right-token"}
        warehouse = Warehouse(tmp_path, settings)
        for token in ("", "wrong-token"):
            options = {**warehouse.options(table), "catalog.token": token}
            options = {key: text for key, text in options.items() if text}
            with pytest.raises(TableError, match=denied) as told:
                SmallEngine(options, tmp_path / "checkpoint")
            assert "wrong-token" not in str(told.value)
        with SmallEngine(warehouse.options(table), tmp_path / "checkpoint").started() as engine:
            engine.run(0, numbers(1))
            messages = engine.prepare(1, numbers(2))
            engine.decide(1, messages)
            proxy.authorization = "Bearer another"
            with pytest.raises(TableError, match=denied) as told:
                engine.finish(1, messages)
            assert "right-token" not in str(told.value)
            proxy.authorization = "Bearer right-token"
            engine.finish(1, messages)
        assert ids(warehouse, table) == [1, 2]
