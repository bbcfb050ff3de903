"""Run by a released PySpark: writes to a topic as a batch and as a stream.

The process has that release first on its path, so nothing here may use what only newer ones have.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from epochal.connectors.pubsub.data_source.register import register


def main(given: str, home: str) -> None:
    options = json.loads(given)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "Asia/Tokyo")
        .getOrCreate()
    )
    register(spark)
    frame = spark.range(100).selectExpr(
        "id",
        "timestamp '2026-05-01 21:00:00' at",
        "named_struct('d', cast(id as decimal(9,2)), 'a', array(id), 'm', map('k', id)) nested",
    )
    frame.write.format("pubsub").options(**options).mode("append").save()
    frame.selectExpr("id + 100 as id").write.parquet(f"{home}/in")
    query = (
        spark.readStream.schema("id long")
        .parquet(f"{home}/in")
        .writeStream.format("pubsub")
        .options(**options, epochAttributes="true")
        .option("checkpointLocation", f"{home}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(240)
    error = query.exception()
    if error is not None:
        raise error
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
