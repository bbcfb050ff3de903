"""A driver program that tests kill: one engine's turn at a query, into parquet files.

    python -m tests.frames.turn_child ENGINE QUERY PROVIDER HOME

It waits for a line on its standard input before it starts the query, so that a test can let the JVM
start meanwhile, and it runs until it is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.fault.torment import ROOT, lives
from tests.frames.turns import BY_NAME, session_of, start
from tests.listening import family
from tests.spark.sessions import session
from tests.waiting import eventually


def main(engine: str, query: str, provider: str, home: str) -> None:
    spark = session_of(session("local[2]"), provider)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if sys.stdin.readline():
        start(spark, BY_NAME[query], Path(home), engine, None).awaitTermination()
    os._exit(3)  # nobody has killed it


class Child:
    """One run of the program."""

    def __init__(self, engine: str, query: str, provider: str, home: Path, log: Path) -> None:
        path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        self.log = log
        with open(log, "ab") as errors:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.frames.turn_child",
                    engine,
                    query,
                    provider,
                    str(home),
                ],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def begin(self) -> None:
        """Let it start its query."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", self.log.read_text()[-4000:]
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def wait_for(self, happened: Callable[[], bool], what: str) -> None:
        """Wait for something that its query does."""

        def found() -> bool:
            assert self._process.poll() is None, self.log.read_text()[-4000:]
            return happened()

        eventually(found, lambda: f"{what}\n{self.log.read_text()[-4000:]}", 300, pause=0.002)

    def kill(self) -> None:
        """Kill it and all its processes, at once."""
        processes = sorted(family(self._process.pid))
        for pid in processes:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait(30)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        eventually(lambda: not any(map(lives, processes)), "some of its processes live on")


if __name__ == "__main__":
    main(*sys.argv[1:])
