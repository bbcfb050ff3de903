"""Runs inside one Spark release: reads the plans of the corpus and writes what they become.

Started by `test_catalyst_releases.py`; the only argument is the file for the answer.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

from pyspark.sql import SparkSession
from tests.frames.plan_corpus import PLANS, shape

from epochal.continuous.catalyst.translation import explain_plan, read_plan


def main(answer: Path) -> None:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(answer.parent / "warehouse"))
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    found: dict[str, list[str]] = {}
    for plan in PLANS:
        if spark.version[:3] < plan.since:
            continue
        try:
            frame = plan.frame(spark)
            read = read_plan(frame, output_mode=plan.mode)
            assert read.schema.names == frame.columns
            explained = explain_plan(frame, output_mode=plan.mode)
            found[plan.name] = [shape(read.tree), explained.splitlines()[0]]
        except Exception:  # noqa: BLE001  the test shows it
            found[plan.name] = [traceback.format_exc()]
    answer.write_text(json.dumps(found), encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
