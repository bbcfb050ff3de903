"""Spark's rate source at row granularity: numbers, each with the time at which it was due.

Values and timestamps are those of Spark's micro-batch rate source. So are the log in `sources/N`
(when the source was created) and the offset (whole seconds since then). A checkpoint can move from
one engine to the other at any whole second. Between seconds the offset is the last second that was
read completely, so Spark would repeat rows but never miss one.

Partition `p` of `n` holds the values whose remainder modulo `n` is `p`.

Note: a second may be read completely before it is over, because its last row is due earlier. Spark
treats an offset ahead of its clock as a broken checkpoint, so `close` waits for that second to
pass.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import numpy as np
import pyarrow as pa

from epochal.checkpoint.file_log import RateLog
from epochal.checkpoint.layout import source_log_path
from epochal.checkpoint.spark_json import parse_object
from epochal.clock import Clock, SystemClock
from epochal.connectors.contract import FunctionReaders, Offset, Positions, Source, SourceReader
from epochal.connectors.formats import SourceRequest, check_positive
from epochal.errors import MalformedFileError, OptionError
from epochal.files import Files
from epochal.options import read_options
from epochal.record_batches import batch_of

RATE_SCHEMA = pa.schema(
    [pa.field("timestamp", pa.timestamp("us", tz="UTC")), pa.field("value", pa.int64())]
)
LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RateOptions:
    """The options of Spark's rate source."""

    rows_per_second: int = 1

    ramp_up_time: timedelta = timedelta(0)
    """How long the rate grows evenly. Fractions of a second are dropped, as in Spark."""

    num_partitions: int | None = None
    """Applies to the first run of a checkpoint, and after Spark has run on the checkpoint."""

    def __post_init__(self) -> None:
        if self.rows_per_second <= 0:
            raise OptionError(
                f"rate: rowsPerSecond must be positive, not {self.rows_per_second}; otherwise "
                f"there would be no rows."
            )
        check_positive("rate", num_partitions=self.num_partitions)
        if self.ramp_up_time.total_seconds() > LONG_MAX // self.rows_per_second:
            raise OptionError(
                f"rate: rampUpTime must not exceed {LONG_MAX // self.rows_per_second} s at "
                f"{self.rows_per_second} rows per second; otherwise values would overflow."
            )


@dataclass(frozen=True, slots=True)
class Schedule:
    """Maps values to the times at which they are due, in milliseconds since 1970."""

    created_ms: int
    rows_per_second: int
    ramp_up_seconds: int = 0

    def value_at(self, second: int) -> int:
        """The first value of a second."""
        ramp = min(second, self.ramp_up_seconds)
        growth = self.rows_per_second // (self.ramp_up_seconds + 1)
        return growth * ramp * (ramp + 1) // 2 + (second - ramp) * self.rows_per_second

    def second_of(self, value: int) -> int:
        """The second of a value. During the ramp, seconds without rows are skipped."""
        ramped = self.value_at(self.ramp_up_seconds)
        if value >= ramped:
            return self.ramp_up_seconds + (value - ramped) // self.rows_per_second
        return bisect_right(range(self.ramp_up_seconds + 1), value, key=self.value_at) - 1

    def due_before(self, now_ms: int) -> int:
        """The number of values due by `now_ms`: all values below it are due."""
        elapsed = now_ms - self.created_ms
        if elapsed < 0:
            return 0
        second, rest = divmod(elapsed, 1000)
        start, rows = self._rows(second)
        guess = min(rows, math.ceil((rest + 0.5) * rows / 1000))
        # The guess inverts Spark's rounding of timestamps and may be off by one.
        while guess < rows and _rounded(guess, rows) <= rest:
            guess += 1
        while guess > 0 and _rounded(guess - 1, rows) > rest:
            guess -= 1
        return start + guess

    def stamps_ms(self, values: Sequence[int] | np.ndarray) -> np.ndarray:
        """When each of these values was due."""
        wanted = np.asarray(values, dtype=np.int64)
        ramped = self.value_at(self.ramp_up_seconds)
        seconds, row = np.divmod(wanted - ramped, self.rows_per_second)
        scaled = row * (1000.0 / self.rows_per_second)
        stamps = (seconds + self.ramp_up_seconds) * 1000 + np.floor(scaled + 0.5).astype(np.int64)
        for index in np.flatnonzero(wanted < ramped):
            value = int(wanted[index])
            second = self.second_of(value)
            start, rows = self._rows(second)
            stamps[index] = second * 1000 + _rounded(value - start, rows)
        return stamps + self.created_ms

    def _rows(self, second: int) -> tuple[int, int]:
        start = self.value_at(second)
        return start, self.value_at(second + 1) - start


def _rounded(row: int, rows: int) -> int:
    return math.floor(row * (1000.0 / rows) + 0.5)


@dataclass(frozen=True, slots=True)
class RatePosition:
    """The next value of a partition, and the step to the one after it."""

    next: int
    step: int

    def text(self) -> str:
        return f'{{"next":{self.next},"step":{self.step}}}'


def parse_position(text: str) -> RatePosition:
    match parse_object(text, "rate position"):
        case {"next": int(following), "step": int(step)} if following >= 0 and step > 0:
            return RatePosition(following, step)
    raise MalformedFileError(
        "rate position", f'{text[:80]!r} is not of the form {{"next": N, "step": N}}'
    )


class RateReader(SourceReader):
    """Returns the values that are due."""

    def __init__(self, schedule: Schedule, clock: Clock, partitions: Positions) -> None:
        self._schedule, self._clock = schedule, clock
        self._at = {name: parse_position(text) for name, text in partitions.items()}
        self._ends: dict[str, int] = {}
        self._turn = 0
        self.last_read: tuple[str, ...] = ()

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        due = self._schedule.due_before(self._clock.now_ms())
        names = list(self._at)
        ranges: list[np.ndarray] = []
        before = dict(self._at)
        # Start with another partition each time. Otherwise the first one could take all the room.
        for name in names[self._turn :] + names[: self._turn]:
            at = self._at[name]
            end = min(due, self._ends.get(name, due), at.next + max_rows * at.step)
            if max_rows > 0 and at.next < end:
                values = np.arange(at.next, end, at.step, dtype=np.int64)
                max_rows -= len(values)
                self._at[name] = RatePosition(int(values[-1]) + at.step, at.step)
                ranges.append(values)
        if not ranges:
            return None
        self._turn = (self._turn + 1) % len(names)
        self.last_read = tuple(name for name in names if self._at[name] != before[name])
        values = np.concatenate(ranges)
        stamps = self._schedule.stamps_ms(values) * 1000
        columns = [pa.array(stamps, RATE_SCHEMA.field(0).type), pa.array(values)]
        return batch_of(columns, RATE_SCHEMA, len(values))

    def positions(self) -> Positions:
        return {name: at.text() for name, at in self._at.items()}

    def waiting(self) -> Positions:
        due = self._schedule.due_before(self._clock.now_ms())
        return {
            name: RatePosition(due + (at.next - due) % at.step, at.step).text()
            for name, at in self._at.items()
            if at.next < due
        }

    def limit(self, ends: Positions) -> None:
        self._ends = {name: parse_position(text).next for name, text in ends.items()}


class RateSource(Source):
    """The driver's side. Creates or reads the log in `sources/N`."""

    tells_waiting = True

    def __init__(
        self,
        options: RateOptions,
        checkpoint: Files,
        index: int,
        *,
        parallelism: int = 1,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._partitions = options.num_partitions or parallelism
        log = RateLog(checkpoint.at(source_log_path(index)))
        created_ms = log.get(0)
        if created_ms is None:
            created_ms = self._clock.now_ms()
            log.add(0, created_ms)
        ramp_up_seconds = int(options.ramp_up_time.total_seconds())
        self.schedule = Schedule(created_ms, options.rows_per_second, ramp_up_seconds)
        self._logged_second = 0

    @property
    def schema(self) -> pa.Schema:
        return RATE_SCHEMA

    @property
    def readers(self) -> FunctionReaders:
        return FunctionReaders(partial(RateReader, self.schedule, self._clock))

    def initial(self) -> Positions:
        return _positions_from(0, self._partitions)

    def resume(self, offset: Offset) -> Positions:
        if not offset.isascii() or not offset.isdigit():
            raise MalformedFileError("rate offset", f"{offset[:40]!r} is not a number of seconds")
        return _positions_from(self.schedule.value_at(int(offset)), self._partitions)

    def discover(self, known: Positions) -> Positions:
        self._partitions = len(known)  # the checkpoint may have others than the options say
        return {}

    def offset(self, positions: Positions) -> Offset:
        lowest = min(at.next for at in _parsed(positions).values())
        # If nothing was read, log second 0, even if the ramp leaves the first seconds empty:
        # `second_of` would skip them.
        self._logged_second = self.schedule.second_of(lowest) if lowest else 0
        return str(self._logged_second)

    def boundary(self, positions: Positions) -> Positions:
        at = _parsed(positions)
        # `next - step` is the last value that a partition has read. The boundary must lie above
        # the last value of every partition.
        highest = max(place.next - place.step for place in at.values()) + 1
        second = self.schedule.second_of(max(highest, 0))
        while self.schedule.value_at(second) < highest:
            second += 1
        return _positions_from(self.schedule.value_at(second), len(at))

    def latest(self) -> Positions:
        due = self.schedule.due_before(self._clock.now_ms())
        return _positions_from(due, self._partitions)

    def lag(self, positions: Positions, latest: Positions) -> int:
        return max(0, _count(_parsed(latest)) - _count(_parsed(positions)))

    def close(self) -> None:
        ahead_ms = self.schedule.created_ms + self._logged_second * 1000 - self._clock.now_ms()
        if 0 < ahead_ms <= 1000:
            self._clock.sleep(ahead_ms / 1000)


def rate_schema(name: str, options: Mapping[str, str], schema: pa.Schema | None) -> pa.Schema:
    """The columns of the source. Checks its options too."""
    read_options(RateOptions, options, of=name)
    if schema is not None:
        raise OptionError(
            "rate: the columns are always timestamp and value. Remove the schema from the query."
        )
    return RATE_SCHEMA


def open_rate(request: SourceRequest) -> RateSource:
    options = request.read_options(RateOptions)
    return RateSource(options, request.checkpoint, request.index, parallelism=request.parallelism)


def _positions_from(value: int, partitions: int) -> Positions:
    """The position of each partition at its first value that is not below `value`."""
    return {
        str(p): RatePosition(value + (p - value) % partitions, partitions).text()
        for p in range(partitions)
    }


def _parsed(positions: Positions) -> Mapping[str, RatePosition]:
    return {name: parse_position(text) for name, text in positions.items()}


def _count(positions: Mapping[str, RatePosition]) -> int:
    """How many values have been read in all partitions together."""
    return sum(at.next // at.step for at in positions.values())
