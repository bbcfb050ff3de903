"""Makes things go wrong, as a schedule says: kills, restarts, clock steps, changes of the query."""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from pathlib import Path
from random import Random

from benchmarks.soak.feeding import Feeder
from benchmarks.soak.schedule import Incident
from tests.fault.torment import Program

from epochal.testing.kafka import Kafka

SOURCE = Path(__file__).with_name("stepped_clock.c")
CLUSTER = "local-cluster[2,1,640]"
PAUSE_SECONDS, CLOCK_SECONDS = 4.0, 15.0
MOST_PARTITIONS = 12


class Clock:
    """The wall clock that the query's processes see, all of them; the monotonic one stays.

    It covers what an administrator or NTP does to the clock of a host: driver, JVMs and workers see
    the step at the same moment. The broker's clock and the times of files do not change.
    """

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise SystemExit("Clock steps need a C compiler: install gcc, so that `cc` is found.")
        library, self._offset = folder / "stepped_clock.so", folder / "clock"
        words = ["-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl", "-pthread"]
        subprocess.run([compiler, *words], check=True)
        self.set(0)
        self.environment = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(self._offset)}

    def set(self, offset_seconds: int) -> None:
        """Let the clock differ by so much from now on."""
        with open(self._offset, "r+b" if self._offset.exists() else "wb") as mapped:
            mapped.write(struct.pack("=q", offset_seconds))


class SoakProgram(Program):
    """The soak's query, whose code changes with each release."""

    module = "benchmarks.soak.program"

    def __init__(self, folder: Path, clock: Clock, *options: str) -> None:
        super().__init__(folder, folder / "driver.log", master=CLUSTER)
        self.release, self._given = 0, options
        spark = {"SPARK_LOCAL_DIRS": "spark", "SPARK_WORKER_DIR": "work", "TMPDIR": "tmp"}
        for name in spark.values():
            (folder / name).mkdir()
        places = {variable: str(folder / name) for variable, name in spark.items()}
        self.environment = {**clock.environment, **places}

    def start(self) -> None:
        self._options = (*self._given, f"release={self.release}")
        super().start()

    def upgrade(self) -> None:
        """Stop, change the code and start from the same checkpoint."""
        self.stop()
        self.release += 1
        self.start()

    def ended(self) -> bool:
        """Whether the program has ended by itself."""
        return self._process is not None and self._process.poll() is not None


def happen(
    incident: Incident,
    program: SoakProgram,
    broker: Kafka,
    feeder: Feeder,
    clock: Clock,
    rng: Random,
) -> str:
    """Make one incident happen; return what was done, in a few words."""
    match incident.kind:
        case "upgrade":
            program.upgrade()
            return f"to release {program.release}"
        case "broker":
            broker.kill()
            time.sleep(down := rng.uniform(0.0, 3.0))  # the broker's downtime
            broker.start()
            return f"down for {down:.1f} s and its start"
        case "broker pause":
            broker.pause()
            time.sleep(PAUSE_SECONDS)  # the pause
            broker.resume()
            return f"for {PAUSE_SECONDS:.0f} s"
        case "partition":
            if feeder.partitions >= MOST_PARTITIONS:
                return "none, there are enough"
            return f"number {feeder.add_partition()}"
        case "clock":
            clock.set(incident.step_seconds)
            time.sleep(CLOCK_SECONDS)  # how long the clock is wrong
            clock.set(0)
            return f"{incident.step_seconds:+d} s for {CLOCK_SECONDS:.0f} s, then back"
        case kind:
            program.kill(kind, rng)
            return ""
