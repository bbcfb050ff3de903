"""Runs the tests in several processes at once, each with a part of them, and sums up.

    python -m scripts.run_tests                    what `make test` runs
    python -m scripts.run_tests --full             what `make test-full` runs
    python -m scripts.run_tests --only brokers     one part of it

A part has a process of its own for two reasons. PySpark has one JVM per process. And clients of
servers leave threads behind; Hypothesis takes a random number that such a thread draws for a fault
of the test it is busy with. The tests of one part share their Spark session and their brokers. More
parts run at once than there are cores, because most of them wait for Spark or a server most of the
time.

The output of a part is printed when the part has ended. The reports are kept as JUnit XML in
`build/test-reports`. The exit status is 1 if any part fails.

Tests that kill processes and wait for servers can fail because the machine is busy. So up to three
failed tests of a part are run once more when all parts have ended. If they pass then, the summary
names them as unsteady: each is still worth a look.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "test-reports"
EVERYDAY, FULL = "not long and not full", "full and not long"
TESTS_FAILED, NO_TESTS = 1, 5
"""How pytest ends when tests failed, and when no test has the marks that were asked for."""

MAX_UNSTEADY = 3
"""More failed tests of a part than this are not run again."""

PARTS: Mapping[str, tuple[str, ...]] = {
    "frames": ("frames/test_[a-q]*.py", "frames/test_[u-z]*.py"),
    "spark": ("spark",),
    "integration": ("integration",),
    "turns": ("frames/test_[r-t]*.py",),
    "fault": ("fault",),
    "brokers": ("contract", "brokers"),
    "simulation": ("simulation", "fuzz"),
    "golden": ("golden",),
    "unit": ("unit", "transcripts", "packaging", "test_*.py"),
}
"""Name to what is in it, below `tests`. The parts that take longest start first."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one part ended."""

    name: str
    status: int
    seconds: float
    output: str
    failed: tuple[str, ...] = ()
    """The failed tests. If the status is 0, they passed when they were run again."""

    @property
    def summary(self) -> str:
        """Pytest's last line, without its decoration."""
        lines = self.output.strip().splitlines()
        return lines[-1].strip("= ") if lines else "no output"


def run_part(name: str, marks: str, coverage: bool, *, again: bool = False) -> Outcome:
    """Run one part to its end; with `again`, only the tests that failed in the run before."""
    started = time.monotonic()
    cache = REPORTS / f"cache-{name}"
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", "--durations=10"]
    command += ["-m", marks]
    if again:
        command += ["--last-failed", "--last-failed-no-failures=none"]
    else:
        shutil.rmtree(cache, ignore_errors=True)
        command += [f"--junitxml={REPORTS / name}.xml"]
    command += ["--cov", "--cov-report="] if coverage else []
    command += [str(path) for place in PARTS[name] for path in sorted((ROOT / "tests").glob(place))]
    run = subprocess.run(
        command,
        cwd=ROOT,
        env=dict(os.environ, COVERAGE_FILE=str(REPORTS / f".coverage.{name}")),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    status = 0 if run.returncode == NO_TESTS and not again else run.returncode
    seconds = time.monotonic() - started
    return Outcome(name, status, seconds, run.stdout, _failed_tests(cache) if status else ())


def _failed_tests(cache: Path) -> tuple[str, ...]:
    """The tests that pytest has noted as failed."""
    noted = cache / "v" / "cache" / "lastfailed"
    return tuple(json.loads(noted.read_text())) if noted.exists() else ()


def run_again(outcome: Outcome, marks: str, coverage: bool) -> Outcome:
    """Run the failed tests of a part once more, if they are few."""
    if outcome.status != TESTS_FAILED or not 0 < len(outcome.failed) <= MAX_UNSTEADY:
        return outcome
    second = run_part(outcome.name, marks, coverage, again=True)
    sys.stdout.write(f"\n##### {outcome.name}, failed tests again\n{second.output}")
    return replace(outcome, status=second.status)


def run_parts(names: Sequence[str], marks: str, at_once: int, coverage: bool) -> list[Outcome]:
    """Run parts, `at_once` at a time, in this order; print each when it has ended."""
    outcomes = []
    with ThreadPoolExecutor(at_once) as pool:
        running = [pool.submit(run_part, name, marks, coverage) for name in names]
        for done in as_completed(running):
            outcome = done.result()
            outcomes.append(outcome)
            sys.stdout.write(f"\n##### {outcome.name}\n{outcome.output}")
            sys.stdout.flush()
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="the tests that `make test` leaves out")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="only this part")
    parser.add_argument("--at-once", type=int, default=3, help="how many parts run at once (3)")
    parser.add_argument("--coverage", action="store_true", help="say which lines were run")
    arguments = parser.parse_args()
    REPORTS.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    marks = FULL if arguments.full else EVERYDAY
    names = arguments.only or list(PARTS)
    outcomes = run_parts(names, marks, arguments.at_once, arguments.coverage)
    outcomes = [run_again(each, marks, arguments.coverage) for each in outcomes]
    if arguments.coverage:
        environment = dict(os.environ, COVERAGE_FILE=str(REPORTS / ".coverage"))
        for words in (["combine", "--quiet", str(REPORTS)], ["report", "--skip-covered"]):
            command = [sys.executable, "-m", "coverage", *words]
            subprocess.run(command, cwd=ROOT, env=environment, check=True)
    sys.stdout.write("\n")
    for outcome in outcomes:
        verdict = "passed" if outcome.status == 0 else "FAILED"
        line = f"{verdict} {outcome.name:12} {outcome.seconds:6.0f} s  {outcome.summary}\n"
        sys.stdout.write(line)
        if outcome.status == 0:
            for test in outcome.failed:
                sys.stdout.write(f"unsteady: {test} failed, and passed when it was run again\n")
    sys.stdout.write(f"tests took {time.monotonic() - started:.0f} s\n")
    return 1 if any(outcome.status for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
