"""`epochal demo`: the main job on this machine, with a worker killed half-way, and the balance."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epochal.cli.output import print_facts, print_json, print_line
from epochal.errors import OptionError

if TYPE_CHECKING:
    from epochal.demo.demo_run import Outcome
    from epochal.demo.pipeline import Broker

commands = typer.Typer(name="commands", add_completion=False, rich_markup_mode=None)


@commands.callback()
def _commands() -> None:
    """Keeps the command's name where a lone one would take the group's place."""


@commands.command()
def demo(
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Orders through a real Kafka broker, fetched once.")
    ] = False,
    seconds: Annotated[
        int, typer.Option(metavar="N", min=5, max=3600, help="How long orders are published.")
    ] = 30,
    rate: Annotated[
        int, typer.Option(metavar="N", min=1, max=20_000, help="Orders published a second.")
    ] = 1_000,
    directory: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to work, and leave it; must not exist yet."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Only the balance, as one object.")] = False,
) -> None:
    """Publish orders, total them per customer exactly once, kill a worker, show the balance.

    Everything runs on this machine: a Pub/Sub server (or a Kafka broker), a continuous query on
    Spark with two tasks, Parquet out. Half-way one task's process is killed with kill -9. In the
    end output and state are read back and compared with what was sent; exits 1 if they differ.
    """
    if find_spec("pyspark") is None:
        needed = "spark,kafka" if kafka else "spark,pubsub"
        raise OptionError(f"The demo needs PySpark: pip install 'epochal[{needed}]'.")
    if directory is not None and directory.exists():
        raise OptionError(f"{directory} exists. The demo starts from nothing: name a new one.")
    home = directory or Path(tempfile.mkdtemp(prefix="epochal-demo-")) / "orders"
    home.mkdir(parents=True)
    outcome = _run(home, kafka=kafka, orders=seconds * rate, rate=rate, quiet=json)
    if json:
        print_json(asdict(outcome))
    else:
        _tell(outcome, home, 0 if kafka else 1)
    if not outcome.balance.holds:
        raise typer.Exit(1)
    if directory is None and json:
        shutil.rmtree(home.parent)


def _run(home: Path, *, kafka: bool, orders: int, rate: int, quiet: bool) -> Outcome:
    from epochal.demo.demo_run import Demo, run
    from epochal.demo.demo_session import local_session
    from epochal.demo.demo_view import live_view

    say = _silent if quiet else print_line
    say(f"Spark starts on this machine, {'a Kafka broker' if kafka else 'a Pub/Sub server'} too.")
    spark = local_session(tasks=2)
    try:
        with _broker(kafka) as broker:
            say(f"{orders:,} orders, {rate:,} a second; a worker is killed half-way.")
            with live_view(quiet=quiet) as show:
                return run(Demo(broker, home, orders, rate), spark, show)
    finally:
        spark.stop()


def _silent(text: str) -> None:
    del text


@contextmanager
def _broker(kafka: bool) -> Iterator[Broker]:
    from epochal.demo.pipeline import PROJECT, SUBSCRIPTION, TOPIC, Broker

    if kafka:
        from confluent_kafka.admin import AdminClient, NewTopic

        from epochal.testing.kafka import running_kafka

        with running_kafka() as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            admin.create_topics([NewTopic(TOPIC, num_partitions=2)])[TOPIC].result()
            yield Broker("kafka", broker.bootstrap_servers)
        return
    from epochal.testing.pubsub import running_server

    with running_server("--project", PROJECT, "--subscription", f"{SUBSCRIPTION}:{TOPIC}") as made:
        yield Broker("pubsub", made.address)


def _tell(outcome: Outcome, home: Path, operator: int) -> None:
    found, (half, most) = outcome.balance, outcome.latency_ms
    print_line()
    print_facts(
        [
            ("sent", f"{found.sent:,}"),
            ("received", f"{found.received:,}, as Spark reads the Parquet files"),
            ("lost", f"{found.lost:,}"),
            ("repeated", f"{found.repeated:,}"),
            (
                "wrong totals",
                f"{found.wrong_totals:,} in the output, {found.wrong_states:,} in state",
            ),
            ("row latency", f"p50 {half:.1f} ms, p99 {most:.1f} ms, the kill included"),
            ("first commit", f"{outcome.first_commit_seconds:.1f} s after the query's start"),
            ("recovery", f"{outcome.recovery_seconds:.1f} s from kill -9 to the next commit"),
        ]
    )
    print_line()
    print_line("The balance holds." if found.holds else "THE BALANCE DOES NOT HOLD.")
    print_line("Where to look next:")
    for line in (
        f"epochal checkpoint show {home}/checkpoint --limit 5",
        f"epochal checkpoint verify {home}/checkpoint",
        f"epochal state read {home}/checkpoint --operator {operator} --store total --limit 5",
    ):
        print_line(f"  {line}")
