"""The Spark of two slots that most tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from pyspark.sql import SparkSession
from tests.spark.sessions import local_session

from epochal import streams, testing

Make: TypeAlias = Callable[..., testing.Driver]
"""Makes the driver of a query."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests that need a cluster come last: they end the Spark that the others share."""
    items.sort(key=lambda item: item.path.name == "test_state_placement.py")


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return local_session()


@pytest.fixture(params=[testing.Driver, testing.SparkDriver], ids=["driver", "session"])
def driven(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[Make]:
    """Makes drivers of queries, which run in memory or on the session, and closes them."""
    del spark  # both find it
    made: list[Any] = []

    def make(query: Any, **options: Any) -> Any:
        made.append(request.param(query, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def nothing_left_running(spark: SparkSession) -> Iterator[None]:
    """Ends the continuous queries that a failed test leaves."""
    yield
    for query in streams(spark).active:
        query.stop()
