"""Pairs of queries whose state belongs to the user's Python code, as in `upgrade_pairs`."""

from __future__ import annotations

from tests.spark.upgrade_pairs import ACTION, IMPOSSIBLE, ROCKS, SAFE, Before, Pair, marked
from tests.spark.upgrade_processors import added, processed

from epochal.checkpoint.restart import STATE_ENCODING

AVRO = {**ROCKS, STATE_ENCODING: "avro"}
TOTAL = SEEN = "Value n bigint"

BEFORE: dict[str, Before] = {
    "processor": Before(lambda s: processed(s.a, total=TOTAL), conf=ROCKS),
    "two variables": Before(lambda s: processed(s.a, total=TOTAL, seen=SEEN), conf=ROCKS),
    "avro processor": Before(lambda s: processed(s.a, total="Value n int"), conf=AVRO),
    "pandas state": Before(lambda s: added(s.a)),
}

PAIRS = [
    Pair("processor: nothing", lambda s: processed(s.a, total=TOTAL), SAFE),
    Pair(
        "processor: one more variable",
        lambda s: processed(s.a, total=TOTAL, seen=SEEN),
        SAFE,
        [("q", 8, 1), ("x", 11, 2), ("y", 5, 1), ("z", 10, 1)],
    ),
    Pair(
        "processor: another name of a variable",
        lambda s: processed(s.a, seen=SEEN),
        ACTION,
        [("q", 0, 1), ("x", 0, 2), ("y", 0, 1), ("z", 0, 1)],
    ),
    Pair(
        "processor: another kind of variable",
        lambda s: processed(s.a, total="List n bigint"),
        IMPOSSIBLE,
    ),
    Pair("processor: another type", lambda s: processed(s.a, total="Value n double"), IMPOSSIBLE),
    Pair(
        "processor: one more field",
        lambda s: processed(s.a, total="Value n bigint, m bigint"),
        IMPOSSIBLE,
    ),
    Pair(
        "processor: another time mode",
        lambda s: processed(s.a, time="ProcessingTime", total=TOTAL),
        IMPOSSIBLE,
    ),
    Pair(
        "processor: another output mode",
        lambda s: processed(s.a, mode="Append", total=TOTAL),
        IMPOSSIBLE,
        mode="append",
    ),
    Pair(
        "processor: another key",
        lambda s: processed(s.a, by="k2", total=TOTAL),
        ACTION,
        [("x", 15, 0), ("y", 8, 0), ("z", 11, 0)],
    ),
    Pair(
        "processor: the type of the key", lambda s: processed(s.a, by="w", total=TOTAL), IMPOSSIBLE
    ),
    Pair(
        "two variables: one less",
        lambda s: processed(s.a, total=TOTAL),
        ACTION,
        [("q", 8, 0), ("x", 11, 0), ("y", 5, 0), ("z", 10, 0)],
    ),
    Pair("avro processor: nothing", lambda s: processed(s.a, total="Value n int"), SAFE),
    Pair("avro processor: a wider type", lambda s: processed(s.a, total=TOTAL), SAFE),
    Pair(
        "avro processor: one more field", lambda s: processed(s.a, total="Value n int, m int"), SAFE
    ),
    Pair(
        "avro processor: another type", lambda s: processed(s.a, total="Value n string"), IMPOSSIBLE
    ),
    Pair("pandas state: nothing", lambda s: added(s.a), SAFE),
    Pair("pandas state: another type", lambda s: added(s.a, state="n double"), IMPOSSIBLE),
    Pair(
        "pandas state: one more field", lambda s: added(s.a, state="n bigint, m bigint"), IMPOSSIBLE
    ),
    Pair(
        "pandas state: a timeout", lambda s: added(marked(s.a), timeout="EventTimeTimeout"), ACTION
    ),
    Pair(
        "pandas state: another key",
        lambda s: added(s.a, by="k2"),
        ACTION,
        [("x", 15), ("y", 8), ("z", 11)],
    ),
]
