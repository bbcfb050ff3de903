"""Keep a table of totals per user up to date, exactly once, and read it while it changes.

pip install 'epochal[spark,delta]'
python examples/delta_table.py /tmp/totals
"""

import sys

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import epochal

home, spark = sys.argv[1], SparkSession.builder.master("local[2]").getOrCreate()
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 10
orders = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
totals = (
    orders.withColumn("user", F.col("value") % 5)
    .groupBy("user")
    .agg(F.count("*").alias("orders"), F.sum("value").alias("cents"))
)
query = (
    epochal.write_stream(totals)
    .format("delta")
    .outputMode("update")
    .option("mergeKeys", "user")  # a row replaces the earlier row of its user
    .option("checkpointLocation", f"{home}/checkpoint")
    .trigger(epoch="500 milliseconds")
    .start(f"{home}/table")
)
while rounds > 0 and not query.awaitTermination(1):
    if not DeltaTable.is_deltatable(f"{home}/table"):
        continue
    table = DeltaTable(f"{home}/table")  # any reader of Delta tables sees whole epochs
    rows = sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: row["user"])
    if rows:
        print(f"version {table.version()}:", [(row["user"], row["orders"]) for row in rows])
        rounds -= 1
query.stop()
