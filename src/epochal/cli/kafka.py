"""`epochal kafka`: commit a query's position to a consumer group, measure its lag, start a broker.

No command changes a checkpoint. `commit` writes to the group at once, without `--execute`:
that is its only purpose, and Kafka's own tools can reset the group.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from epochal.cli.command_line import (
    BROKERS_HELP,
    ClientConfig,
    Host,
    Json,
    flag,
    group_app,
    open_place,
    option,
    parse_pairs,
    says_when_interrupted,
)
from epochal.cli.printing.output import print_json, print_line, print_table, progress
from epochal.errors import OptionError
from epochal.wording import counted, time_text

if TYPE_CHECKING:
    from epochal.connectors.kafka.committer.lag import LagTarget, PartitionLag
    from epochal.connectors.kafka.offsets import Cluster

app = group_app(
    "kafka",
    "Commit a query's position to a consumer group, measure its lag, start a broker for trials.",
)

PROPERTIES_HELP = "A properties file of the Java client, as for Kafka's own tools; for security."


@app.command()
def commit(
    checkpoint: str = option("DIR", "The query's checkpoint directory.", default=...),
    group: str = option("G", "The consumer group to commit to.", default=...),
    bootstrap_servers: str = option("HOST:PORT", BROKERS_HELP, default=...),
    source: str | None = option(
        "I|NAME", "One source, by its index or name. [default: all Kafka sources]"
    ),
    follow: bool = flag("--follow", "Keep committing while the query runs, until interrupted."),
    poll_seconds: float = option(
        "S", "How often --follow reads the checkpoint, in seconds.", default=1.0, min=0.05
    ),
    allow_backwards: bool = flag(
        "--allow-backwards", "Also move the group backwards, for example after a rewind."
    ),
    command_config: Path | None = option("FILE", PROPERTIES_HELP),
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Commit the position of a query's last finished batch to a consumer group.

    The position comes from the checkpoint; the running job is not involved. The group must have no
    live members. Without --allow-backwards it never moves backwards. The exit status is 1 if a
    partition was skipped because the group is ahead or the partition does not exist.
    """
    from epochal.checkpoint import Checkpoint
    from epochal.cli.kafka_run import CommitJob, commit_once, follow_commits
    from epochal.connectors.kafka.committer.lag import query_id_of

    if not group:
        raise OptionError("--group must not be empty. Name the consumer group to commit to.")
    cluster = _cluster(bootstrap_servers, command_config, client_config)
    opened = Checkpoint(open_place(checkpoint))
    job = CommitJob(
        checkpoint=opened,
        query_id=query_id_of(opened),
        source=source,
        group=group,
        cluster=cluster,
        allow_backwards=allow_backwards,
        as_json=as_json,
    )
    left = (
        "Interrupted. The group may have been moved already; `epochal kafka lag` shows where it is."
    )
    with says_when_interrupted(lambda: left):
        status = follow_commits(job, poll_seconds) if follow else commit_once(job)
    raise typer.Exit(status)


@app.command()
def lag(
    bootstrap_servers: str = option("HOST:PORT", BROKERS_HELP, default=...),
    checkpoint: list[str] | None = option(
        "DIR", "A query's checkpoint directory; may be repeated."
    ),
    group: list[str] | None = option(
        "G", "A consumer group; one for all checkpoints, or one for each in the same order."
    ),
    command_config: Path | None = option("FILE", PROPERTIES_HELP),
    client_config: ClientConfig = None,
    as_json: Json = False,
    watch: float | None = option("S", "Measure again every S seconds.", min=0.1),
    prometheus: bool = flag("--prometheus", "Print metrics in Prometheus' text form."),
    metrics_port: int | None = option(
        "PORT", "Serve /metrics for Prometheus on this port.", min=0, max=65535
    ),
    metrics_host: Host = "127.0.0.1",
    cluster_name: str | None = option("NAME", "The value of the label `cluster_name` in metrics."),
) -> None:
    """Show committed, processed and latest offsets and the lag, per query, topic and partition.

    `lag` counts from the query's processed offset if its checkpoint is given, otherwise from the
    group's committed offset. Seconds are the age of the oldest waiting record.
    """
    from epochal.cli.kafka_run import serve_metrics
    from epochal.clock import SystemClock
    from epochal.connectors.kafka.committer.committer_metrics import lag_text
    from epochal.connectors.kafka.committer.lag import measure
    from epochal.connectors.kafka.kafka_client import KafkaClient

    if sum((as_json, prometheus, metrics_port is not None)) > 1:
        raise OptionError("Give only one of --json, --prometheus and --metrics-port.")
    targets = _subjects(checkpoint or [], group or [])
    client = KafkaClient(_cluster(bootstrap_servers, command_config, client_config))
    clock = SystemClock()
    name = cluster_name or bootstrap_servers

    def measured() -> list[PartitionLag]:
        with progress("asking the brokers"):
            return measure(client, targets, clock.now_ms())

    if metrics_port is not None:
        serve_metrics(metrics_host, metrics_port, lambda: lag_text(measured(), name))
        return
    while True:
        _print(measured(), clock.now_ms(), as_json=as_json, text_of=name if prometheus else None)
        if watch is None:
            return
        time.sleep(watch)


def _subjects(checkpoints: list[str], groups: list[str]) -> list[LagTarget]:
    from epochal.checkpoint import Checkpoint
    from epochal.connectors.kafka.committer.lag import LagTarget

    if not checkpoints and not groups:
        raise OptionError("Give --checkpoint, --group, or both.")
    if not checkpoints:
        return [LagTarget(None, group) for group in groups]
    if groups and len(groups) not in (1, len(checkpoints)):
        raise OptionError(
            f"There are {counted(len(checkpoints), 'checkpoint')} and "
            f"{counted(len(groups), 'group')}. Give one group "
            f"for each checkpoint, in the same order, or one for all."
        )
    named: list[str | None] = [*groups]
    if len(groups) < len(checkpoints):
        named = (named or [None]) * len(checkpoints)
    opened = [Checkpoint(open_place(checkpoint)) for checkpoint in checkpoints]
    return [LagTarget(checkpoint, group) for checkpoint, group in zip(opened, named, strict=True)]


def _cluster(servers: str, config: Path | None, client_config: list[str] | None) -> Cluster:
    from epochal.connectors.kafka.kafka_settings import connection_settings, parse_properties
    from epochal.connectors.kafka.offsets import Cluster

    pairs = parse_pairs(client_config, "--client-config")
    java = parse_properties(config.read_text(encoding="utf-8")) if config else {}
    settings = connection_settings({**java, **{k: v for k, v in pairs.items() if k in java}})
    return Cluster.of({**settings, **pairs, "bootstrap.servers": servers})


def _print(lags: list[PartitionLag], now_ms: int, *, as_json: bool, text_of: str | None) -> None:
    from epochal.connectors.kafka.committer.committer_metrics import lag_text

    if as_json:
        print_json({"timestamp_ms": now_ms, "partitions": [lag.as_json() for lag in lags]})
    elif text_of is not None:
        for line in lag_text(lags, text_of).splitlines():
            print_line(line)
    elif not lags:
        print_line("There are no offsets yet, neither of the query nor of the group.")
    else:
        columns = (
            *("query", "group", "topic", "partition", "committed", "processed"),
            *("latest", "lag", "seconds"),
        )
        rows = []
        for lag in lags:
            offsets = lag.committed, lag.processed, lag.latest, lag.lag
            values = (lag.query, lag.group, lag.topic, lag.partition, *offsets)
            seconds = "-" if lag.seconds is None else f"{lag.seconds:.1f}"
            rows.append([*("-" if value is None else str(value) for value in values), seconds])
        print_table(columns, rows, title=time_text(now_ms))


@app.command()
def serve(
    topic: list[str] | None = option(
        "T[:N]", "A topic to create, with N partitions (1); may be repeated."
    ),
) -> None:
    """Run a Kafka broker on this machine, for trials and tests, until interrupted.

    It needs Java 17 and PySpark, and downloads Kafka from Maven Central at the first start. It
    listens on a free port of the loopback address only, without login. Nothing is durable: when the
    command ends, topics and records are deleted. It prints the line to export with the broker's
    address.
    """
    wanted = [_topic(text) for text in topic or ()]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with says_when_interrupted(lambda: "The broker has ended, and its data are deleted."):
        from epochal.connectors.kafka.kafka_client import import_kafka
        from epochal.testing.kafka import running_kafka

        admin = import_kafka().admin
        with running_kafka() as broker:
            topics = [admin.NewTopic(name, partitions) for name, partitions in wanted]
            _create_topics(admin, broker.bootstrap_servers, topics)
            print_line(f"export BROKER={broker.bootstrap_servers}")
            sys.stdout.flush()
            while True:
                signal.pause()


def _topic(text: str) -> tuple[str, int]:
    name, colon, number = text.partition(":")
    partitions = number if colon else "1"
    if not name or not partitions.isdecimal() or int(partitions) == 0:
        raise OptionError(f"--topic must be TOPIC or TOPIC:PARTITIONS, not {text!r}.")
    return name, int(partitions)


def _create_topics(admin: Any, servers: str, topics: list[Any]) -> None:
    from epochal.connectors.kafka.kafka_client import QUIET

    if not topics:
        return
    # The client ends with this function: otherwise it would complain when the broker ends.
    client = admin.AdminClient({**QUIET, "bootstrap.servers": servers})
    for creation in client.create_topics(topics).values():
        creation.result()
