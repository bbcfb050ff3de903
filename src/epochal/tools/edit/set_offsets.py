"""Moves the offset of a source: plans a new batch that reads nothing and ends at another offset.

The batch has the settings, watermark and state of the last one. A restart finds it committed and
continues from its offsets.

Note: to move a file source back, one batch is not enough. On a restart Spark asks such a source for
the last batch again, from the end of the batch before it to its own end. That range must not run
backwards. So a second batch follows, from the new offset to the same offset.

The broker that knows the offsets of a Kafka source is asked here, by the only Kafka client in the
tools. `confluent-kafka` (extra `kafka`) is imported when it is first asked.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from epochal.checkpoint.entries import COMMIT_FORMAT, OFFSET_FORMAT, CommitEntry, OffsetEntry
from epochal.checkpoint.file_log import FileSourceLog, open_source_log
from epochal.checkpoint.layout import COMMITS, OFFSETS, source_log_path
from epochal.errors import EditError, OptionError, StorageError
from epochal.tools.edit.edit_file_log import SinkSurvey, add_sink_batches
from epochal.tools.edit.edit_plan import Plan
from epochal.tools.edit.offset_targets import (
    AskBroker,
    Asked,
    Target,
    ToEarliest,
    ToLatest,
    ToTime,
    goes_back,
    is_file_offset,
    move,
    new_partitions,
    no_broker,
)
from epochal.tools.edit.rewind import obstacle_to, rewind_command
from epochal.tools.edit.survey import Survey, empty_batches, last_committed
from epochal.wording import span

TIMEOUT_SECONDS = 30.0
NO_SUCH_OFFSET = -1


def plan_set_offsets(
    surveyed: Survey,
    source: str,
    target: Target,
    *,
    sink: SinkSurvey | None = None,
    ask_broker: AskBroker = no_broker,
    new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
) -> Plan:
    """Plan the batches after which `source` continues from `target`."""
    base = _base(surveyed)
    entry, commit = surveyed.offsets[base], surveyed.commits[base]
    if source not in entry.by_source:
        known = ", ".join(entry.by_source) or "none"
        raise OptionError(f"There is no source {source!r} in offsets/{base}. It has: {known}.")
    current, latest = entry.by_source[source], None
    if is_file_offset(current):
        log = open_source_log(surveyed.files.at(source_log_path(source)))
        latest = log.latest_batch_id() if isinstance(log, FileSourceLog) else None
    moved = move(current, target, latest_log_batch=latest, ask_broker=ask_broker)
    back = goes_back(current, moved)
    batches = 2 if back and is_file_offset(current) else 1
    new_ids = range(base + 1, base + 1 + batches)
    watermark_ms = max(entry.watermark_ms, commit.next_watermark_ms)
    empty = empty_batches(surveyed, base, batches, new_id)
    changes = list(empty.changes)
    for batch_id, last in zip(new_ids, empty.commits, strict=True):
        added = replace(_with_offset(entry, source, moved), watermark_ms=watermark_ms)
        done: CommitEntry = replace(last, next_watermark_ms=watermark_ms)
        why = f"source {source}: {current} -> {moved}"
        tree = surveyed.tree
        changes.append(tree.write(f"{OFFSETS}/{batch_id}", OFFSET_FORMAT.serialize(added), why))
        changes.append(tree.write(f"{COMMITS}/{batch_id}", COMMIT_FORMAT.serialize(done), why))
    added_ids = span(new_ids[0], new_ids[-1], "batch")
    plan = Plan(
        command="set-offsets",
        summary=f"add {added_ids}: source {source} {current} -> {moved}",
        changes=tuple(changes),
        arguments={"source": source, "offset": moved},
        warnings=tuple(_warnings(surveyed, source, current, moved, back=back)),
        watches=surveyed.log_watches(),
    )
    return add_sink_batches(plan, sink, new_ids)


def _base(surveyed: Survey) -> int:
    base = last_committed(surveyed)
    newest = max([*surveyed.listing.offsets.ids, *surveyed.listing.commits.ids])
    if newest != base:
        raise EditError(
            surveyed.url,
            f"batch {newest} has started but is not committed. A restart would not run it again "
            f"if a batch were added after it. Let the query finish it, or first run "
            f"{rewind_command(surveyed.url, base)}.",
        )
    if (obstacle := obstacle_to(surveyed, base, reads_state=False)) is not None:
        raise EditError(surveyed.url, f"cannot add a batch after {base}: {obstacle}.")
    return base


def _with_offset(entry: OffsetEntry, source: str, offset: str) -> OffsetEntry:
    if isinstance(entry.offsets, dict):
        return replace(entry, offsets={**entry.offsets, source: offset}, control_batch_info=None)
    place = int(source)
    return replace(entry, offsets=(*entry.offsets[:place], offset, *entry.offsets[place + 1 :]))


def _warnings(
    surveyed: Survey, source: str, current: str | None, moved: str, *, back: bool
) -> Iterator[str]:
    if current == moved:
        yield f"Source {source} has this offset already: the new batch changes nothing."
    if added := new_partitions(current, moved):
        yield (
            f"Source {source} has not read {', '.join(added)} so far. The query fails if a "
            f"topic has no such partition: check names and numbers."
        )
    if back:
        counted = ", and the state will count them again" if surveyed.stores else ""
        yield f"Source {source} goes back: rows will be read again{counted}."


def broker(bootstrap_servers: str, config: Mapping[str, str]) -> AskBroker:
    """Return a function that asks the brokers; `config` are settings of librdkafka."""

    def ask(
        partitions: Mapping[str, tuple[int, ...]], target: Asked
    ) -> Mapping[str, Mapping[int, int]]:
        try:
            import confluent_kafka.admin
        except ImportError:
            raise OptionError(
                "Asking a Kafka broker needs its client, which is not installed. Run `pip install "
                "'epochal[kafka]'`. The options --to-offset and --shift-by work without it."
            ) from None
        kafka: Any = confluent_kafka
        client = kafka.admin.AdminClient({**config, "bootstrap.servers": bootstrap_servers})
        wanted = [(topic, number) for topic, numbers in partitions.items() for number in numbers]
        found = _list_offsets(kafka, client, wanted, target, bootstrap_servers)
        # A partition without a record since that time has no offset for it: take its end.
        at_the_end = [each for each, offset in found.items() if offset == NO_SUCH_OFFSET]
        if at_the_end:
            found |= _list_offsets(kafka, client, at_the_end, ToLatest(), bootstrap_servers)
        answer: dict[str, dict[int, int]] = {}
        for (topic, number), offset in found.items():
            answer.setdefault(topic, {})[number] = offset
        return answer

    return ask


def _list_offsets(
    kafka: Any,
    client: Any,
    partitions: list[tuple[str, int]],
    target: Asked,
    bootstrap_servers: str,
) -> dict[tuple[str, int], int]:
    match target:
        case ToEarliest():
            spec = kafka.admin.OffsetSpec.earliest()
        case ToLatest():
            spec = kafka.admin.OffsetSpec.latest()
        case ToTime(moment_ms):
            spec = kafka.admin.OffsetSpec.for_timestamp(moment_ms)
    request = {kafka.TopicPartition(topic, number): spec for topic, number in partitions}
    found: dict[tuple[str, int], int] = {}
    try:
        answers = client.list_offsets(request, request_timeout=TIMEOUT_SECONDS)
        for each, answer in answers.items():
            found[each.topic, each.partition] = answer.result(TIMEOUT_SECONDS).offset
    except (kafka.KafkaException, TimeoutError) as error:
        raise StorageError(
            bootstrap_servers, f"the broker did not return its offsets: {error}"
        ) from error
    return found
