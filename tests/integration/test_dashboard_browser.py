"""The dashboard in a real browser, with real queries on Spark.

The tests save screenshots in `build/screenshots`.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from tests.listening import addresses, family
from tests.rigs.browser import Page, running_browser, violations
from tests.rigs.dashboard import choose, running_dashboard
from tests.spark.sessions import ROOT
from tests.waiting import eventually

import epochal
from epochal.continuous.api.query_handle import StreamingQuery
from epochal.errors import QueryFailedError
from epochal.metrics.logs import JsonFormatter
from epochal.metrics.query_metrics import METRICS
from epochal.testing.server import free_port

SCREENSHOTS = ROOT / "build" / "screenshots"
SOON_SECONDS = 30.0
"""A fault must be seen so soon, without a reload. On an idle machine it is within two seconds; a
busy one needs longer; tests/unit/dashboard/test_dashboard_server.py checks it by a clock."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A running query and the dashboard that shows it."""

    spark: SparkSession
    folder: Path
    query: StreamingQuery
    link: str
    pid: int
    metrics_port: int

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def port(self) -> int:
        return urlsplit(self.link).port or 0

    @property
    def token(self) -> str:
        return self.link.partition("token=")[2]


def numbered(spark: SparkSession, rate: int) -> Any:
    stream = epochal.read_stream(spark).format("rate").option("rowsPerSecond", rate)
    return stream.option("numPartitions", 2).load()


def started(stage_folder: Path, stream: Any, name: str, **options: Any) -> StreamingQuery:
    usual = {
        "checkpointLocation": str(stage_folder / "checkpoint"),
        "telemetryLocation": str(stage_folder.parent / "runs"),
        "parallelism": 1,
    }
    writer = stream.write_stream.format("parquet").query_name(name).options(**{**usual, **options})
    query: StreamingQuery = writer.start(str(stage_folder / "output"))
    return query


@pytest.fixture(scope="module")
def stage(kafka_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    base = tmp_path_factory.mktemp("dashboard")
    folder = base / "orders"
    stream = (
        numbered(kafka_spark, 300)
        .with_column("customer", "cast(value % 40 as string)")
        .group_by("customer")
        .agg(orders="count", last=("max", "value"), output_mode="update")
    )
    metrics_port = free_port()
    query = started(
        folder,
        stream,
        "orders",
        epoch="250 milliseconds",
        minBatchesToRetain=1_000,  # keep the files that tests break until they are repaired
        statePartitions=3,
        metricsPort=metrics_port,
    )
    try:
        eventually(lambda: query.status["epoch"] >= 3, "epochs are committed")
        arguments = ("--runs", str(base / "runs"), "--follow", "orders")
        with running_dashboard(base, *arguments) as (link, pid):
            yield Stage(kafka_spark, folder, query, link, pid, metrics_port)
    finally:
        query.stop()


@pytest.fixture(scope="module")
def page(stage: Stage) -> Iterator[Page]:
    with running_browser() as browser:
        browser.look(1280, 1000, "light")
        browser.open(stage.link)
        yield browser


@pytest.fixture
def orders(stage: Stage, page: Page) -> Page:
    """The page, with the running query selected."""
    choose(page, "orders")
    page.wait("document.querySelectorAll('#timeline .row').length > 3")
    return page


def newest_epoch(page: Page) -> int:
    last = "document.querySelector('#timeline .row:last-child').dataset.epoch"
    return int(page.evaluate(last))


def test_every_panel_shows_live_data(stage: Stage, orders: Page) -> None:
    before = newest_epoch(orders)
    eventually(lambda: newest_epoch(orders) > before, "the timeline moves")
    assert "▶" in orders.text("#state")
    names = {text.split()[0] for text in orders.text("#phases").split("\n")}
    assert names == {"cut", "state", "prepare", "log", "commit", "ack"}
    assert orders.evaluate("document.querySelectorAll('#timeline rect.f1').length") > 0
    assert re.search(
        r"Epoch \d+ cut at .* rows in, \d+ out; cut .* ms, state", orders.text("#epoch")
    )
    for panel in ("latency", "rate", "lag"):
        orders.wait(f"document.querySelectorAll('#{panel} .chart path').length > 0", what=panel)
    rate = float(orders.text("#tile-rows-s"))
    assert rate > 0
    assert orders.text("#tile-latency-p99").endswith("s")
    assert int(orders.text("#tile-epoch")) >= before
    orders.wait("document.getElementById('tile-state-rows').innerText === '40'", what="state rows")
    orders.wait("document.querySelectorAll('#sources tbody tr').length === 1", what="sources")
    assert orders.text("#sources tbody tr td:nth-child(4)").isdigit(), "the backlog is known"
    assert orders.text("#sources tbody tr td:nth-child(5)") == "rows; its position is in seconds"
    assert orders.text("#growth-hint") == "Rows in all stores.", "its size is not reported"
    dashed = "document.querySelectorAll('#latency .line.l6.dashed').length"
    assert orders.evaluate(dashed) == 1, "the p99 is seen below the highest"
    assert "batch" not in orders.text("#detail"), "it has epochs"
    assert "✓ healthy No problem was found." in orders.text("#checkpoint")


def test_state_is_shown_by_partition_with_its_skew(stage: Stage, orders: Page) -> None:
    orders.wait("document.querySelectorAll('#partitions .bar').length === 3", what="partitions")
    orders.wait("document.getElementById('skew').innerText.startsWith('40 rows')", what="skew")
    assert re.search(r"skew \d\.\d", orders.text("#skew"))
    assert "customer=" in orders.text("#partitions")


def test_a_healthy_checkpoint_is_called_so_while_the_query_writes(
    stage: Stage, orders: Page
) -> None:
    orders.wait("document.getElementById('verdict').dataset.status === 'healthy'", what="healthy")
    last = stage.query.status["epoch"] + 12  # about three seconds, several looks at the files

    def is_written() -> bool:
        status = orders.evaluate("document.getElementById('verdict').dataset.status")
        assert status == "healthy", orders.text("#findings")
        return bool(stage.query.status["epoch"] >= last)

    eventually(is_written, "12 more epochs", pause=0.1)


def test_offsets_and_state_can_be_browsed_at_any_version(stage: Stage, orders: Page) -> None:
    orders.wait("document.querySelectorAll('#offsets-table tbody tr').length >= 4", what="offsets")
    orders.evaluate(
        "(() => { const at = document.getElementById('offsets-batch'); at.value = '2';"
        " at.dispatchEvent(new Event('change')); })()"
    )
    orders.wait("document.querySelectorAll('#offsets-table tbody tr').length === 3", what="batch 2")
    assert orders.text("#offsets-table tbody tr td").strip() == "2"
    orders.evaluate("document.getElementById('tab-state').click()")
    orders.wait("document.querySelectorAll('#state-table tbody tr').length === 40", what="state")
    columns = orders.text("#state-table thead").split("\t")
    assert [name.strip() for name in columns] == ["partition_id", "key", "value"]
    orders.evaluate(
        "(() => { const at = document.getElementById('state-batch'); at.value = '0';"
        " at.dispatchEvent(new Event('change')); })()"
    )
    orders.wait(
        "document.getElementById('state-range').innerText.includes('after epoch 0')",
        what="the state after the first epoch",
    )
    orders.evaluate("document.getElementById('tab-offsets').click()")


def test_it_can_be_used_with_the_keyboard(stage: Stage, orders: Page) -> None:
    orders.evaluate("document.activeElement.blur()")
    orders.press("2")
    assert orders.evaluate("document.activeElement.id") == "epochs"
    orders.press("Tab")
    assert orders.evaluate("document.activeElement.id") == "timeline"
    for _ in range(3):
        orders.press("ArrowLeft")
    orders.settle()
    orders.wait(
        "document.querySelector('#timeline [aria-selected=true]:not(:last-child)')",
        what="an earlier epoch is chosen",
    )
    chosen = "document.querySelector('#timeline [aria-selected=true]').dataset.epoch"
    pinned, newest = int(orders.evaluate(chosen)), stage.query.status["epoch"]
    eventually(lambda: stage.query.status["epoch"] > newest + 24, "more epochs than the page shows")
    assert int(orders.evaluate(chosen)) == pinned, "it stays in sight while others come"
    orders.press("Escape")
    orders.wait(f"Number({chosen}) > {pinned + 20}", what="the newest is followed again")
    orders.evaluate("document.activeElement.blur()")
    orders.press("t")
    assert orders.evaluate("document.documentElement.dataset.theme") == "light"
    orders.press("t")
    assert orders.evaluate("document.documentElement.dataset.theme") == "dark"
    orders.press("t")
    assert orders.evaluate("document.documentElement.dataset.theme ?? 'system'") == "system"
    orders.press("?")
    assert orders.evaluate("document.getElementById('help').open")
    orders.press("Escape")
    assert not orders.evaluate("document.getElementById('help').open")
    panels = ("checkpoint", "epochs", "latency", "rate", "growth", "lag", "stores", "browse")
    for number, panel in enumerate(panels, 1):
        orders.press(str(number))
        assert orders.evaluate("document.activeElement.id") == panel


@contextmanager
def broken(path: Path, data: bytes) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(before)


def some_offset_entry(checkpoint: Path) -> Path:
    """Return a file that the query no longer needs but will keep for a while."""
    ids = sorted(
        int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()
    )
    return checkpoint / "offsets" / str(ids[-5])


def some_state_file(checkpoint: Path) -> Path:
    found = (checkpoint / "epochs").glob("*-t0-a*")
    return sorted(found, key=lambda path: int(path.name.partition("-")[0]))[-5]


@pytest.mark.parametrize(
    ("choose", "is_needed"), [(some_offset_entry, False), (some_state_file, True)]
)
def test_a_broken_file_of_the_checkpoint_is_seen_soon(
    stage: Stage, orders: Page, choose: Callable[[Path], Path], is_needed: bool
) -> None:
    sick = "document.getElementById('health').dataset.value === 'unhealthy'"
    path = choose(stage.checkpoint)
    name = path.relative_to(stage.checkpoint).as_posix()
    orders.wait(f"!({sick})", what="it was healthy before")
    with broken(path, path.read_bytes()[:-7] + b"garbage"):
        named = f"document.getElementById('findings').textContent.includes({json.dumps(name)})"
        orders.wait(named, seconds=SOON_SECONDS, what="the file is named")
        assert orders.evaluate(sick) == is_needed
        orders.screenshot(SCREENSHOTS / f"dashboard-broken-{name.partition('/')[0]}.png")
    orders.wait(f"!({sick})", what="it is healthy again")
    assert orders.errors == [], "a broken checkpoint is no failed request"


@contextmanager
def json_log() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Collect what the package logs during a test, as JSON."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("epochal")
    logger.addHandler(handler)
    try:
        yield lambda: [json.loads(line) for line in out.getvalue().splitlines()]
    finally:
        logger.removeHandler(handler)


def test_a_query_that_dies_is_seen_soon_with_its_error(stage: Stage, orders: Page) -> None:
    folder = stage.folder.parent / "doomed"
    folder.mkdir()
    flag = str(folder / "flag")

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if os.path.exists(flag):
                raise ValueError("the row that nobody expected")
            yield batch

    stream = numbered(stage.spark, 50).map_in_arrow(pass_on, "timestamp timestamp, value bigint")
    query = started(folder, stream, "doomed", maxRestarts=0)
    try:
        eventually(lambda: query.status["epoch"] >= 1, "it runs")
        doomed = "document.querySelector('#queries button[aria-current=true]')?.innerText"
        choose(orders, "doomed")
        orders.wait(f"{doomed}.startsWith('doomed') && {doomed}.includes('running')")
        with json_log() as lines:
            Path(flag).touch()
            with pytest.raises(QueryFailedError):
                query.await_termination(60)
        failed = "document.getElementById('state').dataset.value === 'failed'"
        orders.wait(failed, seconds=SOON_SECONDS, what="its end shows")
        orders.wait(
            "document.getElementById('error').innerText.includes('the row that nobody expected')"
        )
        assert orders.text("#tile-state-rows") == "none", "the query is stateless"
        orders.screenshot(SCREENSHOTS / "dashboard-failed.png")
        ends = [line for line in lines() if " ended after epoch " in line["message"]]
        assert [(line["query_id"], line["run_id"]) for line in ends] == [(query.id, query.run_id)]
    finally:
        query.stop()


def test_a_restart_is_marked_in_the_charts(stage: Stage, orders: Page) -> None:
    folder = stage.folder.parent / "stumbling"
    folder.mkdir()
    flag = str(folder / "flag")

    def stumble(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if os.path.exists(flag):
                os.unlink(flag)
                raise ValueError("only once")
            yield batch

    stream = numbered(stage.spark, 50).map_in_arrow(stumble, "timestamp timestamp, value bigint")
    query = started(folder, stream, "stumbling")
    try:
        choose(orders, "stumbling")
        orders.wait("document.querySelector('#latency .chart path')", what="a chart")
        assert orders.evaluate("document.querySelectorAll('.mark').length") == 0
        Path(flag).touch()
        marks = "document.querySelectorAll('#latency .mark, #rate .mark').length === 2"
        orders.wait(marks, what="the restart is marked in both charts")
        assert orders.text("#tile-restarts") == "1"
        assert "restart" in orders.text("#latency .legend")
        assert violations(orders) == []
    finally:
        query.stop()


def test_the_page_complains_of_nothing(stage: Stage, orders: Page) -> None:
    assert orders.errors == []


def test_the_query_serves_its_own_metrics_to_prometheus(stage: Stage) -> None:
    def scraped() -> dict[str, float]:
        with urlopen(f"http://127.0.0.1:{stage.metrics_port}/metrics", timeout=30) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return {
                sample.name: sample.value
                for family in families
                for sample in family.samples
                if sample.labels["query"] == "orders"
            }

    first = eventually(lambda: scraped().get("epochal_epochs_committed_total"), "some epochs")
    found = eventually(
        lambda: now if (now := scraped())["epochal_epochs_committed_total"] > first else None,
        "more epochs",
    )
    assert found["epochal_query_up"] == 1
    assert found["epochal_query_failed"] == 0
    assert found["spark_streaming_states_rowsTotal"] == 40
    assert found["spark_streaming_inputRate_total"] > 0
    assert found["epochal_epoch_latency_seconds_count"] == found["epochal_epochs_committed_total"]
    assert found["epochal_rows_in_total"] > 0
    known = {spec.name for spec in METRICS}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in found} <= known


def test_it_listens_on_loopback_alone(stage: Stage) -> None:
    assert addresses(family(stage.pid)) == {"127.0.0.1"}
