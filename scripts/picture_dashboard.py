"""Takes the pictures of docs/dashboard.md from the real thing: `make pictures`.

It starts a Kafka broker, Spark, a Structured Streaming query and a continuous query, kills a worker
of the latter, breaks copies of checkpoints, runs `epochal dashboard` over all of it, and takes
screenshots with a headless browser. It takes about two minutes.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import SparkSession, functions
from tests.kafka_topics import create_topic
from tests.rigs.browser import Page, running_browser, violations
from tests.rigs.dashboard import choose, running_dashboard
from tests.spark.sessions import session
from tests.waiting import eventually

import epochal
from epochal.demo.demo_run import workers_below
from epochal.testing.kafka import Kafka, connector_jars, running_kafka

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
NO_RUNS = Path.home() / ".cache" / "epochal" / "no-runs"
"""A directory that does not exist, so that queries of this machine are not on the pictures."""
MAX_BYTES = 300_000
TOPIC = "orders"
TEAMS = ("billing", "catalog", "fraud", "logistics", "search", "web")
QUERIES = (
    "clicks",
    "dedup",
    "enrich",
    "features",
    "hourly",
    "joins",
    "orders",
    "raw",
    "sessions",
    "totals",
)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="epochal-") as folder, running_kafka() as kafka:
        home = Path(folder)
        create_topic(kafka.bootstrap_servers, TOPIC, partitions=4)
        spark = session(
            "local[4]",
            spark__jars=",".join(map(str, connector_jars())),
            spark__ui__showConsoleProgress="false",
        )
        spark.sparkContext.setLogLevel("OFF")
        with orders_in(kafka), spark_query(spark, kafka, home), continuous_query(spark, home):
            take_running(home, kafka)
        spark.stop()
        make_many(home / "data" / "orders-by-window" / "checkpoint", home / "many")
        take_many(home)


@contextmanager
def orders_in(kafka: Kafka) -> Iterator[None]:
    """Produce orders until the end of the block, at a rate that goes up and down."""
    ended = threading.Event()
    dice = random.Random(7)

    def produce() -> None:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        while not ended.wait(0.2):
            wave = 60 + 50 * abs((time.time() % 20) - 10) / 10
            for _ in range(int(wave)):
                customer = f"customer-{int(dice.paretovariate(1.2)) % 400}"
                producer.produce(TOPIC, customer.encode(), key=customer.encode())
            producer.flush(10)

    thread = threading.Thread(target=produce, name="orders")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def spark_query(spark: SparkSession, kafka: Kafka, home: Path) -> Iterator[None]:
    """A plain Structured Streaming query: orders per customer in windows of ten seconds."""
    orders = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 2000)
        .load()
        .withWatermark("timestamp", "10 seconds")
        .groupBy(functions.window("timestamp", "10 seconds"), functions.col("key"))
        .count()
    )
    query = (
        orders.writeStream.outputMode("update")
        .format("noop")
        .trigger(processingTime="1 second")
        .option("checkpointLocation", str(home / "data" / "orders-by-window" / "checkpoint"))
        .start()
    )
    try:
        yield
    finally:
        query.stop()


@contextmanager
def continuous_query(spark: SparkSession, home: Path) -> Iterator[None]:
    """A continuous query whose worker is killed after some epochs."""
    stream = (
        epochal.read_stream(spark)
        .format("rate")
        .option("rowsPerSecond", 400)
        .option("numPartitions", 2)
        .load()
        .with_watermark("timestamp", "5 seconds")
        .with_column("customer", "cast(pow(value % 97, 2) % 61 as string)")
        .group_by("customer")
        .agg(orders="count", newest=("max", "value"), output_mode="update")
    )
    query = (
        stream.write_stream.format("parquet")
        .query_name("customer-totals")
        .options(
            checkpointLocation=str(home / "data" / "customer-totals"),
            telemetryLocation=str(home / "runs"),
            epoch="250 milliseconds",
            statePartitions=4,
            parallelism=1,
        )
        .start(str(home / "totals"))
    )
    try:
        eventually(lambda: query.status["epoch"] >= 60, "60 epochs", 120)
        os.kill(workers_below(os.getpid())[0], signal.SIGKILL)
        eventually(lambda: query.status["restarts"] > 0, "a restart", 60)
        last = query.status["epoch"] + 100
        eventually(lambda: query.status["epoch"] >= last, "100 more epochs", 120)
        yield
    finally:
        query.stop()


def take_running(home: Path, kafka: Kafka) -> None:
    with running_browser() as page:
        with running_dashboard(home, "--runs", NO_RUNS) as (link, _):
            show(page, link, "document.querySelectorAll('#start .copy').length > 3")
            take(page, "start", 1280, "light", height=640)
            page.open("about:blank")
        data = home / "data"
        servers = ("--bootstrap-servers", kafka.bootstrap_servers)
        arguments = ("--runs", home / "runs", "--checkpoint", data, *servers)
        with running_dashboard(home, *arguments) as (link, _):
            show(page, link, "document.querySelectorAll('#queries button').length === 2")
            choose(page, "orders-by-window")
            page.wait("/\\d/.test(document.getElementById('tile-lag').innerText)", seconds=120)
            page.wait("document.querySelectorAll('#growth-rows circle').length > 8", seconds=120)
            take(page, "spark", 1440, "light", height=1330)
            take(page, "phone", 390, "dark", height=844)
            choose(page, "customer-totals")
            page.wait("document.querySelectorAll('#latency .mark').length > 0", seconds=120)
            page.wait("document.querySelectorAll('#partitions .bar').length === 4")
            take(page, "live", 1440, "dark", height=1420)
            page.open("about:blank")


def take_many(home: Path) -> None:
    arguments = ("--runs", NO_RUNS, "--checkpoint", home / "many")
    with running_browser() as page, running_dashboard(home, *arguments) as (link, _):
        tally = "document.getElementById('tally').innerText"
        show(page, link, f"{tally} === '60 queries, 3 need attention'")
        unchecked = "document.getElementById('queries').innerText.includes('Not checked yet')"
        page.wait(f"!{unchecked}", seconds=240)
        choose(page, "fraud/features")
        page.wait("document.querySelectorAll('.finding .copy').length > 0")
        page.wait("document.querySelector('#duration .line')")
        take(page, "findings", 1440, "light", height=1060)
        page.open("about:blank")


def make_many(checkpoint: Path, into: Path) -> None:
    """Sixty copies of a checkpoint, with their times; three are broken in different ways."""
    for team in TEAMS:
        for name in QUERIES:
            shutil.copytree(checkpoint, into / team / name / "checkpoint", dirs_exist_ok=True)
    features = into / "fraud" / "features" / "checkpoint"
    newest = max(int(each.name) for each in (features / "offsets").iterdir() if each.name.isdigit())
    store = features / "state" / "0" / "0"
    (store / f"{newest - 2}.delta").write_bytes(b"garbage")
    (features / "commits" / str(newest - 5)).write_text("v1\n{broken")
    (into / "web" / "clicks" / "checkpoint" / "offsets" / str(newest)).write_text("v1\n")
    (into / "search" / "raw" / "checkpoint" / "metadata").unlink()


def show(page: Page, link: str, ready: str) -> None:
    page.look(1440, 1000, "light")
    page.open(link)
    page.wait(ready, seconds=120)


def take(page: Page, name: str, width: int, scheme: Any, *, height: int) -> None:
    """Save a picture of the top of the page, if the page is sound and the picture is not large."""
    page.look(width, height, scheme)
    page.wait(f"innerWidth === {width}")
    page.evaluate("scrollTo(0, 0)")
    page.evaluate("new Promise((done) => setTimeout(done, 700))")  # charts fit the new width
    found = [*violations(page), *page.errors]
    if found:
        raise SystemExit(f"{name}: {found}")
    path = PICTURES / f"dashboard-{name}.png"
    page.screenshot(path, whole=False)
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise SystemExit(f"{path} has {size} bytes, more than {MAX_BYTES}")
    sys.stdout.write(f"{path.relative_to(ROOT)}: {size // 1000} kB\n")


if __name__ == "__main__":
    main()
