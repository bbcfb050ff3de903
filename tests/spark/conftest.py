"""The Spark of two slots that most tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.spark.sessions import local_session

from epochal import streams


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return local_session()


@pytest.fixture
def nothing_left_running(spark: SparkSession) -> Iterator[None]:
    """Ends the continuous queries that a failed test leaves."""
    yield
    for query in streams(spark).active:
        query.stop()
