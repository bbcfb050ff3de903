"""Searches for SQL whose results differ from Spark's.

    python -m tests.fuzz_sql --seeds 100              expressions and plans of the seeds 0 to 99
    python -m tests.fuzz_sql --first 7 --seeds 1      those of one seed again
    python -m tests.fuzz_sql --only plans

A seed is a query with about 150 expressions, and a plan. What differs is printed in its smallest
form. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import sys

from tests.fuzz_sql.both_sides import quiet
from tests.fuzz_sql.expression_search import ExpressionSearch, Tally
from tests.fuzz_sql.plan_search import PlanSearch
from tests.spark.sessions import session_with


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds (100)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--only", choices=("expressions", "plans"), help="only one of both")
    arguments = parser.parse_args()
    tally, plans = Tally(), 0
    wrong = 0
    with quiet():
        searches = (ExpressionSearch(session_with({})), PlanSearch(session_with({})))
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            if arguments.only != "plans":
                before = len(tally.differences)
                searches[0].run(seed, tally)
                for difference in tally.differences[before:]:
                    _say(str(difference))
            if arguments.only != "expressions":
                plans += 1
                found = searches[1].run(seed)
                if found is not None:
                    wrong += 1
                    _say(str(found))
    _say(
        f"{tally.equal} expressions are equal ({tally.cells} cells), {tally.failing} fail "
        f"equally, {len(tally.differences)} differ. Of {plans} plans {wrong} differ, "
        f"{len(searches[1].refused)} are refused."
    )
    return 1 if tally.differences or wrong else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
