"""Computes the CRC-32C of many records at once, for stores with row checksums. Pure.

The CRC of a record covers its key and then its value. All records advance together, one 32-bit word
at a time. They are sorted by length, longest first, so that the unfinished records are always a
prefix of the arrays.
"""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt

from epochal.state.rows.byte_spans import Spans

Checksums: TypeAlias = npt.NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78  # reflected
_FEW = 64
"""With fewer unfinished records than this, finishing each one by itself is faster."""


def row_checksums(keys: Spans, values: Spans) -> Checksums:
    """The CRC-32C of each key followed by its value."""
    return _extend(_extend(np.zeros(len(keys), np.uint32), keys), values)


def _extend(checksums: Checksums, spans: Spans) -> Checksums:
    order = np.argsort(-spans.lengths, kind="stable")
    starts, lengths = spans.starts[order], spans.lengths[order]
    state = ~checksums[order]
    low, high = _tables()
    done = 0
    # A view with one word per byte: a row may start at any byte.
    words = np.ndarray((max(len(spans.buffer) - 3, 0),), "<u4", spans.buffer, strides=(1,))
    whole = lengths >> 2
    running = int(np.searchsorted(-whole, -done))
    while running > _FEW:
        mixed = state[:running] ^ words[starts[:running] + 4 * done]
        state[:running] = low[mixed & 0xFFFF] ^ high[mixed >> 16]
        done += 1
        running = int(np.searchsorted(-whole, -done))
    result = ~state
    for index in np.flatnonzero(lengths > np.minimum(whole, done) * 4).tolist():
        start = int(starts[index]) + 4 * min(int(whole[index]), done)
        rest = spans.buffer[start : int(starts[index] + lengths[index])].tobytes()
        result[index] = google_crc32c.extend(int(result[index]), rest)
    unordered = np.empty_like(result)
    unordered[order] = result
    return unordered


@cache
def _tables() -> tuple[Checksums, Checksums]:
    """What the lower and the upper half of a word contribute to the CRC of four bytes."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(_POLYNOMIAL), table >> 1)
    steps = [table]
    for _ in range(3):
        steps.append(steps[-1] >> 8 ^ table[steps[-1] & 0xFF])
    halves = np.arange(65536)
    low = steps[3][halves & 0xFF] ^ steps[2][halves >> 8]
    high = steps[1][halves & 0xFF] ^ steps[0][halves >> 8]
    return low, high
