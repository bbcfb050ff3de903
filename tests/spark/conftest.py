"""The Spark of two slots that most tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.spark.sessions import local_session

from epochal import streams


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests that need a cluster come last: they end the Spark that the others share."""
    items.sort(key=lambda item: item.path.name == "test_state_placement.py")


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return local_session()


@pytest.fixture
def nothing_left_running(spark: SparkSession) -> Iterator[None]:
    """Ends the continuous queries that a failed test leaves."""
    yield
    for query in streams(spark).active:
        query.stop()
