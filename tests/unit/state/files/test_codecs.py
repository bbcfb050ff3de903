"""The compressions around state files."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.errors import StateFormatError
from epochal.state.files.codecs import compress, decompress

CODECS = ["lz4", "zstd", "snappy", "lzf"]
SAMPLE = b"".join(struct.pack("<q", i % 7) for i in range(9000)) + b"the end"


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.one_of(st.binary(max_size=300), st.binary(max_size=9).map(lambda raw: raw * 9999)))
@settings(max_examples=40)
def test_gives_back_what_was_compressed(codec: str, data: bytes) -> None:
    assert decompress(compress(data, codec) or b"ZV\x00\x00\x00", codec) == data


@pytest.mark.parametrize("codec", CODECS)
def test_reads_streams_one_after_the_other(codec: str) -> None:
    joined = compress(b"one" * 50, codec) + compress(b"two" * 50, codec)
    assert decompress(joined, codec) == b"one" * 50 + b"two" * 50


def test_reads_lz4_without_its_end_mark() -> None:
    assert decompress(compress(SAMPLE, "lz4")[:-21], "lz4") == SAMPLE


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("other", CODECS)
def test_a_wrong_codec_is_refused_and_not_guessed(codec: str, other: str) -> None:
    if codec != other:
        with pytest.raises(StateFormatError, match=r"7\.delta"):
            decompress(compress(SAMPLE, codec), other, source="7.delta")


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.data())
@settings(max_examples=60)
def test_damage_raises_nothing_but_a_format_error(codec: str, data: st.DataObject) -> None:
    raw = bytearray(compress(SAMPLE, codec))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw)[: data.draw(st.integers(0, len(raw)))]
    with contextlib.suppress(StateFormatError):
        decompress(cut, codec)


@given(st.integers(0, 100_000), st.integers(1, 255))
@settings(max_examples=200)
def test_lz4_notices_every_flipped_byte_but_a_levels(position: int, flip: int) -> None:
    raw = bytearray(compress(SAMPLE, "lz4"))
    position %= len(raw)
    raw[position] ^= flip
    try:
        read = decompress(bytes(raw), "lz4")
    except StateFormatError:
        return
    assert read == SAMPLE  # the block level only bounds sizes


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kept", [1, 10, 30, -1])
def test_a_file_cut_short_is_refused(codec: str, kept: int) -> None:
    whole = compress(SAMPLE, codec)
    with pytest.raises(StateFormatError):
        decompress(whole[:kept], codec)


def test_reads_what_an_lzf_encoder_packs() -> None:
    # Literal "ab", a back reference of 9 to it (a run), then 300 more of the same letter pair.
    packed = b"\x01ab" + b"\xe0\x00\x01" + b"\xe0\xff\x01"
    chunk = b"ZV\x01" + struct.pack(">HH", len(packed), 275) + packed
    assert decompress(chunk, "lzf") == (b"ab" * 138)[:275]


@pytest.mark.parametrize(
    "header",
    [
        struct.pack("<8sBiiI", b"LZ4Block", 0x2F, 40, 1 << 25, 0),
        struct.pack("<8sBiiI", b"LZ4Block", 0x25, 4, 1 << 20, 0),
        struct.pack("<8sBiiI", b"LZ4Block", 0x25, -4, 4, 0),
        struct.pack("<8sBiiI", b"LZ4Block", 0x25, 0x7FFFFFFF, 4, 0),
    ],
)
def test_an_lz4_header_that_lies_about_sizes_allocates_nothing(header: bytes) -> None:
    with pytest.raises(StateFormatError):
        decompress(header + b"xxxx", "lz4")


def test_a_snappy_block_that_lies_about_its_size_allocates_nothing() -> None:
    block = b"\xff\xff\xff\xff\x0f\x00"
    header = compress(b"", "snappy")
    with pytest.raises(StateFormatError, match="claims to unpack to 4294967295"):
        decompress(header + struct.pack(">i", len(block)) + block, "snappy")


def test_a_zstd_frame_that_wants_a_huge_window_is_refused() -> None:
    # A frame header with a window of 3.75 TiB.
    with pytest.raises(StateFormatError):
        decompress(b"\x28\xb5\x2f\xfd\x00\xff" + b"\x01\x00\x00", "zstd")
