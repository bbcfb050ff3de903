"""The cost of telemetry to a query: per epoch and per report, by thread.

    committing   cost to the thread that commits epochs: one entry in a queue
    watching     cost to the watching thread of writing the journal, the metrics and the spans
    scrape       cost of one answer to Prometheus
    tail         cost to the dashboard of reading the journal

Figures are CPU time of one thread, in microseconds for one epoch or one report. A query with
epochs of 100 ms makes ten epochs and one report per second; `share` is that fraction of one core.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Report, arguments
from opentelemetry.sdk.trace import TracerProvider

from epochal.clock import SystemClock
from epochal.continuous.run.telemetry import Telemetry
from epochal.epoch.committed import CommittedEpoch
from epochal.metrics.otel_spans import SpanWriter
from epochal.metrics.prometheus import text_of
from epochal.metrics.query_metrics import QueryMetrics
from epochal.metrics.run_journal import JournalTail, JournalWriter, run_files
from epochal.metrics.run_records import Progressed, RecordOutput, RunStarted, StatusChanged

EPOCHS = 20_000
REPORTS = 2_000
SCRAPES = 500
EPOCHS_PER_SECOND = 10
RUN = RunStarted("q", "r", "orders", "/checkpoint", ("kafka",), "parquet", 0, 1, "host")


def main() -> None:
    asked = arguments("telemetry").parse_args()
    report = Report("telemetry", busy=asked.busy, quick=asked.quick)
    committing(report)
    with tempfile.TemporaryDirectory() as folder:
        outputs: dict[str, Callable[[], RecordOutput]] = {
            "journal": lambda: JournalWriter(Path(folder, "runs"), RUN),
            "metrics": QueryMetrics,
            "spans": lambda: SpanWriter(TracerProvider().get_tracer("epochal")),
        }
        for name, opened in outputs.items():
            watching(report, name, opened())
        scrape(report)
        tail(report, Path(folder, "runs"))


def epoch_of(number: int) -> CommittedEpoch:
    now, offsets = 1_700_000_000_000 + 100 * number, ('{"t":{"0":1}}',)
    return CommittedEpoch(number, now, now + 100, now + 115, (1_000,), 900, offsets=offsets)


def progress_of(number: int, partitions: int = 50) -> Progressed:
    offsets = {"orders": {str(each): number for each in range(partitions)}}
    source = {"description": "kafka", "startOffset": offsets, "endOffset": offsets}
    source |= {"latestOffset": offsets, "metrics": {"behindLatest": "5"}}
    operator = {"operatorName": "aggregate", "numRowsTotal": 40, "memoryUsedBytes": 0}
    return Progressed(
        number,
        {
            "batchId": number,
            "inputRowsPerSecond": 10_000.0,
            "processedRowsPerSecond": 12_000.0,
            "durationMs": {"triggerExecution": 115},
            "sources": [source],
            "stateOperators": [operator],
            "epochLatencyMs": {"p50": 15, "p99": 30, "max": 40},
        },
    )


def cpu_us(work: Callable[[], object], count: int) -> float:
    """CPU time of this thread per piece of work."""
    before = time.thread_time()
    work()
    return 1e6 * (time.thread_time() - before) / count


def committing(report: Report) -> None:
    epochs = [epoch_of(number) for number in range(EPOCHS)]
    telemetry = Telemetry([QueryMetrics()], SystemClock())

    def work() -> None:
        for epoch in epochs:
            telemetry.committed(epoch, 0)

    took = cpu_us(work, EPOCHS)
    report.row("committing, per epoch", us=took, share=_share(took))


def watching(report: Report, name: str, output: RecordOutput) -> None:
    telemetry = Telemetry([output], SystemClock())
    telemetry.begin(RUN)
    for number in range(EPOCHS // 2):
        telemetry.committed(epoch_of(number), 0)
        telemetry.acknowledged(number, 0.001)

    def work() -> None:
        telemetry.tick(StatusChanged(0, "Processing", 0, 0, 0), None)

    took = cpu_us(work, EPOCHS // 2)
    reports = [progress_of(number) for number in range(REPORTS)]

    def work_reports() -> None:
        for each in reports:
            output.write([each])

    told = cpu_us(work_reports, REPORTS)
    report.row(f"watching, {name}, per epoch", us=took, share=_share(took, told))
    report.row(f"watching, {name}, per report of 50 partitions", us=told)
    telemetry.close(None)


def scrape(report: Report) -> None:
    metrics = QueryMetrics()
    metrics.write([RUN, progress_of(1)])

    def work() -> None:
        for _ in range(SCRAPES):
            text_of(metrics.collect())

    report.row("one scrape, 50 partitions", us=cpu_us(work, SCRAPES))


def tail(report: Report, directory: Path) -> None:
    writer = JournalWriter(directory, RUN)
    (path,) = (each for each in run_files(directory) if each.stem == RUN.run_id)
    reader = JournalTail(path)
    reader.read()
    telemetry = Telemetry([writer], SystemClock())
    rounds = 500
    spent = 0.0
    for number in range(rounds):
        for each in range(EPOCHS_PER_SECOND):
            telemetry.committed(epoch_of(EPOCHS_PER_SECOND * number + each), 0)
        telemetry.tick(StatusChanged(0, "Processing", 0, 0, 0), progress_of(number).report)
        before = time.thread_time()
        reader.read()
        spent += time.thread_time() - before
    report.row("reading a second of a query", us=1e6 * spent / rounds)
    writer.close()


def _share(per_epoch_us: float, per_report_us: float = 0.0) -> str:
    percent = (EPOCHS_PER_SECOND * per_epoch_us + per_report_us) / 1e4
    return f"{percent:.4f} % of a core"


if __name__ == "__main__":
    main()
