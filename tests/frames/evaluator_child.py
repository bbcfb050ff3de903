"""Evaluates an expression with Spark's own code in the Spark of this process's PYTHONPATH.

python -m tests.frames.evaluator_child ANSWER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from epochal.testing import Driver


def main(answer: str) -> None:
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    rows = spark.readStream.format("rate").load()
    frame = rows.selectExpr(
        "value",
        "soundex(concat('Robert', value)) AS code",
        "transform(array(value, null), x -> x + 1) AS more",
        "to_csv(struct(value, 'a,b' AS text)) AS line",
    )
    with Driver(frame) as driver:
        driver.feed([{"value": value, "timestamp": None} for value in range(3)])
        Path(answer).write_text(json.dumps(driver.epoch()), encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
