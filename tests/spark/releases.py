"""Runs released Sparks, each in a child process with that release's PySpark first on its path.

The releases live in a cache outside the checkout (`EPOCHAL_CACHE`, by default `~/.cache/epochal`)
and are installed there on first use. A child waits for more jobs until those of another release are
asked: starting the JVM is what costs.
"""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.golden.library import Unpacked

RELEASES = ("3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
ROOT = Path(__file__).resolve().parents[2]

NO_REPAIR = {"spark.sql.streaming.stateStore.autoSnapshotRepair.enabled": "false"}
"""Spark must load what is there, and not pass over it."""

Action = Literal["make", "describe", "resume"]
ANSWERED = "answered"  # as tests.golden.child says it


class ReleaseError(Exception):
    """A released Spark could not be installed, or did not do what it was asked."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """What became of a query that read the rest of its input."""

    query_id: str
    output: list[dict[str, Any]]
    """Its final answer in the form of `facts["undisturbed"]["output"]`: compare the two."""
    progress: list[dict[str, Any]]


def resume(
    release: str, places: Sequence[Unpacked], *, conf: Mapping[str, str] | None = None
) -> list[Resumed]:
    """Let `release` finish these queries; they must have been unpacked with `relocate=True`."""
    return [Resumed(**answer) for answer in ask(release, "resume", places, conf=conf)]


def counted(rows: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Rows in a form in which they can be counted: one too many is as wrong as one too few."""
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


def ask(
    release: str, action: Action, places: Sequence[Unpacked], *, conf: Mapping[str, str] | None
) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        jobs = [
            {
                "case": place.golden.case,
                "base": str(place.base.resolve()),
                "answer": f"{scratch}/{number}.json",
            }
            for number, place in enumerate(places)
        ]
        run_child(release, action, jobs, conf=conf)
        answers = [json.loads(Path(job["answer"]).read_text(encoding="utf-8")) for job in jobs]
    for place, answer in zip(places, answers, strict=True):
        if "failure" in answer:
            raise ReleaseError(f"Spark {release} failed on {place.golden}:\n{answer['failure']}")
    return answers


def environment_of(release: str, *more: Path) -> dict[str, str]:
    """The environment of a process with a release's PySpark, and the tests, first on its path."""
    inherited = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    return inherited | {
        "PYTHONPATH": os.pathsep.join(map(str, (tree(release), ROOT, *more))),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": "UTC",
    }


def run_module(
    module: str, *words: str | Path, env: Mapping[str, str] | None = None, given: str = ""
) -> str:
    """Run a module of the tests in a process of its own; return the last line of its output."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, words)],
        input=given,
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    sys.stderr.write(done.stderr)
    return (done.stdout.splitlines() or [""])[-1]


class Child:
    """A session of a release in a process of its own."""

    def __init__(self, release: str) -> None:
        self.release = release
        self._scratch = tempfile.TemporaryDirectory(prefix="spark-")
        self._log = Path(self._scratch.name, "log")
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.golden.child", self._scratch.name],
                env=environment_of(release),
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def ask(self, request: Mapping[str, Any]) -> None:
        """Have all jobs of a request done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.strip() == ANSWERED:
                return
            sys.stdout.write(line)
        raise ReleaseError(f"Spark {self.release} has ended:\n{self._log.read_text()[-4000:]}")

    def end(self) -> None:
        self._process.communicate(timeout=120)  # the end of its input is its end
        self._scratch.cleanup()


_running: list[Child] = []
"""The child that was asked last. It waits for the next request, until another release is asked."""


def run_child(
    release: str,
    action: Action,
    jobs: Sequence[Mapping[str, str]],
    *,
    conf: Mapping[str, str] | None = None,
) -> None:
    """Have a child of `release` do all `jobs`; each leaves its answer in a file."""
    if [child.release for child in _running] != [release]:
        end_child()
        _running.append(Child(release))
    try:
        _running[0].ask({"action": action, "jobs": jobs, "conf": dict(conf or {})})
    except (ReleaseError, OSError):
        end_child()
        raise


@atexit.register
def end_child() -> None:
    while _running:
        _running.pop().end()


def tree(release: str) -> Path:
    """The directory of an installed release, to be put on a Python path."""
    cache = Path(os.environ.get("EPOCHAL_CACHE", Path.home() / ".cache" / "epochal")) / "pyspark"
    installed = cache / release
    if not installed.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        _install(release, installed)
    return installed


def _install(release: str, into: Path) -> None:
    """Install beside the final place, then rename: a half-made tree is never found."""
    with tempfile.TemporaryDirectory(dir=into.parent, prefix=f".{release}.") as scratch:
        staged = Path(scratch) / release
        install = [*_installer(), "--target", str(staged), f"pyspark=={release}"]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode != 0:
            raise ReleaseError(f"cannot install pyspark {release}:\n{done.stderr[-4000:]}")
        if not into.is_dir():
            staged.rename(into)


def _installer() -> list[str]:
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.is_file() else shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install", "--quiet"]
