"""Finds rows that Kafka would refuse: by their content, and by the topic and partition they name.

Only the brokers know which topics and partitions exist. They are asked in the task, once per topic,
and only if rows name topics or partitions.

Note: a broker may still refuse a record, for example because the topic's max.message.bytes is lower
than the producer's limit, or because the user may not write to the topic. That fails the query.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pyarrow as pa

from epochal.connectors.contract import BadRows
from epochal.connectors.kafka.sink.producer import RecordProducer
from epochal.connectors.kafka.sink.sink_rows import Record, RecordPlan, few_records, place_of
from epochal.errors import KafkaRecordError

ASK_AGAIN_SECONDS = 10.0
"""A topic that did not exist may be created."""


class RowPlaces:
    """The topics that rows have named so far, and what the brokers said about them."""

    def __init__(self, plan: RecordPlan, settings: Mapping[str, str]) -> None:
        self._plan, self._settings = plan, settings
        self._producer: RecordProducer | None = None
        self._usable: set[tuple[str, int]] = set()
        self._refused: dict[tuple[str, int], tuple[float, str]] = {}
        """When to ask again, on the monotonic clock, and the reason."""

    def bad_rows(self, batch: pa.RecordBatch, max_bytes: int) -> BadRows:
        """Return the rows that cannot be written, with the reason."""
        few = few_records(self._plan, batch, max_bytes)
        if few is not None and self._are_usable(few):
            return {}
        chosen = self._plan.chosen(batch)
        bad = self._plan.bad_rows(chosen, max_bytes)
        for index, (topic, partition) in enumerate(self._plan.places(chosen) or ()):
            if index not in bad and (reason := self._reason(topic, partition)) is not None:
                bad[index] = reason
        return bad

    def _are_usable(self, records: Sequence[Record]) -> bool:
        return not self._plan.names_places or all(
            place_of(record) in self._usable for record in records
        )

    def close(self) -> None:
        """Close the client."""
        if self._producer is not None:
            self._producer.close()

    def _reason(self, topic: str, partition: int) -> str | None:
        """Why no record can go there; None if one can. Raises if the brokers do not answer."""
        place = (topic, partition)
        if place in self._usable:
            return None
        now = time.monotonic()
        if place in self._refused and now < self._refused[place][0]:
            return self._refused[place][1]
        if self._producer is None:
            self._producer = RecordProducer(self._settings)
        try:
            self._producer.check_topics({topic: partition})
        except KafkaRecordError as error:
            reason = str(error).rstrip(".")
            self._refused[place] = (now + ASK_AGAIN_SECONDS, reason)
            return reason
        self._usable.add(place)
        return None
