"""Decodes Avro payloads, binary or JSON, without a header, as Pub/Sub's own schemas encode them.

Note: the message's attribute `googclient_schemaencoding` names the encoding. A message without the
attribute is binary.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO, StringIO
from typing import Any

import fastavro

from epochal.connectors.payloads.avro_payloads import parsed_schema, plain, record_type
from epochal.connectors.payloads.payload_columns import as_column, decode_each
from epochal.errors import PayloadError

ENCODING = "googclient_schemaencoding"
SCHEMA = "pubsub: parseSchema"


class AvroDecoder:
    """Decodes records of one schema."""

    def __init__(self, document: bytes) -> None:
        self._schema = parsed_schema(document, SCHEMA)
        self.type = record_type(self._schema, SCHEMA)

    def decode(self, payloads: Sequence[bytes], attributes: Any) -> tuple[Any, list[str | None]]:
        encodings = [dict(pairs or ()).get(ENCODING) for pairs in attributes.to_pylist()]

        def row(index: int, payload: bytes) -> Any:
            if encodings[index] == "JSON":
                return next(fastavro.json_reader(StringIO(payload.decode()), self._schema))
            stream = BytesIO(payload)
            record = fastavro.schemaless_reader(stream, self._schema, None)
            left = len(payload) - stream.tell()
            if left:
                raise PayloadError(f"{left} bytes follow the record")
            return record

        # On malformed input, fastavro raises many exceptions: IndexError, EOFError, KeyError, …
        values, errors = decode_each(payloads, row, Exception)
        return as_column([plain(value) for value in values], errors, self.type)
