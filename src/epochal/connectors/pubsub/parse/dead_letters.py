"""Publishes messages that cannot be parsed to a dead-letter topic.

A dead letter has the message's data and attributes, plus two attributes: the error and the id of
the original message.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from epochal.connectors.payloads.payload_columns import PARSE_ERROR
from epochal.connectors.pubsub.connection import Connection
from epochal.connectors.pubsub.parse.parse import Parsed
from epochal.connectors.pubsub.publish.encode import (
    MAX_ATTRIBUTES,
    MAX_VALUE_BYTES,
    RESERVED_KEY,
    Encoder,
)
from epochal.connectors.pubsub.publish.publisher import Publisher, PublishSettings
from epochal.connectors.pubsub.pubsub_options import SinkOptions, SourceOptions, full_name
from epochal.record_batches import batch_of

ERROR_ATTRIBUTE, ID_ATTRIBUTE = "epochal-parse-error", "epochal-message-id"


class DeadLetters:
    """A publisher to the topic in `deadLetterTopicId`.

    A message may be acknowledged only after its dead letter is published. Otherwise a crash between
    the two would lose it.
    """

    def __init__(self, options: SourceOptions) -> None:
        topic = full_name("topics", options.dead_letter_topic_id or "", options)
        self._publisher = Publisher(Connection(options), PublishSettings(topic=topic))
        self._encoder: Encoder | None = None

    def take(self, parsed: Parsed) -> pa.RecordBatch:
        """Send the rows that could not be parsed, and return the others."""
        good, bad = parsed.split()
        if bad.num_rows:
            letters = _letters(bad)
            if self._encoder is None:
                self._encoder = Encoder(letters.schema, SinkOptions(topic_id="dead-letters"))
            encoded = self._encoder.encode(letters)
            self._publisher.add(encoded.messages)
        return good

    def mark(self) -> int:
        """Return a mark that covers every dead letter sent so far."""
        return self._publisher.mark()

    def is_published(self, mark: int | None, wait: bool = False) -> bool:
        """Whether everything up to a mark is published; raises if the topic refuses it."""
        if mark is None:
            return True
        if wait:
            self._publisher.flush(mark)
        return self._publisher.is_published(mark)

    def close(self) -> None:
        self._publisher.close()


def _letters(bad: pa.RecordBatch) -> pa.RecordBatch:
    rows = zip(
        bad.column("attributes").to_pylist(),
        bad.column(PARSE_ERROR).to_pylist(),
        bad.column("message_id").to_pylist(),
        strict=True,
    )
    attributes = [
        [
            *_without_reserved(pairs or ()),
            (ERROR_ATTRIBUTE, _short(str(error))),
            (ID_ATTRIBUTE, message_id),
        ]
        for pairs, error, message_id in rows
    ]
    kind = bad.schema.field("attributes").type
    return batch_of(
        [bad.column("data"), pa.array(attributes, kind)], ["data", "attributes"], bad.num_rows
    )


def _without_reserved(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the attributes that may be published again, and leave room for ours.

    Pub/Sub itself adds attributes with reserved names, but accepts none from a publisher.
    """
    free = [pair for pair in pairs if not pair[0].lower().startswith(RESERVED_KEY)]
    return free[: MAX_ATTRIBUTES - 2]


def _short(text: str) -> str:
    return text.encode()[:MAX_VALUE_BYTES].decode(errors="ignore")
