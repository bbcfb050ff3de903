"""Keep a table of totals per user up to date in PostgreSQL, exactly once.

pip install 'epochal[spark,postgres]'
mkdir -p /tmp/totals/orders
PGPASSWORD=... python examples/postgres_table.py postgresql://app@localhost:5432/sales /tmp/totals

It reads JSON files from /tmp/totals/orders: {"user": "ada", "cents": 250}. Watch the table with
psql -c 'SELECT * FROM user_totals' while you add files. Stop it, kill it, start it again: the
totals stay right.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import epochal

url, home, *options = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").getOrCreate()
orders = spark.readStream.schema("user string, cents bigint").json(f"{home}/orders")
totals = orders.groupBy("user").agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))
writer = (
    epochal.write_stream(totals)
    .format("postgres")
    .outputMode("update")
    .options(
        url=url, dbtable="user_totals", mergeKeys="user", checkpointLocation=f"{home}/checkpoint"
    )
)
once = "--once" in options
writer = writer.trigger(availableNow=True) if once else writer.trigger(epoch="200 milliseconds")
writer.start().awaitTermination()
