"""Searches for SQL and files whose results differ from Spark's.

    python -m tests.fuzz_sql --seeds 100              everything of the seeds 0 to 99
    python -m tests.fuzz_sql --first 7 --seeds 1      those of one seed again
    python -m tests.fuzz_sql --only plans

A seed is a query with about 600 expressions, a plan, a plan that Arrow and Spark's code evaluate
(`forms`), a program with a source, a sink and stops (`programs`), or a directory with about 20
files. `examples` are those of all functions; they have no seeds. What differs is printed in its
smallest form. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.frames.fuzz_files import FILES_PER_CASE, difference
from tests.frames.odd_files import make_case
from tests.fuzz_sql.both_sides import quiet
from tests.fuzz_sql.example_runs import BY_SPARK, BY_US, DIFFERENT, SETTINGS, run_all
from tests.fuzz_sql.examples import read_examples
from tests.fuzz_sql.expression_search import ExpressionSearch, Tally
from tests.fuzz_sql.plan_search import PlanSearch
from tests.fuzz_sql.programs import ProgramSearch
from tests.spark.sessions import session_with


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds (100)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--only", choices=SEARCHES, help="only one of them")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    # A search asks for little of the same twice: Java's second compiler costs more than it saves.
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
    session_with({}).sparkContext.setLogLevel("OFF")
    wrong = 0
    with quiet():
        for name in [arguments.only] if arguments.only else SEEDED:
            wrong += SEARCHES[name](seeds)
    return 1 if wrong else 0


def _expressions(seeds: range) -> int:
    search, tally = ExpressionSearch(session_with({})), Tally()

    def one(seed: int) -> Iterable[object]:
        before = len(tally.differences)
        search.run(seed, tally)
        return tally.differences[before:]

    def counted() -> str:
        equal = f"{tally.equal} expressions are equal ({tally.cells} cells)"
        return f"{equal}, {tally.failing} fail equally"

    return _each(seeds, one, counted)


def _plans(seeds: range) -> int:
    search = PlanSearch(session_with({}))
    return _each(
        seeds,
        lambda seed: [found] if (found := search.run(seed)) else [],
        lambda: f"{search.compared} plans are compared, {len(search.refused)} are refused",
    )


def _forms(seeds: range) -> int:
    search = PlanSearch(session_with({}))
    return _each(
        seeds,
        lambda seed: [found] if (found := search.run_both_forms(seed)) else [],
        lambda: f"{search.compared} plans are evaluated by Arrow and by Spark's code",
    )


def _programs(seeds: range) -> int:
    search = ProgramSearch(session_with({}))
    return _each(
        seeds,
        lambda seed: [found] if (found := search.run(seed)) else [],
        lambda: f"Programs are compared: {dict(search.compared)}",
    )


def _files(seeds: range) -> int:
    counts: Counter[str] = Counter()

    def one(seed: int) -> Iterable[object]:
        case = make_case(seed, FILES_PER_CASE)
        with tempfile.TemporaryDirectory() as folder:
            found = difference(session_with(case.settings), case, Path(folder))
        counts[case.form] += len(case.files)
        return [found] if found else []

    return _each(seeds, one, lambda: f"{sum(counts.values())} files are compared: {dict(counts)}")


def _examples(_: range) -> int:
    spark, wrong = session_with(SETTINGS), 0
    for ansi in ("true", "false"):
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        functions = read_examples(spark)
        report = run_all(
            spark, [e for found in functions.values() for e in found], literal=ansi == "true"
        )
        lines = report.lines(DIFFERENT, BY_US)
        wrong += len(lines)
        for line in [*report.lines(BY_SPARK), "", *lines]:
            _say(line)
        bare = sorted(name for name, found in functions.items() if not found)
        _say(f"ANSI {ansi}: {report}; {len(bare)} have no example: {', '.join(bare)}")
    return wrong


def _each(seeds: range, one: Callable[[int], Iterable[object]], counted: Callable[[], str]) -> int:
    """Search seed by seed, and say at the end what was compared; the number of differences."""
    wrong = 0
    for number, seed in enumerate(seeds, 1):
        try:
            lines = [str(found) for found in one(seed)]
        except Exception:  # noqa: BLE001  a search that ends early is no search
            lines = [f"seed {seed}: {traceback.format_exc()}"]
        wrong += len(lines)
        for line in lines:
            _say(line)
        if number % 10 == 0 or number == len(seeds):
            _say(f"Seeds {seeds.start} to {seed}: {counted()}, {wrong} differ.")
    return wrong


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  a long run shows it at once


SEARCHES = {
    "expressions": _expressions,
    "plans": _plans,
    "forms": _forms,
    "programs": _programs,
    "files": _files,
    "examples": _examples,
}

SEEDED = [name for name in SEARCHES if name != "examples"]

if __name__ == "__main__":
    sys.exit(main())
