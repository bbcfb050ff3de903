"""Whatever is damaged, what `verify` prints leads to a query that goes on, or to an honest end.

Each case of `tests.golden.random_damage` is obeyed to the letter. Those that end healthy are
resumed with Spark, and must end with the output of the run that nobody disturbed; a Kafka topic may
have rows twice. Cases that end with the same bytes are resumed once.

    python -m tests.spark.test_random_damage SCRATCH FIRST_SEED SEEDS

runs more of them, and prints the counts and what was wrong, after each chunk.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.golden.delta_output import table_of
from tests.golden.random_damage import (
    DELTA,
    DELTA_RELEASE,
    FILES,
    KAFKA,
    RELEASE,
    ROWS,
    Case,
    digest,
    make_cases,
)
from tests.kafka_topics import create_topic, read_messages
from tests.spark.releases import NO_REPAIR, ROOT, counted, environment_of

from epochal.testing.jars import resolve
from epochal.testing.kafka import connector_jars, running_kafka

SETTINGS = {**NO_REPAIR, "spark.sql.streaming.stateStore.maintenanceInterval": "2s"}
DELTA_CONNECTOR = "io.delta:delta-spark_4.2_2.13:4.4.0"
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}
TOPIC = "rows"
ALL = (FILES, ROWS, DELTA, KAFKA)
SEEDS = 24
CHUNK = 50
"""So many cases are made, resumed and deleted at a time."""


class Resumer:
    """The sessions that resume cases. Each starts when it is needed, and stays for all."""

    def __init__(self, scratch: Path, stack: ExitStack) -> None:
        self._scratch, self._stack = scratch, stack
        self._children: dict[str, subprocess.Popen[str]] = {}
        self._servers = ""

    def resume(self, cases: list[Case]) -> list[str]:
        """What is wrong with those that did not end with the undisturbed output."""
        for release in (RELEASE, DELTA_RELEASE):
            jobs = [self._job(case) for case in cases if self._release(case) == release]
            if jobs:
                child = self._child(release)
                assert child.stdin is not None
                assert child.stdout is not None
                child.stdin.write(json.dumps(jobs) + "\n")
                child.stdin.flush()
                for line in child.stdout:
                    if line == "resumed\n":
                        break
        in_topic: dict[str, list[dict[str, Any]]] = {}
        for message in read_messages(self._servers, TOPIC) if self._servers else ():
            in_topic.setdefault(message.key().decode(), []).append(json.loads(message.value()))
        verdicts = (verdict(case, in_topic.get(str(case.seed), [])) for case in cases)
        return [each for each in verdicts if each]

    def _release(self, case: Case) -> str:
        return DELTA_RELEASE if case.sink == DELTA else RELEASE

    def _job(self, case: Case) -> dict[str, Any]:
        if case.sink == KAFKA and not self._servers:
            self._servers = self._stack.enter_context(running_kafka()).bootstrap_servers
            create_topic(self._servers, TOPIC)
        return {
            "seed": case.seed,
            "case": case.place.golden.case,
            "sink": case.sink,
            "base": str(case.place.base.resolve()),
            "table": str(table_of(case.place).resolve()),
            "answer": str(answer_of(case)),
            "servers": self._servers,
            "topic": TOPIC,
        }

    def _child(self, release: str) -> subprocess.Popen[str]:
        if release not in self._children:
            delta = release == DELTA_RELEASE
            jars = resolve(DELTA_CONNECTOR) if delta else connector_jars()
            settings = {
                **SETTINGS,
                **(DELTA_SETTINGS if delta else {}),
                "spark.jars": ",".join(map(str, jars)),
            }
            child = start_child(release, self._scratch / f"spark-{release}", settings)
            self._children[release] = self._stack.enter_context(child)
        return self._children[release]


@contextmanager
def start_child(
    release: str, scratch: Path, settings: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    wanted = {"scratch": str(scratch), "settings": settings}
    scratch.mkdir(parents=True, exist_ok=True)
    with (
        open(scratch / "log", "w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "tests.spark.damage_child", json.dumps(wanted)],
            env=environment_of(release),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as child,
    ):
        yield child


def answer_of(case: Case) -> Path:
    return case.place.base.resolve().with_suffix(".json")


def verdict(case: Case, in_topic: list[dict[str, Any]]) -> str:
    """What is wrong with the output of a case; empty if nothing is."""
    if not answer_of(case).exists():
        return f"{case}; Spark ended without an answer"
    answer = json.loads(answer_of(case).read_text(encoding="utf-8"))
    if "failure" in answer:
        return f"{case}; Spark failed: {answer['failure'][-900:]}"
    rows, expected = counted(answer["output"]), counted(case.place.facts["undisturbed"]["output"])
    if case.sink == KAFKA:
        rows = Counter({row: expected.get(row, 1) for row in rows + counted(in_topic)})
    lost, more = (expected - rows).total(), (rows - expected).total()
    return f"{case}; {lost} rows lost, {more} too many" if lost or more else ""


def run_cases(
    first: int, count: int, scratch: Path, sinks: Collection[str] = ALL
) -> tuple[Counter[str], list[str]]:
    """What became of the cases, by number, and each that broke the promise.

    Those with other sinks are obeyed, and not resumed.
    """
    *_, ended = run_chunks(first, count, scratch, sinks)
    return ended


def run_chunks(
    first: int, count: int, scratch: Path, sinks: Collection[str] = ALL
) -> Iterator[tuple[Counter[str], list[str]]]:
    """What has become of the cases so far, after each chunk."""
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    seen: set[tuple[str, str, str]] = set()
    with ExitStack() as stack:
        resumer = Resumer(scratch, stack)
        for start in range(first, first + count, CHUNK):
            kept: list[Case] = []
            for case in make_cases(start, min(CHUNK, first + count - start), scratch):
                outcomes[case.outcome.partition(":")[0]] += 1
                if case.outcome not in ("healthy", "cannot"):
                    wrong.append(str(case))
                ended = (case.place.golden.case, case.sink, digest(case.place))
                if case.outcome == "healthy" and case.sink in sinks and ended not in seen:
                    seen.add(ended)
                    kept.append(case)
                else:
                    shutil.rmtree(case.place.base)
            broken = resumer.resume(kept)
            wrong += broken
            outcomes.update(f"resumed {case.sink}" for case in kept)
            for case in kept:
                if not any(each.startswith(f"seed {case.seed}:") for each in broken):
                    shutil.rmtree(case.place.base)
            yield outcomes, wrong


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "sinks", [(FILES, ROWS), (KAFKA,), (DELTA,)], ids=["files", "kafka", "delta"]
)
def test_what_verify_prints_leads_on_or_says_that_nothing_does(
    sinks: tuple[str, ...], tmp_path: Path
) -> None:
    outcomes, wrong = run_cases(0, SEEDS, tmp_path, sinks)
    assert wrong == []
    assert min(outcomes[f"resumed {sink}"] for sink in sinks) > 0


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(1, 20))
def test_more_damage_of_the_same_kind(part: int, tmp_path: Path) -> None:
    assert run_cases(part * 100, 100, tmp_path)[1] == []


if __name__ == "__main__":
    told = 0
    for found, broken in run_chunks(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[1])):
        sys.stdout.write("\n".join([*broken[told:], json.dumps(found)]) + "\n")
        sys.stdout.flush()
        told = len(broken)
