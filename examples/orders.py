"""Read orders from Pub/Sub and write a running total per customer to Parquet, exactly once.

pip install 'epochal[spark,pubsub]'
epochal pubsub serve --project demo --subscription orders-sub:orders
PUBSUB_EMULATOR_HOST=127.0.0.1:8085 python examples/orders.py /tmp/orders

It waits for messages in the topic orders: {"order_id": 1, "customer": "ada", "cents": 250}.
The page docs/tutorial-pubsub.md shows how to publish some.
"""

import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import epochal

TOTAL = "customer string, order_id bigint, orders bigint, cents bigint"
Total = Row("customer", "order_id", "orders", "cents")


class RunningTotal(StatefulProcessor):
    """PySpark's own class: it also runs unchanged in micro-batch mode."""

    def init(self, handle: Any) -> None:
        self._total = handle.getValueState("total", "orders bigint, cents bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        orders, cents = self._total.get() if self._total.exists() else (0, 0)
        for row in rows:
            orders, cents = orders + 1, cents + row.cents
            yield Total(key[0], row.order_id, orders, cents)
        self._total.update((orders, cents))


home, spark = sys.argv[1], SparkSession.builder.master("local[2]").getOrCreate()
source = (
    epochal.read_stream(spark)
    .format("pubsub")
    .options(projectId="demo", subscriptionId="orders-sub", delivery="exactly-once", parse="json")
)
orders = source.option("parseSchema", "order_id bigint, customer string, cents bigint").load()
totals = orders.select("parsed.order_id", "parsed.customer", "parsed.cents").transform_with_state(
    RunningTotal(), key=["customer"], output=TOTAL
)
writer = totals.write_stream.format("parquet").option("checkpointLocation", f"{home}/checkpoint")
writer.trigger(epoch="200 milliseconds").start(f"{home}/totals").await_termination()
