"""One Spark session with Spark's Kafka connector, shared by all tests of this folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.jvm import end_jvm

from epochal.testing.kafka import connector_jars


@pytest.fixture(scope="session")
def kafka_spark() -> Iterator[SparkSession]:
    end_jvm()
    os.environ["PYSPARK_PYTHON"] = sys.executable
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
    end_jvm()  # a test may have replaced the JVM
