"""The work of `epochal kafka`: commit once, follow a checkpoint, serve metrics."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import ThreadingHTTPServer

from epochal.checkpoint import Checkpoint
from epochal.cli.printing.output import EXIT_FINDINGS, print_json, print_line, print_table
from epochal.clock import SystemClock
from epochal.connectors.kafka.cluster_worker import ClusterWorker
from epochal.connectors.kafka.committer.lag import read_position, source_names
from epochal.connectors.kafka.kafka_client import KafkaClient
from epochal.connectors.kafka.offsets import (
    Cluster,
    CommitPlan,
    CommitRequest,
    CommitTarget,
    CommittedOffset,
    KafkaPartition,
    Mark,
    Position,
    commit_requests,
    plan_commit,
)
from epochal.errors import EpochalError, OptionError
from epochal.metrics.prometheus import scrape_handler

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitJob:
    checkpoint: Checkpoint
    query_id: str
    source: str | None
    """One source of the query; None means all its Kafka sources."""
    group: str
    cluster: Cluster
    allow_backwards: bool
    as_json: bool


def commit_once(job: CommitJob) -> int:
    """Commit the end of the query's last finished batch; return the exit status."""
    group, as_json = job.group, job.as_json
    position = read_position(job.checkpoint, job.query_id)
    if position is None:
        if as_json:
            print_json({"query": job.query_id, "group": group, "batch_id": None, "partitions": []})
        else:
            print_line("The query has not finished a batch yet, so there is nothing to commit.")
        return 0
    request = _request_of(job, position)
    client = KafkaClient(job.cluster)
    committed = client.committed_offsets(group, request.offsets)
    plan = plan_commit(request, committed, owned=False, allow_backwards=job.allow_backwards)
    missing: list[KafkaPartition] = []
    if plan.commit:
        missing = client.commit(group, plan.commit, Mark(job.query_id, request.batch_id).to_text())
    _report(request, committed, plan, set(missing), as_json=as_json)
    return EXIT_FINDINGS if plan.behind or missing else 0


def follow_commits(job: CommitJob, poll_seconds: float) -> int:
    """Keep committing the query's position until a signal; return the exit status."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    url, query_id, group = job.checkpoint.url, job.query_id, job.group
    worker = ClusterWorker(
        job.cluster, KafkaClient, clock=SystemClock(), allow_backwards=job.allow_backwards
    )
    logger.info("committing the position of %s to consumer group %s", url, group)
    last: Position | None = None
    last_error = ""
    while not stop.is_set() and not worker.has_lost(group, query_id):
        request: CommitRequest | None = None
        try:
            position = read_position(job.checkpoint, query_id, after=last)
            if position is not None:
                request, last = _request_of(job, position), position
            last_error = ""
        except (EpochalError, OSError) as error:
            if str(error) != last_error:
                logger.warning("%s cannot be read, will retry: %s", url, error)
            last_error = str(error)
        if request is not None:
            worker.put(request)
            if job.as_json:
                print_json(_request_json(request))
                sys.stdout.flush()
        stop.wait(poll_seconds)
    done = worker.flush(FLUSH_SECONDS)
    lost = worker.has_lost(group, query_id)
    worker.close(FLUSH_SECONDS)
    if not done:
        logger.error("stopped with offsets uncommitted: %s", worker.stats[group].last_error)
    return EXIT_FINDINGS if lost or not done else 0


def serve_metrics(host: str, port: int, text: Callable[[], str]) -> None:
    """Serve /metrics until interrupted; every scrape measures again."""
    lock = threading.Lock()

    def measured() -> str:
        with lock:  # one measurement at a time, even if several clients scrape
            return text()

    handler = scrape_handler(measured, ("/metrics", "/"))
    with ThreadingHTTPServer((host, port), handler) as server:
        print_line(f"http://{host}:{server.server_address[1]}/metrics")
        sys.stdout.flush()
        server.serve_forever()


def _request_of(job: CommitJob, position: Position) -> CommitRequest:
    checkpoint, source = job.checkpoint, job.source
    index = None
    if source is not None:
        names = source_names(checkpoint, position.batch_id)
        if source not in names:
            raise OptionError(
                f"--source {source} does not exist. The query's sources are {', '.join(names)}."
            )
        index = names.index(source)
    requests = commit_requests(position, [CommitTarget(job.group, job.cluster, index)])
    if not requests:
        which = "No source of the query is" if source is None else f"Source {source} is not"
        raise OptionError(
            f"{checkpoint.url}: {which} a Kafka source, so there are no offsets to commit. The "
            f"offsets of batch {position.batch_id} are "
            f"{', '.join(str(end)[:60] for end in position.ends)}."
        )
    return requests[0]


def _report(
    request: CommitRequest,
    committed: dict[KafkaPartition, CommittedOffset],
    plan: CommitPlan,
    missing: set[KafkaPartition],
    *,
    as_json: bool,
) -> None:
    def outcome(tp: KafkaPartition) -> str:
        if tp in missing:
            return "no such partition"
        if tp in plan.commit:
            return "committed"
        return "left: the group is ahead" if tp in plan.behind else "unchanged"

    partitions = [
        {
            "topic": tp[0],
            "partition": tp[1],
            "before": committed[tp].offset if tp in committed else None,
            "processed": offset,
            "outcome": outcome(tp),
        }
        for tp, offset in sorted(request.offsets.items())
    ]
    of = {"query": request.query_id, "group": request.group, "batch_id": request.batch_id}
    if as_json:
        print_json({**of, "partitions": partitions})
        return
    rows = [
        ["-" if value is None else str(value) for value in partition.values()]
        for partition in partitions
    ]
    title = f"group {request.group}, batch {request.batch_id} of query {request.query_id}"
    print_table(("topic", "partition", "before", "processed", "outcome"), rows, title=title)


def _request_json(request: CommitRequest) -> dict[str, object]:
    offsets: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(request.offsets.items()):
        offsets.setdefault(topic, {})[str(partition)] = offset
    return {"batch_id": request.batch_id, "group": request.group, "offsets": offsets}
