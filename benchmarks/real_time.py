"""Spark's real-time mode with a Python operator, which it allows only with its allowlist off.

Kafka is the only source of this mode that can carry timestamped rows. So its delays include two
passes through a broker on loopback, a few milliseconds. The settings are those with the lowest
delays: pipelined operators, one record per batch, tiny buffers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from benchmarks.due_rows import SECOND
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from epochal.testing.kafka import connector_jars, running_kafka

IN, OUT = "due", "seen"
PARTITIONS = 2
START_SECONDS = 120
SETTINGS = {
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
    "spark.python.udf.pipelined.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    "spark.sql.execution.pandas.udf.buffer.size": "16",
}


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def delays_ms(rate: int, warm_up_seconds: float, measured_seconds: float, at: str) -> Any:
    """Return how long each row took from when it was due until the output topic had it."""
    with running_kafka() as broker:
        servers = broker.bootstrap_servers
        topics = [NewTopic(IN, PARTITIONS), NewTopic(OUT, PARTITIONS)]
        admin = AdminClient({"bootstrap.servers": servers})
        for made in admin.create_topics(topics).values():
            made.result()
        query = _query(servers, at)
        stop, runs = threading.Event(), threading.Event()
        producer = threading.Thread(target=_produce, args=(servers, rate, runs, stop))
        producer.start()
        try:
            return _consume(servers, warm_up_seconds, measured_seconds, runs)
        finally:
            stop.set()
            producer.join()
            failure = query.exception()
            query.stop()
            if failure is not None:
                raise SystemExit(f"real-time mode failed: {failure}")


def _query(servers: str, at: str) -> Any:
    builder = SparkSession.builder.master(f"local[{PARTITIONS}]").config(
        "spark.ui.enabled", "false"
    )
    builder = builder.config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.jars", ",".join(str(jar) for jar in connector_jars()))
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    frame = reader.option("subscribe", IN).load().select("value").mapInArrow(same, "value binary")
    writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", servers)
    writer = writer.option("topic", OUT).option("checkpointLocation", at).outputMode("update")
    return writer.trigger(realTime="5 seconds").start()


def _produce(servers: str, rate: int, runs: threading.Event, stop: threading.Event) -> None:
    """Send an occasional row until one comes out, so that the start leaves no backlog."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    while not runs.wait(0.2) and not stop.is_set():
        producer.produce(IN, str(time.time_ns()).encode(), partition=0)
        producer.flush(10)
    start, sent = time.time_ns(), 0
    while not stop.wait(0.001):
        due = (time.time_ns() - start) * rate // SECOND
        for number in range(sent, due):
            stamp = start + number * SECOND // rate
            producer.produce(IN, str(stamp).encode(), partition=number % PARTITIONS)
        sent = due
        producer.poll(0)
    producer.flush(10)


def _consume(
    servers: str, warm_up_seconds: float, measured_seconds: float, runs: threading.Event
) -> Any:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "witness", "fetch.wait.max.ms": 5}
    )
    consumer.assign([TopicPartition(OUT, number, 0) for number in range(PARTITIONS)])
    deadline = time.monotonic() + START_SECONDS
    begin: float | None = None
    found: list[float] = []
    try:
        while begin is None or time.monotonic() < begin + measured_seconds:
            messages = consumer.consume(1000, timeout=0.05)
            now = time.time_ns()
            if begin is None and messages:
                begin = time.monotonic() + warm_up_seconds
                runs.set()
            if begin is None and time.monotonic() > deadline:
                raise SystemExit(f"No row came out of real-time mode within {START_SECONDS} s.")
            if begin is not None and time.monotonic() >= begin:
                found += [(now - int(message.value())) / 1e6 for message in messages]
    finally:
        consumer.close()
    return np.array(found)
