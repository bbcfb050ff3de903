"""Runs inside one Spark release: reads the plans of the corpus and writes what they become.

Started by `test_catalyst_releases.py`; the only argument is the file for the answer.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from tests.corpus.inputs import prepare
from tests.corpus.queries import QUERIES
from tests.corpus.running import frame_of, views

from epochal.continuous.catalyst.translation import explain_plan, read_plan
from epochal.continuous.plan.logical import (
    Node,
    Stateful,
    Step,
    StreamSource,
    Union,
    Watermarked,
    unique_names,
)


def shape(node: Node) -> str:
    """A tree in one line: the names of its operators."""
    match node:
        case StreamSource():
            return f"{node.format}{node.number}"
        case Step():
            return f"{_name(node.operator)}({shape(node.child)})"
        case Watermarked():
            return f"Watermark({shape(node.child)})"
        case Union():
            return f"Union({', '.join(map(shape, node.children))})"
        case Stateful():
            inputs = ", ".join(map(shape, node.children))
            return f"{_name(node.spec)}:{node.operator_id}({inputs})"


def _name(spec: object) -> str:
    return type(spec).__name__.removesuffix("Spec")


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
    known = views(spark, prepare(answer.parent / "input"))
    for query in QUERIES:
        try:
            frame = frame_of(spark, query, known)
        except AnalysisException:
            continue  # this release has no such function
        try:
            read = read_plan(frame, output_mode=query.mode)
            assert read.tree.schema.names == unique_names(frame.columns)
            explained = explain_plan(frame, output_mode=query.mode)
            found[query.name] = [shape(read.tree), explained.splitlines()[0]]
        except Exception:  # noqa: BLE001  the test shows it
            found[query.name] = [traceback.format_exc()]
    answer.write_text(json.dumps(found), encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
