"""Runs released Sparks, each in a child process with that release's PySpark first on its path.

The releases live in a cache outside the checkout (`EPOCHAL_CACHE`, by default `~/.cache/epochal`)
and are installed there on first use. One child serves a whole list of jobs, because starting the
JVM is what costs: collect the checkpoints of a release and ask once.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.golden.library import Unpacked

RELEASES = ("3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
ROOT = Path(__file__).resolve().parents[2]

Action = Literal["make", "describe", "resume"]


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


def describe(
    release: str, places: Sequence[Unpacked], *, conf: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Read all state with the `statestore` source of `release`; the form is that of the facts."""
    return ask(release, "describe", places, conf=conf)


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
        run_child(release, action, jobs, Path(scratch), conf=conf)
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


def run_child(
    release: str,
    action: Action,
    jobs: Sequence[Mapping[str, str]],
    scratch: Path,
    *,
    conf: Mapping[str, str] | None = None,
) -> None:
    """Have one child of `release` do all `jobs`; each leaves its answer in a file."""
    request = {"action": action, "jobs": jobs, "scratch": str(scratch), "conf": dict(conf or {})}
    command = [sys.executable, "-m", "tests.golden.child", json.dumps(request)]
    child = subprocess.run(command, env=environment_of(release), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    if child.returncode != 0:
        raise ReleaseError(
            f"Spark {release} ended with {child.returncode}:\n{child.stderr[-4000:]}"
        )


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
