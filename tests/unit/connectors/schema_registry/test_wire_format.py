"""The header in front of values: what it says, and what is no header."""

from __future__ import annotations

import pytest

from epochal.connectors.schema_registry.wire_format import header, message_indices, schema_id
from epochal.errors import PayloadError


def test_a_header_is_a_zero_and_four_bytes_of_id() -> None:
    assert header(1) == b"\x00\x00\x00\x00\x01"
    assert header(0x01020304) == b"\x00\x01\x02\x03\x04"
    assert schema_id(b"\x00\x01\x02\x03\x04rest") == 0x01020304


@pytest.mark.parametrize(
    ("indices", "written"),
    [
        ((0,), b"\x00"),
        ((1,), b"\x02\x02"),
        ((0, 0), b"\x04\x00\x00"),
        ((2, 1, 0), b"\x06\x04\x02\x00"),
        ((100,), b"\x02\xc8\x01"),
    ],
)
def test_a_message_is_named_by_its_place_in_the_file(
    indices: tuple[int, ...], written: bytes
) -> None:
    assert header(7, indices) == b"\x00\x00\x00\x00\x07" + written
    value = header(7, indices) + b"payload"
    found, begin = message_indices(value)
    assert (found, value[begin:]) == (indices, b"payload")


@pytest.mark.parametrize("value", [b"", b"\x00\x00\x00\x01", b"\x01\x00\x00\x00\x01{}", b'{"a":1}'])
def test_other_values_are_refused_with_their_first_bytes(value: bytes) -> None:
    with pytest.raises(PayloadError, match="not written with a schema registry"):
        schema_id(value)


@pytest.mark.parametrize(
    "indices", [b"", b"\x04\x00", b"\xff\xff\xff\xff\xff\xff", b"\x01", b"\xfe\x01\x00"]
)
def test_broken_indices_are_refused(indices: bytes) -> None:
    with pytest.raises(PayloadError):
        message_indices(b"\x00\x00\x00\x00\x01" + indices)
