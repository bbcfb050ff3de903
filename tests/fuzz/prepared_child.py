"""Runs every command on random prepared checkpoints, and reports what left them. A child process.

    python -m tests.fuzz.prepared_child SCRATCH FIRST_SEED SEEDS

Python's audit events name each path that is opened, listed, created or removed, and each address
that is looked up or contacted, whichever module asks. They cannot be turned off again, so the
process is one of its own. Prints the counts of commands and events, and the violations, as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.golden.library import Golden, unpack

from epochal.cli.main import main

CASES = ("file_sink", "windowed", "rocksdb_zip", "named_sink", "transform", "offsets_v2")
HOST = "127.0.0.9"
SECONDS = 60
"""A command that takes longer than this waits for something that a checkpoint named."""
ESCAPE = "\x1b]0;owned\x07\x1b[2J"

PATH_EVENTS = re.compile(
    r"open|os\.(listdir|scandir|mkdir|rename|link|symlink|remove|rmdir|truncate)|shutil\.\w+"
)
HOST_EVENTS = frozenset(("socket.connect", "socket.getaddrinfo", "socket.sendto"))


class Recorder:
    """Collects the paths and addresses of one command."""

    def __init__(self) -> None:
        self.active, self.events = False, 0
        self.paths: set[str] = set()
        self.hosts: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if PATH_EVENTS.fullmatch(event):
            self.events += 1
            self.paths |= {
                os.fsdecode(each) for each in arguments[:2] if isinstance(each, str | bytes)
            }
        elif event in HOST_EVENTS:
            self.hosts.append(repr(arguments[:2]))


def places(outside: Path) -> list[str]:
    path = str(outside)
    return [
        path,
        f"file://{path}",
        f"file:{path}/part-0.parquet",
        f"webhdfs://{HOST}:9870/x",
        f"hdfs://{HOST}/x",
        f"swebhdfs://{HOST}/x",
        f"abfss://c@{HOST}.example/x",
        f"s3a://bucket{ESCAPE}/x",
        f"../{outside.name}",
    ]


def link(draw: random.Random, home: Path, outside: Path) -> None:
    """Replace a file or a directory by a link that leads out."""
    target = draw.choice([path for path in home.rglob("*") if not path.is_symlink()])
    if target.is_dir():
        shutil.rmtree(target)
        target.symlink_to(outside)
    else:
        target.unlink()
        target.symlink_to(outside / draw.choice(["key", "missing"]))


def special(draw: random.Random, home: Path, outside: Path) -> None:
    """Replace a file by a pipe, or by a huge one that takes no room on the disk."""
    del outside
    target = draw.choice(_files(home))
    target.unlink()
    if draw.random() < 0.5:
        os.mkfifo(target)
    else:
        with open(target, "wb") as out:
            out.truncate(draw.choice([65 << 20, 200 << 30]))


def journal(draw: random.Random, home: Path, outside: Path) -> None:
    """An edit that names other places, and paths that lead out."""
    root, place = draw.choice(["sink", "origin", ""]), draw.choice(places(outside))
    blob = {"pack": 0, "offset": 0, "size": 3, "digest": "0" * 64}
    path = draw.choice(
        ["key", "_spark_metadata/0", "../outside/key", f"{outside}/key", "offsets/1"]
    )
    change = {
        "root": root,
        "path": path,
        "before": draw.choice([None, blob]),
        "modified_ms": 0,
        "crc": None,
        "after": draw.choice([None, blob]),
        "source": draw.choice([None, {"root": "sink", "path": "key", "size": 3}]),
    }
    command = draw.choice(["rewind", "repair", "switch", "copy", "clone", "set-offsets"])
    record = {
        "version": 1,
        "command": command,
        "arguments": {"sink": place, "from": place, "to": place},
        "summary": f"{ESCAPE}\nforged",
        "started_ms": draw.choice([0, 2**62]),
        "roots": {"sink": place, "origin": draw.choice(places(outside))},
        "watches": draw.choice([[], [{"directory": "", "names": [], "root": root}]]),
        "made_directories": draw.choice([[], [[root, "../outside"]], [[root, "new"]]]),
        "emptied": draw.choice([[], ["../outside"]]),
        "changes": [change],
        "gate": draw.choice([None, {**change, "path": "metadata", "root": ""}]),
    }
    folder = home / f".epochal/journal/{draw.randrange(3):04d}-{command}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(record))
    for mark in draw.sample(["done", "undoing", "undone"], draw.randrange(3)):
        (folder / mark).write_bytes(b"")


def texts(draw: random.Random, home: Path, outside: Path) -> None:
    """Put places, escapes and deep nesting into the text of a log entry or of metadata."""
    small = [path for path in _files(home) if path.stat().st_size < 1 << 20]
    target = draw.choice(small)
    place = draw.choice(places(outside))
    switched = {"switched": {"to": place, "epoch": 1, "new_epoch": 1, "query_id": "q"}}
    data = target.read_bytes()
    target.write_bytes(
        draw.choice(
            [
                json.dumps(switched).encode(),
                b"v1\n" + b"[" * 100_000,
                data.replace(b"file:", place.encode() + b"/"),
                data.replace(b'"path":"', b'"path":"' + place.encode() + b"/../"),
                data.replace(b"state/", f"{place}/state/".encode()),
                b'v1\n{"path":"%s/part-0","size":1,"isDir":false,"modificationTime":1,'
                b'"blockReplication":1,"blockSize":1,"action":"add"}' % place.encode(),
            ]
        )
    )


def names(draw: random.Random, home: Path, outside: Path) -> None:
    """Add a file whose name has control characters, or is not text."""
    del outside
    folder = draw.choice([home, *(path for path in home.rglob("*") if path.is_dir())])
    if not folder.is_symlink():
        name = draw.choice([ESCAPE.encode(), b"\xff\xfe", b"7\n8", b"9223372036854775807"])
        with contextlib.suppress(FileExistsError), open(os.fsencode(folder) + b"/" + name, "xb"):
            pass


ATTACKS: tuple[Callable[[random.Random, Path, Path], None], ...] = (
    link,
    special,
    journal,
    journal,
    texts,
    names,
)


def commands(home: str, scratch: str) -> list[list[str]]:
    now = ["--execute", "--settle-seconds", "0", "--even-if-busy"]
    key = ["--key", '{"user": 1}']
    edits = [
        ["checkpoint", "undo", home],
        ["checkpoint", "repair", home],
        ["checkpoint", "repair", home, "--rewind", "--no-file-sink"],
        ["checkpoint", "rewind", home, "--to-batch", "2"],
        ["checkpoint", "rewind", home, "--to-batch", "1", "--no-file-sink"],
        ["checkpoint", "set-offsets", home, "--shift-by", "-1", "--no-file-sink"],
        ["checkpoint", "migrate-offsets", home],
        ["checkpoint", "publish", home],
        ["checkpoint", "copy", home, f"{scratch}/copy"],
        ["switch", home, "--to", f"{scratch}/new"],
        ["switch", home, "--back", f"{scratch}/new"],
        ["state", "put", home, *key, "--value", '{"count": 0}', "--no-file-sink"],
        ["state", "delete", home, *key, "--no-file-sink"],
        ["state", "repartition", home, "--partitions", "3", "--no-file-sink"],
        ["state", "repair", home, "--no-file-sink"],
    ]
    reads = [
        ["checkpoint", "show", home],
        ["checkpoint", "verify", home],
        ["checkpoint", "verify", home, "--deep"],
        ["checkpoint", "log", f"{home}/offsets"],
        ["checkpoint", "log", f"{home}/sources/0"],
        ["checkpoint", "diff", home],
        ["checkpoint", "undo", home, "--list"],
        ["checkpoint", "clone", home, f"{scratch}/clone", "--execute"],
        ["state", "show", home],
        ["state", "read", home],
        ["state", "get", home, *key],
        ["state", "stats", home],
        ["state", "verify", home],
        ["state", "export", home, "--to", f"{scratch}/rows.jsonl"],
        ["stop", home, "--timeout", "0"],
    ]
    return [*reads, *edits, *([*edit, *now] for edit in edits)]


def run(scratch: Path, seed: int, recorder: Recorder) -> tuple[int, list[str]]:
    """Prepare one checkpoint and run all commands on it; the number of commands and violations."""
    draw = random.Random(seed)
    shutil.rmtree(scratch, ignore_errors=True)
    outside = scratch / "outside"
    (outside / "_spark_metadata").mkdir(parents=True)
    for name in ("key", "_spark_metadata/0"):
        (outside / name).write_bytes(b"abc")
    home = unpack(Golden("4.3.0", draw.choice(CASES)), scratch / "golden").base / "checkpoint"
    for _ in range(draw.randrange(1, 4)):
        draw.choice(ATTACKS)(draw, home, outside)
    todo = commands(str(home), str(scratch / "made"))
    draw.shuffle(todo)
    violations = []
    for command in todo:
        for more in ([], ["--json"]):
            if more and "--execute" in command:
                continue
            violations += _violations(seed, [*command, *more], outside, recorder)
    return len(todo), violations


def _violations(seed: int, command: list[str], outside: Path, recorder: Recorder) -> list[str]:
    recorder.paths, recorder.hosts = set(), []
    said = io.BytesIO()
    out = io.TextIOWrapper(said, "utf-8", errors="backslashreplace", write_through=True)
    broken = []
    recorder.active = True
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            main(command)
    except BaseException as error:  # noqa: BLE001 - each is a finding
        broken.append(f"{type(error).__name__}: {error}"[:300])
    finally:
        signal.alarm(0)
        recorder.active = False
    broken += [f"opened {path!r}" for path in recorder.paths if _is_below(path, outside)]
    broken += [f"contacted {host}" for host in recorder.hosts]
    if sorted(str(path.relative_to(outside)) for path in outside.rglob("*")) != [
        "_spark_metadata",
        "_spark_metadata/0",
        "key",
    ] or any((outside / name).read_bytes() != b"abc" for name in ("key", "_spark_metadata/0")):
        broken.append("changed files outside")
    if any(not char.isprintable() and char != "\n" for char in said.getvalue().decode()):
        broken.append("printed control characters")
    return [f"seed {seed}: epochal {' '.join(command)}: {each}" for each in broken]


def _is_below(path: str, outside: Path) -> bool:
    """Whether using a path reads or changes something outside; links themselves are inside."""
    folder = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    place = os.path.join(folder, os.path.basename(path))
    return f"{place}/".startswith(f"{outside}/")


def _files(home: Path) -> list[Path]:
    return [path for path in sorted(home.rglob("*")) if path.is_file() and not path.is_symlink()]


def run_all(scratch: Path, first: int, seeds: int) -> dict[str, Any]:
    def give_up(*_: object) -> None:
        raise TimeoutError(f"no end after {SECONDS} s")

    signal.signal(signal.SIGALRM, give_up)
    recorder = Recorder()
    count, violations = 0, []
    for seed in range(first, first + seeds):
        ran, new = run(scratch / "case", seed, recorder)
        count += ran
        violations += new
    return {"commands": count, "events": recorder.events, "violations": violations}


if __name__ == "__main__":
    result = run_all(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.write(json.dumps(result))
