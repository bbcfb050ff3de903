"""One Spark session with Spark's Kafka connector, shared by all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.spark.sessions import end_jvm
from tests.spark.sessions import session as new_session

from epochal.testing.kafka import connector_jars


@pytest.fixture(scope="session")
def kafka_spark() -> Iterator[SparkSession]:
    end_jvm()
    session = new_session("local[2]", spark__jars=",".join(map(str, connector_jars())))
    session.sparkContext.setLogLevel("ERROR")
    yield session
    end_jvm()
