"""Records of a sample run."""

from __future__ import annotations

from typing import Any

from epochal.metrics.run_records import EpochDone, Progressed, RunStarted

RUN = RunStarted(
    query_id="11111111-1111-1111-1111-111111111111",
    run_id="22222222-2222-2222-2222-222222222222",
    name="orders",
    checkpoint="/data/checkpoint",
    sources=("rate", "files"),
    sink="parquet",
    started_ms=1_000,
    pid=1,
    host="here",
    operators=("aggregate",),
)


def epoch(number: int, **changes: Any) -> EpochDone:
    usual: dict[str, Any] = {
        "epoch": number,
        "started_ms": 10_000 + 100 * number,
        "cut_ms": 10_100 + 100 * number,
        "committed_ms": 10_130 + 100 * number,
        "rows_in": (10, 2),
        "rows_out": 7,
        "prepare_ms": 15,
        "state_ms": 6.0,
        "stage_ms": 4.0,
        "queue_ms": 1,
        "wal_ms": 2,
        "sink_ms": 3,
        "publish_ms": 4,
        "commit_ms": 2,
        "ack_ms": 1.5,
    }
    return EpochDone(**{**usual, **changes})


def progress(**changes: Any) -> Progressed:
    report = {
        "id": RUN.query_id,
        "runId": RUN.run_id,
        "name": RUN.name,
        "batchId": 3,
        "inputRowsPerSecond": 120.5,
        "processedRowsPerSecond": 240.0,
        "durationMs": {"triggerExecution": 130},
        "eventTime": {"watermark": "2024-01-01T00:00:00.500Z"},
        "stateOperators": [
            {
                "operatorName": "aggregate",
                "numRowsTotal": 42,
                "numRowsUpdated": 5,
                "numRowsRemoved": 1,
                "memoryUsedBytes": 0,
            }
        ],
        "sources": [
            {"description": "rate", "endOffset": 5, "metrics": {"behindLatest": "17"}},
            {
                "description": "kafka",
                "endOffset": {"orders": {"0": 5, "1": 9}},
                "latestOffset": {"orders": {"0": 8, "1": 9}},
                "metrics": {},
            },
        ],
        "sink": {"description": "parquet", "numOutputRows": 7},
        "epochLatencyMs": {"p50": 30, "p99": 40, "max": 40},
    }
    return Progressed(20_000, {**report, **changes})
