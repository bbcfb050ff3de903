"""Spark's own account of a query: its progress, its state and its output, as JSON."""

import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.golden.place import Place
from tests.golden.shape import Case, Read
from tests.golden.typed import rows_of, schema_of

PROGRESS = ("batchId", "numInputRows", "eventTime", "sources", "stateOperators", "sink")
SOURCE = ("description", "startOffset", "endOffset", "latestOffset", "numInputRows")
OPERATOR = (
    "operatorName",
    "numRowsTotal",
    "numRowsUpdated",
    "numRowsRemoved",
    "numShufflePartitions",
    "numStateStoreInstances",
)


def progress(query: Any) -> list[dict[str, Any]]:
    """What the query reported per batch, without the figures that no two runs share."""
    reports = [json.loads(report.json()) for report in query._jsq.recentProgress()]
    return [_essentials(report) for report in reports]


def _essentials(report: dict[str, Any]) -> dict[str, Any]:
    kept = _only(PROGRESS, report)
    kept["sources"] = [_only(SOURCE, source) for source in report["sources"]]
    kept["stateOperators"] = [_only(OPERATOR, each) for each in report["stateOperators"]]
    return kept


def _only(names: tuple[str, ...], report: dict[str, Any]) -> dict[str, Any]:
    return {name: report[name] for name in names if name in report}


def state_metadata(spark: SparkSession, checkpoint: Path) -> list[dict[str, Any]]:
    return rows_of(spark.read.format("state-metadata").load(str(checkpoint)))


def state(spark: SparkSession, case: Case, checkpoint: Path, batches: list[int]) -> dict[str, Any]:
    """Everything the `statestore` source can say about `batches`, or why it cannot."""
    snapshots = []
    changes = []
    for read in case.reads:
        for batch in batches:
            options = {**read.options, "batchId": str(batch)}
            snapshots.append(
                {
                    "options": dict(read.options),
                    "batch_id": batch,
                    **_rows(spark, checkpoint, options),
                }
            )
        if read.changes:
            changes.append(_change_feed(spark, checkpoint, read, snapshots))
    return {"state": snapshots, "changes": changes}


def _change_feed(
    spark: SparkSession, checkpoint: Path, read: Read, snapshots: list[dict[str, Any]]
) -> dict[str, Any]:
    """The changes of as many of the newest batches as still have all their deltas."""
    batches = [
        each["batch_id"] for each in snapshots if each["options"] == read.options and "rows" in each
    ]
    found: dict[str, Any] = {"error": "no batch is readable"}
    for first in batches:
        options = {
            **read.options,
            "readChangeFeed": "true",
            "changeStartBatchId": str(first),
            "changeEndBatchId": str(batches[-1]),
        }
        found = {"start": first, "end": batches[-1], **_rows(spark, checkpoint, options)}
        if "rows" in found:
            break
    return {"options": dict(read.options), **found}


def _rows(spark: SparkSession, checkpoint: Path, options: dict[str, str]) -> dict[str, Any]:
    try:
        frame = spark.read.format("statestore").options(**options).load(str(checkpoint))
        return {"schema": schema_of(frame), "rows": rows_of(frame)}
    except Exception as error:  # noqa: BLE001 - whatever Spark refuses is part of its account
        return {"error": _first_line(error)}


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return causes[-1] if causes else next((line for line in lines if line.strip()), repr(error))


def output(spark: SparkSession, case: Case, place: Place) -> list[dict[str, Any]]:
    """The final answer of the query, whatever its batches were."""
    if case.sink == "parquet":
        return rows_of(spark.read.parquet(str(place.output)))
    batches = [_lines(path) for path in sorted(place.output.glob("*.jsonl"))]
    return settled(batches, case)


def settled(batches: list[list[dict[str, Any]]], case: Case) -> list[dict[str, Any]]:
    match case.mode:
        case "append":
            rows = [row for batch in batches for row in batch]
        case "complete":
            rows = batches[-1] if batches else []
        case "update":
            latest = {
                json.dumps([row[name] for name in case.key]): row
                for batch in batches
                for row in batch
            }
            rows = list(latest.values())
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True, ensure_ascii=False))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def keep_rows(frame: DataFrame, path: Path) -> None:
    lines = [json.dumps(row, ensure_ascii=False) for row in rows_of(frame)]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
