"""Encodes rows as the bytes of a Publish request. Pure.

The column `data` (or `value`) is the payload. Without one, all columns that have no other meaning
become one JSON object. The columns `attributes` and `ordering_key` become the message's fields of
the same name. Columns that the source adds (`message_id`, `publish_time`, `delivery_attempt`,
`ack_id`) are ignored, so that rows can be written as they were read. Any other column beside
`data` is an error.

Note: messages are encoded by hand, as fields of the request that will hold them. This takes a third
of the time that objects would take. `test_encode.py` compares the result with Google's own classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from epochal.connectors.pubsub.protobuf_wire import encode_attribute, encode_field, encode_varint
from epochal.connectors.pubsub.publish.payloads import (
    check_payload,
    payloads,
    plain_values,
    rows_as_json,
)
from epochal.connectors.pubsub.pubsub_options import MAX_PUBLISH_BYTES, SinkOptions
from epochal.errors import PayloadError

DATA_COLUMNS = ("data", "value")
ADDED_BY_SOURCE = frozenset({"message_id", "publish_time", "delivery_attempt", "ack_id"})
_ORDERING_KEY = 5
MAX_ATTRIBUTES, MAX_KEY_BYTES, MAX_VALUE_BYTES = 100, 256, 1024
RESERVED_KEY = "goog"


@dataclass(frozen=True, slots=True)
class MessageLayout:
    """Which column has which meaning. None means that there is no such column."""

    data: str | None
    fields: tuple[str, ...]
    """If `data` is None: the columns of the JSON object that is the payload."""
    attributes: str | None
    ordering_key: str | None


@dataclass(frozen=True, slots=True)
class Encoded:
    """Messages, each encoded as a field of a request, and their ordering keys if there are any."""

    messages: list[bytes]
    keys: list[str] | None


@dataclass(frozen=True, slots=True)
class Marks:
    """Identifies a row, so that readers can drop duplicates.

    A retry of the same row of the same epoch has the same marks.
    """

    query: str
    epoch: int
    writer: int
    """The number of the writing task or partition."""

    def attributes(self, prefix: str) -> bytes:
        pairs = {"query": self.query, "epoch": str(self.epoch)}
        return b"".join(encode_attribute(prefix + name, text) for name, text in pairs.items())


def plan_layout(schema: pa.Schema, options: SinkOptions) -> MessageLayout:
    """Decide what each column means; raises PayloadError for columns that cannot be sent."""
    names = list(schema.names)
    wanted = options.data_column
    if wanted is not None and wanted not in names:
        raise PayloadError(
            f"dataColumn is {wanted}, but the columns are {', '.join(names)}. Name one of these."
        )
    data = wanted or next((name for name in DATA_COLUMNS if name in names), None)
    attributes = options.attributes_column if options.attributes_column in names else None
    key = options.ordering_key_column if options.ordering_key_column in names else None
    if options.ordered is False:
        key = None
    elif options.ordered and key is None:
        raise PayloadError(
            f"ordered is true, but there is no column {options.ordering_key_column} with the "
            f"ordering keys: the columns are {', '.join(names)}. Add it, or set orderingKeyColumn."
        )
    named = {data, attributes, options.ordering_key_column}
    rest = tuple(name for name in names if name not in named)
    if data is not None:
        unused = [name for name in rest if name not in ADDED_BY_SOURCE]
        if unused:
            raise PayloadError(
                f"Column {data} is the payload, so {', '.join(unused)} would be lost. Select only "
                f"{data}, attributes and ordering_key, or move the others into one of them."
            )
        check_payload(schema.field(data).type, data)
        rest = ()
    elif not rest and attributes is None:
        raise PayloadError(
            f"No column can be the payload: the columns are {', '.join(names)}. Name one `data`."
        )
    for name in rest:
        check_payload(schema.field(name).type, name)
    if attributes is not None:
        _check_attributes(schema.field(attributes).type, attributes)
    if key is not None and not pa.types.is_string(schema.field(key).type):
        raise PayloadError(
            f"Column {key} holds ordering keys and must be a string, not "
            f"{schema.field(key).type}. Cast it."
        )
    return MessageLayout(data, rest, attributes, key)


class Encoder:
    """Turns batches of one schema into messages."""

    def __init__(self, schema: pa.Schema, options: SinkOptions) -> None:
        self.layout = plan_layout(schema, options)
        self._prefix = options.attribute_prefix

    def encode(self, batch: pa.RecordBatch, marks: Marks | None = None, row: int = 0) -> Encoded:
        """Encode a batch; `row` is the number of its first row among all rows of this writer."""
        layout = self.layout
        if layout.data is not None:
            bodies = payloads(batch.column(layout.data), layout.data)
        elif layout.fields:
            columns = [batch.column(name) for name in layout.fields]
            bodies = rows_as_json(layout.fields, columns)
        else:
            bodies = [b""] * batch.num_rows
        keys: list[str] | None = None
        if layout.ordering_key is not None:
            keys = [key or "" for key in batch.column(layout.ordering_key).to_pylist()]
        tails = self._tails(batch, keys, marks, row)
        return Encoded(_plain(bodies) if tails is None else _with_tails(bodies, tails), keys)

    def _tails(
        self, batch: pa.RecordBatch, keys: list[str] | None, marks: Marks | None, row: int
    ) -> list[bytes] | None:
        """Encode what follows the payload in each message; None if nothing does."""
        name, parts = self.layout.attributes, []
        if name is not None:
            column = batch.column(name)
            parts.append([_attributes(value) for value in plain_values(column, name)])
        if keys is not None:
            parts.append(
                [encode_field(_ORDERING_KEY, key.encode()) if key else b"" for key in keys]
            )
        if marks is not None:
            shared, label = marks.attributes(self._prefix), f"{self._prefix}row"
            numbers = range(row, row + batch.num_rows)
            parts.append([shared + encode_attribute(label, f"{marks.writer}-{n}") for n in numbers])
        if not parts:
            return None
        return (
            parts[0]
            if len(parts) == 1
            else [b"".join(pieces) for pieces in zip(*parts, strict=True)]
        )


def _attributes(pairs: Any) -> bytes:
    if not pairs:
        return b""
    if len(pairs) > MAX_ATTRIBUTES:
        raise PayloadError(
            f"A message has {len(pairs)} attributes, but Pub/Sub accepts at most {MAX_ATTRIBUTES}. "
            f"Put some of them into the payload."
        )
    texts = {key: "" if value is None else str(value) for key, value in pairs.items()}
    for key, text in texts.items():
        _check_attribute(key, text)
    return b"".join([encode_attribute(key, text) for key, text in texts.items()])


def _check_attribute(key: str, text: str) -> None:
    """Raise PayloadError for an attribute that Pub/Sub would refuse with its whole request."""
    if not key or key.lower().startswith(RESERVED_KEY):
        raise PayloadError(
            f"{key!r} cannot be the name of an attribute: Pub/Sub reserves names that start with "
            f"{RESERVED_KEY}, and accepts no empty one. Rename it."
        )
    # A character has at most four bytes, so most texts need no encoding to be measured.
    for what, value, most in (("name", key, MAX_KEY_BYTES), ("value", text, MAX_VALUE_BYTES)):
        if len(value) > most // 4 and (size := len(value.encode())) > most:
            raise PayloadError(
                f"The {what} of attribute {key[:80]!r} has {size} bytes, but Pub/Sub accepts at "
                f"most {most}. Shorten it, or put it into the payload."
            )


def _check_attributes(kind: Any, name: str) -> None:
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        values = [kind.item_type]
    elif pa.types.is_struct(kind):
        values = [field.type for field in kind]
    else:
        raise PayloadError(
            f"Column {name} holds attributes and must be a map or a struct of strings, not {kind}. "
            f"Cast it."
        )
    wrong = [kind_of_value for kind_of_value in values if not pa.types.is_string(kind_of_value)]
    if wrong:
        raise PayloadError(
            f"Attributes are strings, but values of column {name} are {wrong[0]}. Cast them."
        )


_heads: dict[int, bytes] = {}
"""The bytes before a payload, by the payload's size. Messages often have the same few sizes."""


def _plain(bodies: Sequence[bytes]) -> list[bytes]:
    """Encode messages that have a payload and nothing else."""
    heads, messages = _heads, []
    for body in bodies:
        size = len(body)
        head = heads.get(size)
        if head is None:
            head = _head(size)
        messages.append(head + body)
    return messages


def _head(size: int) -> bytes:
    if size == 0:
        raise PayloadError(
            "A row has neither data nor attributes, but Pub/Sub does not accept empty messages. "
            "Filter out such rows, or set epochAttributes to true."
        )
    if len(_heads) > 100_000:
        _heads.clear()
    # Field 1 of a message is its data; field 2 of the request, around it, is the message.
    inner = b"\x0a" + encode_varint(size)
    head = _heads[size] = b"\x12" + encode_varint(len(inner) + size) + inner
    check_size(len(head) + size)
    return head


def _with_tails(bodies: Iterable[bytes], tails: Iterable[bytes]) -> list[bytes]:
    extended = []
    for body, tail in zip(bodies, tails, strict=True):
        inner = (b"\x0a" + encode_varint(len(body)) + body if body else b"") + tail
        if not inner:
            _head(0)
        check_size(len(inner))
        extended.append(b"\x12" + encode_varint(len(inner)) + inner)
    return extended


def check_size(size: int) -> None:
    """Raise PayloadError if a message is too large for a request."""
    if size > MAX_PUBLISH_BYTES:
        raise PayloadError(
            f"A message has {size} bytes, but Pub/Sub accepts at most {MAX_PUBLISH_BYTES}. Store "
            f"the content elsewhere and send a link to it."
        )
