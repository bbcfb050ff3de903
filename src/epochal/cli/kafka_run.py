"""The running parts of `epochal kafka`: commit once, follow a checkpoint, serve metrics."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import ThreadingHTTPServer

from epochal.checkpoint import Checkpoint
from epochal.cli.output import EXIT_FINDINGS, print_json, print_line, print_table
from epochal.clock import SystemClock
from epochal.connectors.kafka.cluster_worker import Lane
from epochal.connectors.kafka.commit_rules import Held, Plan, plan_commit
from epochal.connectors.kafka.committer.follow_checkpoint import read_position, source_names
from epochal.connectors.kafka.kafka_client import KafkaClient
from epochal.connectors.kafka.offsets import (
    Cluster,
    Mark,
    Place,
    Position,
    Target,
    Want,
    wants_of,
)
from epochal.errors import EpochalError, OptionError
from epochal.metrics.metrics_server import scrape_handler

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """Which query's position goes to which group."""

    checkpoint: Checkpoint
    query_id: str
    source: str | None
    """One source of the query; all its Kafka sources if None."""
    group: str
    cluster: Cluster
    allow_backwards: bool
    as_json: bool


def commit_once(errand: Errand) -> int:
    """Bring the group to the query's last finished batch; the exit status."""
    group, as_json = errand.group, errand.as_json
    want = _want(errand, after=None)
    if want is None:
        _say_nothing(as_json, errand.query_id, group)
        return 0
    client = KafkaClient(errand.cluster)
    held = client.held(group, want.offsets)
    plan = plan_commit(want, held, owned=False, allow_backwards=errand.allow_backwards)
    gone: list[Place] = []
    if plan.commit:
        gone = client.commit(group, plan.commit, Mark(errand.query_id, want.batch_id).to_text())
    _report(want, held, plan, set(gone), as_json=as_json)
    return EXIT_FINDINGS if plan.behind or gone else 0


def follow_commits(errand: Errand, poll_seconds: float) -> int:
    """Keep the group where the query is until a signal comes; the exit status."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    url, query_id, group = errand.checkpoint.url, errand.query_id, errand.group
    lane = Lane(
        errand.cluster,
        KafkaClient,
        clock=SystemClock(),
        allow_backwards=errand.allow_backwards,
    )
    logger.info("following %s into consumer group %s", url, group)
    last: int | None = None
    trouble = ""
    while not stop.is_set() and not lane.has_lost(group, query_id):
        try:
            want = _want(errand, after=last)
            trouble = ""
        except (EpochalError, OSError) as error:
            want = None
            if str(error) != trouble:
                logger.warning("%s: cannot be read, will retry: %s", url, error)
            trouble = str(error)
        if want is not None:
            last = want.batch_id
            lane.put(want)
            if errand.as_json:
                print_json(_want_json(want))
                sys.stdout.flush()
        stop.wait(poll_seconds)
    done = lane.flush(FLUSH_SECONDS)
    lost = lane.has_lost(group, query_id)
    lane.close(FLUSH_SECONDS)
    if not done:
        logger.error("stopped with offsets uncommitted: %s", lane.stats[group].last_error)
    return EXIT_FINDINGS if lost or not done else 0


def serve_metrics(host: str, port: int, text: Callable[[], str]) -> None:
    """Answer /metrics, measured anew for each scrape, until interrupted."""
    lock = threading.Lock()

    def measured() -> str:
        with lock:  # one measurement at a time, however many scrape
            return text()

    handler = scrape_handler(measured, ("/metrics", "/"))
    with ThreadingHTTPServer((host, port), handler) as server:
        print_line(f"http://{host}:{server.server_address[1]}/metrics")
        sys.stdout.flush()
        server.serve_forever()


def _want(errand: Errand, *, after: int | None) -> Want | None:
    checkpoint, source = errand.checkpoint, errand.source
    position = read_position(checkpoint, errand.query_id, after=after)
    if position is None:
        return None
    place = None if source is None else _source(checkpoint, position, source)
    wants = wants_of(position, [Target(errand.group, errand.cluster, place)])
    if not wants:
        which = "No source of the query is" if source is None else f"Source {source} is not"
        raise OptionError(
            f"{checkpoint.url}: {which} a Kafka source: the offsets of batch {position.batch_id} "
            f"are {', '.join(str(end)[:60] for end in position.ends)}."
        )
    return wants[0]


def _source(checkpoint: Checkpoint, position: Position, source: str) -> int:
    names = source_names(checkpoint, position.batch_id)
    if source not in names:
        raise OptionError(f"--source {source}: the query's sources are {', '.join(names)}.")
    return names.index(source)


def _say_nothing(as_json: bool, query_id: str, group: str) -> None:
    if as_json:
        print_json({"query": query_id, "group": group, "batch_id": None, "partitions": []})
    else:
        print_line("The query has not finished a batch yet: nothing to commit.")


def _report(
    want: Want, held: dict[Place, Held], plan: Plan, gone: set[Place], *, as_json: bool
) -> None:
    def outcome(place: Place) -> str:
        if place in gone:
            return "no such partition"
        if place in plan.commit:
            return "committed"
        return "left: the group is ahead" if place in plan.behind else "unchanged"

    if as_json:
        print_json(
            {
                "query": want.query_id,
                "group": want.group,
                "batch_id": want.batch_id,
                "partitions": [
                    {
                        "topic": place[0],
                        "partition": place[1],
                        "before": held[place].offset if place in held else None,
                        "processed": offset,
                        "outcome": outcome(place),
                    }
                    for place, offset in sorted(want.offsets.items())
                ],
            }
        )
        return
    rows = [
        (
            place[0],
            str(place[1]),
            str(held[place].offset) if place in held else "-",
            str(offset),
            outcome(place),
        )
        for place, offset in sorted(want.offsets.items())
    ]
    title = f"group {want.group}, batch {want.batch_id} of query {want.query_id}"
    print_table(("topic", "partition", "before", "processed", ""), rows, title=title)


def _want_json(want: Want) -> dict[str, object]:
    offsets: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(want.offsets.items()):
        offsets.setdefault(topic, {})[str(partition)] = offset
    return {"batch_id": want.batch_id, "group": want.group, "offsets": offsets}
