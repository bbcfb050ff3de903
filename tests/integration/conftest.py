"""One broker and one Spark session with Spark's Kafka connector, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.jvm import end_jvm

from epochal.testing.kafka import Kafka, connector_jars, running_kafka


@pytest.fixture(scope="session")
def broker() -> Iterator[Kafka]:
    with running_kafka() as running:
        yield running


@pytest.fixture(scope="session")
def kafka_spark() -> Iterator[SparkSession]:
    end_jvm()
    jars = ",".join(str(jar) for jar in connector_jars())
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
