"""`epochal demo`: run a streaming job on this machine, kill a worker, and check the result."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from epochal.cli.command_line import flag, option, says_when_interrupted
from epochal.cli.printing.output import (
    CYAN,
    GREEN,
    RED,
    paint,
    print_facts,
    print_json,
    print_line,
    print_text,
)
from epochal.errors import OptionError

if TYPE_CHECKING:
    from epochal.demo.demo_run import DemoResult
    from epochal.demo.pipeline import DemoBroker


class DemoTable(StrEnum):
    PARQUET = "parquet"
    DELTA = "delta"


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    kafka: bool = flag("--kafka", "Use a real Kafka broker, which is downloaded once."),
    table: DemoTable = typer.Option(
        DemoTable.PARQUET, help="What the query writes: Parquet files or a Delta table."
    ),
    seconds: int = option(
        "N", "How long to publish orders, in seconds.", default=30, min=5, max=3600
    ),
    rate: int = option("N", "Orders to publish per second.", default=1_000, min=1, max=20_000),
    directory: Path | None = option(
        "DIR", "Work in this new directory and keep it. [default: a temporary directory]"
    ),
    json: bool = flag("--json", "Print only the result, as one JSON object."),
) -> None:
    """Publish orders, total them per customer exactly once, kill a worker, and check the result.

    Everything runs on this machine: a Pub/Sub server (or a Kafka broker), and a continuous query on
    Spark with two tasks that writes Parquet files or a Delta table. Halfway, one task's process is
    killed with kill -9. At the end, output and state are read back and compared with what was sent.
    The exit status is 1 if they differ.
    """
    _require_packages(kafka, table)
    if directory is not None and directory.exists():
        raise OptionError(
            f"{directory} exists already. The demo needs a new directory: choose another name."
        )
    home = directory or Path(tempfile.mkdtemp(prefix="epochal-demo-")) / "orders"
    home.mkdir(parents=True)

    def clean_up() -> str:
        shutil.rmtree(home if directory else home.parent, ignore_errors=True)
        return "Interrupted. The demo has stopped its processes and removed its files."

    with says_when_interrupted(clean_up):
        outcome = _run(home, table, kafka=kafka, orders=seconds * rate, rate=rate, quiet=json)
    if json:
        print_json(asdict(outcome))
    else:
        _print_outcome(outcome, home, table, 0 if kafka else 1)
    if not outcome.balance.holds:
        raise typer.Exit(1)
    if directory is None and json:
        shutil.rmtree(home.parent)


def _require_packages(kafka: bool, table: DemoTable) -> None:
    """Raise OptionError, before anything is started, if a package is not installed."""
    needed = {"pyspark": "spark"}
    needed |= {"confluent_kafka": "kafka"} if kafka else {"grpc": "pubsub"}
    if table is DemoTable.DELTA:
        needed["deltalake"] = "delta"
    missing = [package for package in needed if find_spec(package) is None]
    if missing:
        extras = ",".join(dict.fromkeys(needed.values()))
        raise OptionError(
            f"The demo needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} "
            f"not installed. Run `pip install 'epochal[{extras}]'`."
        )


def _run(
    home: Path, table: DemoTable, *, kafka: bool, orders: int, rate: int, quiet: bool
) -> DemoResult:
    from epochal.demo.demo_run import Demo, errors_to, local_session, run
    from epochal.demo.demo_view import live_view

    if not quiet:
        print_text(
            f"{orders:,} orders are published, {rate:,} per second. A query totals them per "
            f"customer, exactly once. Half-way, one of its workers is killed (kill -9).",
            "",
        )
    log = home / "demo.log"
    with live_view(quiet=quiet) as view, errors_to(log):
        view.doing("Starting Spark")
        spark = local_session(tasks=2, log=log)
        try:
            view.doing(f"Starting a {'Kafka broker' if kafka else 'Pub/Sub server'}")
            with _broker(kafka) as broker:
                return run(Demo(broker, home, orders, rate, table.value), spark, view)
        finally:
            spark.stop()


@contextmanager
def _broker(kafka: bool) -> Iterator[DemoBroker]:
    from epochal.demo.orders import PROJECT, SUBSCRIPTION, TOPIC
    from epochal.demo.pipeline import DemoBroker

    if kafka:
        from confluent_kafka.admin import AdminClient, NewTopic

        from epochal.connectors.kafka.kafka_client import QUIET
        from epochal.testing.kafka import running_kafka

        with running_kafka() as broker:
            admin = AdminClient({**QUIET, "bootstrap.servers": broker.bootstrap_servers})
            admin.create_topics([NewTopic(TOPIC, num_partitions=2)])[TOPIC].result()
            yield DemoBroker("kafka", broker.bootstrap_servers)
        return
    from epochal.testing.pubsub import running_server

    with running_server(
        "--project", PROJECT, "--subscription", f"{SUBSCRIPTION}:{TOPIC}"
    ) as server:
        yield DemoBroker("pubsub", server.address)


def _print_outcome(outcome: DemoResult, home: Path, table: DemoTable, operator: int) -> None:
    from epochal.demo.pipeline import OUTPUTS

    balance, (half, most) = outcome.balance, outcome.latency_ms
    print_line()
    print_facts(
        [
            ("sent", f"{balance.sent:,}"),
            ("received", f"{balance.received:,}, {OUTPUTS[table.value].counted_by}"),
            ("lost", _wanted_zero(balance.lost)),
            ("repeated", _wanted_zero(balance.repeated)),
            (
                "wrong totals",
                f"{_wanted_zero(balance.wrong_totals)} in the output, "
                f"{_wanted_zero(balance.wrong_states)} in state",
            ),
            ("row latency", f"p50 {half:,.1f} ms, p99 {most:,.1f} ms, including the kill"),
            ("first commit", f"{outcome.first_commit_seconds:.1f} s after the start of the query"),
            ("recovery", f"{outcome.recovery_seconds:.1f} s from kill -9 to the next commit"),
        ]
    )
    print_line()
    if balance.holds:
        print_line(paint("The balance holds: nothing lost, nothing counted twice.", GREEN))
    else:
        print_line(paint("THE BALANCE DOES NOT HOLD.", RED))
    print_line("Try next:")
    for line in next_commands(home, operator):
        print_line(f"  {paint(line, CYAN)}")


def next_commands(home: Path, operator: int) -> list[str]:
    """Three commands to copy, which look at what the demo has left."""
    program = "epochal" if shutil.which("epochal") else f"{shlex.quote(sys.executable)} -m epochal"
    checkpoint = shlex.quote(f"{home}/checkpoint")
    return [
        f"{program} checkpoint show {checkpoint} --limit 5",
        f"{program} checkpoint verify {checkpoint}",
        f"{program} state read {checkpoint} --operator {operator} --store total --limit 5",
    ]


def _wanted_zero(number: int) -> str:
    return paint(f"{number:,}", RED if number else GREEN)
