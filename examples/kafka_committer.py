"""A Spark query over Kafka that shows its position and lag to every Kafka tool.

pip install 'epochal[spark,kafka]'
spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0 \
    examples/kafka_committer.py broker:9092 /tmp/orders
kafka-consumer-groups.sh --bootstrap-server broker:9092 --describe --group orders-query
epochal kafka lag --checkpoint /tmp/orders/checkpoint --bootstrap-servers broker:9092
"""

import sys

from pyspark.sql import SparkSession

import epochal.kafka

broker, home = sys.argv[1:]
spark = SparkSession.builder.appName("orders").getOrCreate()

spark.streams.addListener(epochal.kafka.OffsetCommitter())

orders = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", broker)
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .option("kafka.consumer.commit.groupid", "orders-query")  # the group that shows this source
    .load()
)
query = (
    orders.selectExpr("CAST(key AS string) AS customer", "CAST(value AS string) AS payload")
    .writeStream.format("parquet")
    .option("checkpointLocation", f"{home}/checkpoint")
    .trigger(processingTime="1 second")
    .start(f"{home}/orders")
)
query.awaitTermination()
