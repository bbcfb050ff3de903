"""`epochal.register(spark)` registers the Pub/Sub data source with a session.

Note: Spark creates data sources in processes that have no session, so `spark.pubsub.*` is copied
from the session's conf here, and so is PUBSUB_EMULATOR_HOST. Register again after changing either.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from epochal.connectors.pubsub.data_source.spark_sink import SparkPubSubWriters
from epochal.connectors.pubsub.data_source.spark_source import SparkPubSubReaders
from epochal.connectors.pubsub.pubsub_options import CONF_PREFIX, EMULATOR
from epochal.connectors.worker_python import check_here, worker_python
from epochal.rpc.server import driver_address


class PubSubDataSource(SparkPubSubReaders, SparkPubSubWriters, DataSource):  # type: ignore[misc]
    """`format("pubsub")`."""

    conf: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def name(cls) -> str:
        return "pubsub"


def register(spark: SparkSession) -> None:
    """Register `format("pubsub")` for `readStream`, `write` and `writeStream`."""
    settings = dict(spark.conf.getAll)
    conf = {key: text for key, text in settings.items() if key.startswith(CONF_PREFIX)}
    address = driver_address(settings)
    defaults = {
        "driverHost": address.host if settings.get("spark.driver.host") else None,
        "driverBindHost": address.bind,
        "emulatorHost": os.environ.get(EMULATOR),
    }
    set_keys = {key.lower() for key in conf}
    for name, text in defaults.items():
        if text and f"{CONF_PREFIX}{name}".lower() not in set_keys:
            conf[f"{CONF_PREFIX}{name}"] = text
    source = type("PubSubDataSource", (PubSubDataSource,), {"conf": conf})
    # A session of Spark Connect has no context: its server chooses the interpreter.
    sc = getattr(spark, "_sc", None)
    if sc is None:
        spark.dataSource.register(source)
        return
    with worker_python(sc) as python:
        check_here(python)  # Spark plans reads and writes with it, on the driver's host
        spark.dataSource.register(source)
