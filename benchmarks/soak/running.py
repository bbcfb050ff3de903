"""Performs a soak: incidents in time, samples, progress on the terminal, checks at the end."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.harness import epochal_command
from benchmarks.soak.feeding import Feeder
from benchmarks.soak.flatness import UNKNOWN, Verdict, judge
from benchmarks.soak.following import Follower, whole_table
from benchmarks.soak.incidents import Clock, SoakProgram, happen
from benchmarks.soak.sampling import FIGURES, sample_files, sample_latency, sample_processes
from benchmarks.soak.schedule import Incident
from tests.fault.torment import state_totals

from epochal.testing.kafka import Kafka

SAMPLE_SECONDS, PROGRESS_SECONDS, SETTLING_SECONDS = 2.0, 60.0, 5.0
MOST_LOST_SAMPLES = 10
"""One after the other. More end the run: it could not be judged."""
PATIENCE_SECONDS = 600.0
"""How long the query may take to catch up after an incident. Longer is a fault, but the run goes on
for as long again: what comes after a slow recovery is worth seeing."""


class Soak:
    """One run, and what was seen in it."""

    def __init__(
        self,
        program: SoakProgram,
        broker: Kafka,
        feeder: Feeder,
        follower: Follower,
        clock: Clock,
        folder: Path,
        seconds: float,
        seed: int,
    ) -> None:
        self.samples: list[dict[str, float]] = []
        self.history: list[dict[str, Any]] = []
        self.faults: list[str] = []
        self.rows, self.skipped, self.seconds = 0, 0, seconds
        self._program, self._broker, self._feeder = program, broker, feeder
        self._follower, self._clock, self._folder = follower, clock, folder
        self._rng, self._ending = Random(seed), threading.Event()
        self._planned, self._sampling_failure = 0, ""
        self._began, self._disturbed_until = 0.0, float("inf")

    def run(self, incidents: Sequence[Incident]) -> None:
        """Run to the end. What is wrong is in `faults` afterwards, and nothing is raised."""
        sampler = threading.Thread(target=self._keep_sampling, daemon=True, name="sampler")
        self._planned = len(incidents)
        try:
            self._begin()
            sampler.start()
            for incident in incidents:
                self._wait(self._began + incident.at_seconds)
                if time.monotonic() < self._began + incident.expires_seconds:
                    self._suffer(incident)
                else:
                    self.skipped += 1
            self._wait(self._began + self.seconds)
            self._finish()
            self.faults += self._uneven()
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  the report says it
            self.faults.append(f"the run ended early: {error!r}")
        finally:
            self._ending.set()
        self.faults += self._follower.model.faults
        self.rows = self._follower.model.rows

    def verdicts(self) -> dict[str, Verdict]:
        """Whether each figure stayed flat."""
        series = self.series()
        return {each.name: judge(series[each.name], self.seconds, each.limit) for each in FIGURES}

    def series(self) -> dict[str, list[tuple[float, float]]]:
        """The samples by figure, of the time in which nothing went wrong."""
        calm = [sample for sample in self.samples if not sample["disturbed"]]
        return {
            each.name: [(sample["at"], sample[each.name]) for sample in calm if each.name in sample]
            for each in FIGURES
        }

    def _begin(self) -> None:
        """Start, and let the clock of the run begin with the first rows in the table."""
        self._program.start()
        self._feeder.start()
        self._follower.start()
        self._began = time.monotonic()
        self._catch_up("the start")
        self._began, self._disturbed_until = time.monotonic(), 0.0
        _say(f"the first {self._follower.model.rows} rows are in the table")

    def _suffer(self, incident: Incident) -> None:
        """Let an incident happen, and wait until the table has every row that was due by then."""
        began, self._disturbed_until = time.monotonic(), float("inf")
        minute = (began - self._began) / 60
        try:
            done = happen(
                incident, self._program, self._broker, self._feeder, self._clock, self._rng
            )
        except Exception as error:  # noqa: BLE001  a fault in the report; the query may go on
            done = "could not be carried out"
            self._fault(f"minute {minute:.1f}: {incident.kind} {done}: {error!r}"[:1500])
            if self._program.ended():
                self._program.start()
            if incident.kind == "broker":
                self._broker.start()
        happened = time.monotonic()
        self._catch_up(f"{incident.kind} in minute {minute:.1f}")
        now = time.monotonic()
        self._disturbed_until = now + SETTLING_SECONDS
        self.history.append(
            {
                "at": round(began - self._began, 1),
                "kind": incident.kind,
                "what": done,
                "took": round(happened - began, 2),
                "recovered": round(now - happened, 2),
            }
        )
        _say(f"{incident.kind} {done}: all rows there after {now - happened:.1f} s")

    def _catch_up(self, after: str) -> None:
        """Wait until the table has every row that is due now."""
        self._catch_up_to(self._feeder.count + 1, after)

    def _catch_up_to(self, rows: int, after: str) -> None:
        began, is_slow = time.monotonic(), False
        while self._follower.model.complete < rows:
            self._look_for_failures()
            waited = time.monotonic() - began
            if waited > PATIENCE_SECONDS and not is_slow:
                is_slow = True
                self._fault(f"after {after}, {self._missing(waited)}")
            if waited > 2 * PATIENCE_SECONDS:
                raise RuntimeError(self._missing(waited))
            time.sleep(0.05)  # between two looks

    def _missing(self, seconds: float) -> str:
        row = self._follower.model.complete
        return (
            f"row {row} was not in the table for {seconds:.0f} s:\n{self._program.story()[-1500:]}"
        )

    def _fault(self, text: str) -> None:
        self.faults.append(text)
        _say(f"not right: {text}")

    def _wait(self, until: float) -> None:
        while time.monotonic() < until:
            self._look_for_failures()
            time.sleep(min(0.5, max(0.0, until - time.monotonic())))  # for the next incident

    def _look_for_failures(self) -> None:
        if self._program.ended():
            raise RuntimeError(f"the query ended by itself:\n{self._program.story()[-1500:]}")
        if self._follower.failure or self._follower.model.faults:
            raise RuntimeError(f"{self._follower.failure} {self._follower.model.faults[:3]}")
        if self._feeder.failure:
            raise RuntimeError(f"rows could not be written to the topic: {self._feeder.failure}")
        if self._sampling_failure:
            raise RuntimeError(f"no samples can be taken: {self._sampling_failure}")

    def _keep_sampling(self) -> None:
        told, failed = time.monotonic(), 0
        while not self._ending.wait(SAMPLE_SECONDS):
            try:
                sample, failed = self._sample(), 0
            except Exception as error:  # noqa: BLE001  a process may end while it is looked at
                failed += 1
                if failed == MOST_LOST_SAMPLES:
                    self._sampling_failure = repr(error)
                continue
            if sample["at"] <= self.seconds:
                self.samples.append(sample)
            if time.monotonic() > told + PROGRESS_SECONDS:
                told = time.monotonic()
                self._tell(sample)

    def _sample(self) -> dict[str, float]:
        now = time.monotonic()
        return {
            "at": round(now - self._began, 1),
            "disturbed": now - SAMPLE_SECONDS < self._disturbed_until,
            "load": os.getloadavg()[0],
            **sample_processes(self._program),
            **sample_files(self._folder, self._program.checkpoint, self._program.out),
            **sample_latency(self._follower.take_latencies()),
        }

    def _tell(self, sample: dict[str, float]) -> None:
        model, left = self._follower.model, max(0.0, self.seconds - sample["at"])
        shown = [
            f"minute {sample['at'] / 60:.0f}, {left / 60:.0f} left",
            f"{model.rows} rows, {max(0, self._feeder.count - model.complete)} behind",
            f"{len(self.history)} of {self._planned} incidents, {self.skipped} left out",
            *(
                f"{name} {sample[name]:.0f}"
                for name in ("memory, driver", "memory, worker", "files, checkpoint", "latency p99")
                if name in sample
            ),
            f"load {sample['load']:.1f}",
        ]
        _say("; ".join(shown))

    def _finish(self) -> None:
        """Stop the input, wait for the last row, stop the query, and check everything."""
        rows = self._feeder.end()
        self._catch_up_to(rows, "the end of the input")
        self._ending.set()
        self._program.stop()
        self._follower.end()
        self.faults += self._wrong_at_the_end(rows)

    def _wrong_at_the_end(self, rows: int) -> Iterator[str]:
        found = whole_table(self._program.out)
        yield from found.faults
        if (found.rows, found.complete) != (rows, rows):
            yield f"{rows} rows were written, the table has {found.rows} and lacks {found.complete}"
        if state_totals(self._program.checkpoint) != found.totals:
            yield "the state in the checkpoint is not the sum of the rows in the table"
        words = epochal_command("checkpoint", "verify", "--json", str(self._program.checkpoint))
        run = subprocess.run(words, capture_output=True, text=True, check=False)
        for finding in json.loads(run.stdout)["findings"]:
            if finding["code"] != "TIMESTAMP_BACKWARDS":  # the clock was stepped back
                yield f"`epochal checkpoint verify`: {finding['path']}: {finding['message']}"

    def _uneven(self) -> Iterator[str]:
        verdicts = self.verdicts()
        if all(UNKNOWN in each.reasons for each in verdicts.values()):
            yield (
                f"Nothing can be said about flatness, because {UNKNOWN}: this machine needs more "
                f"minutes or a larger --gap ({self.skipped} incidents were left out)"
            )
            return
        for name, verdict in verdicts.items():
            yield from (f"{name}: {reason}" for reason in verdict.reasons)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
