"""Read Avro orders from Kafka with a schema registry, check them, and write Avro, exactly once.

Orders that cannot be decoded, and orders without an amount, become dead letters.

pip install 'epochal[spark,kafka,registry]'
python examples/registry_orders.py BROKER:9092 http://REGISTRY:8081 /tmp/orders
"""

import sys

from pyspark.sql import SparkSession

import epochal

servers, registry, home = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").getOrCreate()
common = {"kafka.bootstrap.servers": servers, "schemaRegistry.url": registry, "valueFormat": "avro"}
orders = (
    epochal.read_stream(spark)
    .format("kafka")
    .options(subscribe="orders", startingOffsets="earliest", **common)
    .load()
)
checked = orders.select(
    "key",
    "struct(parsed.id, parsed.amount) AS value",
    "CASE WHEN parse_error IS NOT NULL THEN parse_error "
    "WHEN parsed.amount IS NULL THEN 'the order has no amount' END AS error",
)
query = (
    checked.write_stream.format("kafka")
    .options(topic="checked-orders", badRowColumn="error", **common)
    .options(onBadRow="deadLetter", deadLetterPath=f"{home}/dead-letters")
    .option("checkpointLocation", f"{home}/checkpoint")
    .trigger(epoch="200 milliseconds")
    .start()
)
query.await_termination()
