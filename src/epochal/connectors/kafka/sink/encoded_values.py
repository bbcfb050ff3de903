"""Encodes the column `value` with a registered schema, in front of the Kafka sink's own writers.

Note: `write` gets the batch that `bad_rows` got, if all its rows are good. Its values are then not
encoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa

from epochal.connectors.contract import BadRows, Prepare, SinkWriter, WriterContext
from epochal.connectors.kafka.sink.sink_exact import RecordWriters
from epochal.connectors.kafka.sink.sink_plain import PlainWriters
from epochal.connectors.schema_registry.value_schemas import ValueSpec
from epochal.errors import OptionError

VALUE = "value"


def encoded_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of rows whose values are encoded."""
    return schema.set(schema.get_field_index(VALUE), pa.field(VALUE, pa.binary()))


@dataclass(frozen=True, slots=True)
class EncodingWriters:
    """Opens writers in tasks."""

    writers: RecordWriters | PlainWriters
    spec: ValueSpec

    @property
    def staging(self) -> str:
        assert isinstance(self.writers, RecordWriters), "only exactly-once delivery stages rows"
        return self.writers.staging

    def open(self, context: WriterContext) -> EncodingWriter:
        return EncodingWriter(self, context)


class EncodingWriter(SinkWriter):
    """Passes rows with encoded values on to the sink's writer."""

    checks_rows = True

    def __init__(self, plan: EncodingWriters, context: WriterContext) -> None:
        self._encoder = plan.spec.encoder(cast(Any, context.schema.field(VALUE).type))
        inner = replace(context, schema=encoded_schema(context.schema))
        self._writer = plan.writers.open(inner)
        self._checked: tuple[pa.RecordBatch, pa.RecordBatch] | None = None

    @property
    def max_dead_letter_bytes(self) -> int:
        return self._writer.max_dead_letter_bytes

    def write(self, batch: pa.RecordBatch) -> None:
        checked, self._checked = self._checked, None
        if checked is not None and checked[0] is batch:
            self._writer.write(checked[1])
            return
        encoded, bad = self._encoded(batch)
        for reason in bad.values():
            raise OptionError(f"kafka: {reason}.")
        self._writer.write(encoded)

    def bad_rows(self, batch: pa.RecordBatch) -> BadRows:
        encoded, bad = self._encoded(batch)
        found = {**self._writer.bad_rows(encoded), **bad}
        self._checked = None if found else (batch, encoded)
        return found

    def write_dead_letters(self, letters: Sequence[bytes]) -> None:
        self._writer.write_dead_letters(letters)

    def cut(self, epoch: int) -> Prepare:
        return self._writer.cut(epoch)

    def close(self) -> None:
        self._writer.close()

    def _encoded(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        values, errors = self._encoder.encode(batch.column(VALUE))
        bad = {
            index: f"a value does not fit the schema: {error.rstrip('.')}"
            for index, error in enumerate(errors)
            if error is not None
        }
        column = pa.array(values, pa.binary())
        return batch.set_column(batch.schema.get_field_index(VALUE), VALUE, column), bad
