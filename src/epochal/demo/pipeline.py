"""The demo's query: orders from Pub/Sub or Kafka, a running total per customer, and its outputs.

`examples/orders.py` shows the same query as a user would write it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import epochal
from epochal.checkpoint import FileSinkLog
from epochal.connectors.file.file_names import spark_pattern
from epochal.demo.orders import PROJECT, SUBSCRIPTION, TOPIC
from epochal.files import local_path

ORDER = "order_id bigint, customer string, cents bigint"
TOTAL = (
    "customer string, order_id bigint, orders bigint, cents bigint, "
    "publish_time timestamp, totalled_at timestamp"
)
Totalled = Row("customer", "order_id", "orders", "cents", "publish_time", "totalled_at")
EPOCH = "200 milliseconds"


@dataclass(frozen=True, slots=True)
class DemoBroker:
    kind: Literal["pubsub", "kafka"]
    address: str

    @property
    def totals_operator(self) -> int:
        """The number of the operator that keeps the totals.

        With Pub/Sub, operator 0 drops redelivered messages.
        """
        return 1 if self.kind == "pubsub" else 0


class RunningTotal(StatefulProcessor):  # type: ignore[misc]
    """Counts and sums the orders of each customer. Emits one row per order."""

    def init(self, handle: Any) -> None:
        self._total = handle.getValueState("total", "orders bigint, cents bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        orders, cents = self._total.get() if self._total.exists() else (0, 0)
        for row in rows:
            orders, cents = orders + 1, cents + row.cents
            yield Totalled(key[0], row.order_id, orders, cents, row.publish_time, datetime.now(UTC))
        self._total.update((orders, cents))


def start_query(
    spark: SparkSession, broker: DemoBroker, table: str, output: str, checkpoint: str
) -> Any:
    orders = _from_kafka(spark, broker) if broker.kind == "kafka" else _from_pubsub(spark, broker)
    totals = orders.transform_with_state(RunningTotal(), key=["customer"], output=TOTAL)
    return (
        totals.write_stream.format(table)
        .query_name("orders")
        .option("checkpointLocation", checkpoint)
        .option("parallelism", 2)
        .trigger(epoch=EPOCH)
        .start(output)
    )


def _from_pubsub(spark: SparkSession, broker: DemoBroker) -> Any:
    return (
        epochal.read_stream(spark)
        .format("pubsub")
        .option("emulatorHost", broker.address)
        .option("projectId", PROJECT)
        .option("subscriptionId", SUBSCRIPTION)
        .option("delivery", "exactly-once")
        .option("ackDeadline", "10 seconds")  # then messages of a killed worker are redelivered
        .option("parse", "json")
        .option("parseSchema", ORDER)
        .load()
        .select("parsed.order_id", "parsed.customer", "parsed.cents", "publish_time")
    )


def _from_kafka(spark: SparkSession, broker: DemoBroker) -> Any:
    return (
        epochal.read_stream(spark)
        .format("kafka")
        .option("kafka.bootstrap.servers", broker.address)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
        .map_in_arrow(parse_orders, f"{ORDER}, publish_time timestamp")
    )


def parse_orders(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import io

    from pyarrow import json

    names = ["order_id", "customer", "cents"]
    types = [pa.int64(), pa.string(), pa.int64()]
    schema = pa.schema([pa.field(name, kind) for name, kind in zip(names, types, strict=True)])
    options = json.ParseOptions(explicit_schema=schema)
    for batch in batches:
        values: list[Any] = batch.column("value").to_pylist()
        table = json.read_json(io.BytesIO(b"\n".join(values)), parse_options=options)
        columns = [table.column(name).combine_chunks() for name in names]
        times = batch.column("timestamp").cast(pa.timestamp("us", "UTC"))
        yield pa.record_batch([*columns, times], names=[*names, "publish_time"])


class ParquetTotals:
    """The output of the query as files."""

    counted_by = "counted by Spark in the Parquet files"
    """What reads the output at the end, for people."""

    def __init__(self, path: str) -> None:
        self._path = path

    def files(self) -> list[str]:
        """The Parquet files that are visible now."""
        log = FileSinkLog(f"{self._path}/_spark_metadata", read_only=True)
        return [local_path(file.path) for file in log.all_files()]

    def read(self, spark: Any, columns: list[str]) -> pa.Table:
        paths = map(spark_pattern, self.files())
        table: pa.Table = spark.read.parquet(*paths).select(*columns).toArrow()
        return table


class DeltaTotals:
    """The output of the query as a table."""

    counted_by = "counted in the files that the Delta table names"

    def __init__(self, path: str) -> None:
        self._path = path

    def files(self) -> list[str]:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self._path):
            return []
        return [local_path(uri) for uri in DeltaTable(self._path).file_uris()]

    def read(self, spark: Any, columns: list[str]) -> pa.Table:
        # Read without deltalake: its own reader now and then aborts the process at its end.
        del spark
        return pa.concat_tables([pq.read_table(path, columns=columns) for path in self.files()])


TotalsOutput: TypeAlias = ParquetTotals | DeltaTotals
OUTPUTS: dict[str, type[ParquetTotals] | type[DeltaTotals]] = {
    "parquet": ParquetTotals,
    "delta": DeltaTotals,
}
