"""The input of the corpus: two streams in phases, and a table. The same for every run.

Rows arrive out of order within the watermark's delay, keys are skewed, every column has nulls, one
phase is empty. In a late phase some rows are hours late: by then the watermark has settled in any
engine, so all drop them. The last phase is far ahead and closes all windows.

Doubles are multiples of a quarter, so that their sums do not depend on the order.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

BEGIN = datetime.datetime(2026, 3, 29, 0, 30, tzinfo=datetime.UTC)
"""Half an hour before Europe's clocks change."""

PHASES, EMPTY_PHASE, LATE_PHASE = 6, 2, 4
ROWS = 60
SECONDS_PER_PHASE = 30
DELAY_SECONDS = 10

_EVENT_COLUMNS: list[tuple[str, Any]] = [
    ("id", pa.int64()),
    ("at", pa.timestamp("us", "UTC")),
    ("user", pa.string()),
    ("kind", pa.string()),
    ("amount", pa.decimal128(10, 2)),
    ("small", pa.decimal128(6, 2)),
    ("big", pa.decimal128(22, 4)),
    ("qty", pa.int32()),
    ("total", pa.int64()),
    ("score", pa.float64()),
    ("ratio", pa.float32()),
    ("flag", pa.bool_()),
    ("day", pa.date32()),
    ("tags", pa.list_(pa.string())),
    ("attrs", pa.map_(pa.string(), pa.int32())),
    ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
    ("payload", pa.string()),
    ("raw", pa.binary()),
]
EVENTS = pa.schema(_EVENT_COLUMNS)
_PAYMENT_COLUMNS: list[tuple[str, Any]] = [
    ("pid", pa.int64()),
    ("paid_at", pa.timestamp("us", "UTC")),
    ("payer", pa.string()),
    ("event_id", pa.int64()),
    ("sum", pa.decimal128(10, 2)),
    ("method", pa.string()),
]
PAYMENTS = pa.schema(_PAYMENT_COLUMNS)
USERS = pa.table(
    {
        "name": ["u0", "u1", "u2", "u3", "u5", None, "u5"],
        "city": ["Ulm", "Kiel", None, "Bonn", "Köln", "Nowhere", "Trier"],
        "level": pa.array([1, 2, 3, None, 5, 6, 7], pa.int32()),
    }
)


@dataclass(frozen=True, slots=True)
class Streams:
    """The directories that the streams read."""

    events: Path
    payments: Path

    def add(self, phase: int) -> None:
        """Let the files of a phase arrive, all at once."""
        for directory, made in ((self.events, events), (self.payments, payments)):
            for number, rows in enumerate(halves(made(phase))):
                hidden = directory / f".{phase}-{number}.parquet"
                pq.write_table(rows, hidden)
                hidden.rename(directory / f"{phase}-{number}.parquet")


def prepare(home: Path) -> Streams:
    """Make the empty directories of a run."""
    found = Streams(home / "events", home / "payments")
    found.events.mkdir(parents=True)
    found.payments.mkdir()
    return found


def halves(rows: pa.Table) -> list[pa.Table]:
    """Two files per phase, so that two readers have work."""
    middle = rows.num_rows // 2
    return [rows.slice(0, middle), rows.slice(middle)]


def events(phase: int) -> pa.Table:
    """The events of a phase."""
    rng = random.Random(f"events {phase}")
    rows = [_event(rng, phase, number) for number in range(_count(phase))]
    return pa.Table.from_pylist(rows, EVENTS)


def payments(phase: int) -> pa.Table:
    """The payments of a phase: for most events one, for some two or none."""
    rng = random.Random(f"payments {phase}")
    rows = [_payment(rng, phase, number) for number in range(_count(phase))]
    return pa.Table.from_pylist(rows, PAYMENTS)


def _count(phase: int) -> int:
    if phase == EMPTY_PHASE:
        return 0
    return 2 if phase == PHASES - 1 else ROWS


def _time(rng: random.Random, phase: int) -> datetime.datetime:
    if phase == PHASES - 1:
        return BEGIN + datetime.timedelta(days=1)
    seconds = phase * SECONDS_PER_PHASE + rng.uniform(0, SECONDS_PER_PHASE)
    if phase == LATE_PHASE and rng.random() < 0.1:
        seconds -= 7200
    elif phase:
        # Out of order, but never later than the delay allows, even if the phase before had a row at
        # the very end of its span.
        seconds -= rng.choice((0, 0, rng.uniform(0, DELAY_SECONDS - 1)))
    return BEGIN + datetime.timedelta(microseconds=round(seconds * 1e6))


def _user(rng: random.Random) -> str | None:
    return rng.choice(["u0"] * 6 + ["u1", "u2", "u3", "ü4", None])


def _event(rng: random.Random, phase: int, number: int) -> dict[str, Any]:
    def some(make: Callable[[], Any], nulls: float = 0.1) -> Any:
        return None if rng.random() < nulls else make()

    at = _time(rng, phase)
    qty, user = rng.randint(-50, 50), _user(rng)
    amount = Decimal(rng.randint(-99_999, 99_999)).scaleb(-2)
    return {
        "id": 1000 * phase + number,
        "at": some(lambda: at, 0.03),
        "user": user,
        "kind": some(lambda: rng.choice(["view", "cart", "buy"])),
        "amount": some(lambda: amount),
        "small": some(lambda: Decimal(rng.randint(-9999, 9999)).scaleb(-2)),
        "big": some(lambda: Decimal(rng.randint(-(10**15), 10**15)).scaleb(-4)),
        "qty": some(lambda: qty),
        "total": some(lambda: rng.choice([0, 1, -1, 10**12, rng.randint(-(10**6), 10**6)])),
        "score": some(lambda: rng.choice([0.0, -0.0, 0.25, 1e6, rng.randint(-400, 400) / 4])),
        "ratio": some(lambda: rng.randint(-400, 400) / 4),
        "flag": some(lambda: rng.random() < 0.5),
        "day": some(at.date),
        "tags": some(lambda: [rng.choice(["a", "b", "c", None]) for _ in range(rng.randint(0, 3))]),
        "attrs": some(lambda: [(k, rng.choice([1, 2, None])) for k in "xyz" if rng.random() < 0.5]),
        "place": some(lambda: {"city": rng.choice(["Ulm", None]), "zip": rng.randint(1, 9)}),
        "payload": some(lambda: _payload(rng, user, qty)),
        "raw": some(lambda: rng.randbytes(rng.randint(0, 4))),
    }  # fmt: skip


def _payload(rng: random.Random, user: str | None, qty: int) -> str:
    return rng.choice(
        [
            f'{{"who": "{user}", "n": {qty}, "list": [1, {qty}], "sub": {{"x": {qty / 4}}}}}',
            f'{{"who": null, "n": {qty}.5}}',
            f'{{"n": "{qty}", "other": true}}',
            "{broken",
            "",
        ]
    )


def _payment(rng: random.Random, phase: int, number: int) -> dict[str, Any]:
    return {
        "pid": 1000 * phase + number,
        "paid_at": None if rng.random() < 0.03 else _time(rng, phase),
        "payer": _user(rng),
        "event_id": 1000 * phase + rng.randint(0, ROWS - 1),
        "sum": None if rng.random() < 0.1 else Decimal(rng.randint(0, 9999)).scaleb(-2),
        "method": rng.choice(["card", "cash", None]),
    }
