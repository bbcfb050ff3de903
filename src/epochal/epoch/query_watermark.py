"""The watermark formula: from the highest event times seen to the query's watermark. Pure.

The driver computes it over the reports of all tasks, for the logs and for recovery. A task computes
it over the rows that have reached a stage, to drop late rows and to close windows.

Note: there are two different "nothing yet" values. A *highest event time* is `NONE_SEEN` (-1) until
a row was seen. A *watermark* starts at 0, as Spark's does: Spark's tracker counts an operator
without rows as 0, never lets the watermark become negative, and logs 0 in `batchWatermarkMs` and
`nextBatchWatermarkMs` until it advances. `NO_WATERMARK` (-1) means something else: the query has no
`with_watermark`, so no row is late and no window closes.
"""

from __future__ import annotations

from collections.abc import Sequence

NONE_SEEN = -1
"""The highest event time of a watermark that has not seen a row."""

NO_WATERMARK = -1
"""The watermark of a query that declares none."""

NOT_ADVANCED = 0
"""The watermark of a query that declares one, before any row has advanced it."""


def watermark_of(highs: Sequence[int], delays_ms: Sequence[int], floor_ms: int) -> int:
    """Return the query's watermark: the slowest one of its plan, and at least `floor_ms`.

    `highs` are the highest event times in ms, per watermark of the plan. One that has seen no row
    counts as 0 and so holds back all others: rows of its source may still arrive with any event
    time. Spark does the same (`multipleWatermarkPolicy` "min").
    `floor_ms` is what the watermark was before: it never moves backwards.
    """
    if not highs:
        return floor_ms
    slowest = min(
        NOT_ADVANCED if high < 0 else high - delay_ms
        for high, delay_ms in zip(highs, delays_ms, strict=True)
    )
    return max(slowest, floor_ms)
