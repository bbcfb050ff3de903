"""Runs every command on random prepared checkpoints, and reports what left them. A child process.

    python -m tests.fuzz.prepared_child SCRATCH FIRST_SEED SEEDS [PLANTED]

Python's audit events name each path that is opened, listed, created or removed, and each address
that is looked up or contacted, whichever module asks. They cannot be turned off again, so the
process is one of its own. Prints the counts and the violations as JSON. PLANTED is a fault in the
boundary, to see that it is noticed.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import random
import re
import resource
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from tests.golden.library import Golden, unpack
from tests.unit.dashboard.asgi import ask

from epochal.cli.main import main
from epochal.cli.printing import output
from epochal.dashboard.app import Dashboard
from epochal.dashboard.board import Board
from epochal.errors import EpochalError, StorageError
from epochal.files import Bounds, objects, open_files
from epochal.files.local import LocalFiles
from epochal.state.files.codecs import compress_pieces
from epochal.testing.clock import ManualClock
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.upgrade.checkpoint_facts import read_pins

CASES = ("file_sink", "windowed", "rocksdb_zip", "named_sink", "transform", "offsets_v2")
HOST = "127.0.0.9"
COMMANDS = 12
"""Of the commands, so many are run on each checkpoint."""
SECONDS = 60
"""A command that takes longer than this waits for something that a checkpoint named."""
ESCAPE = "\x1b]0;owned\x07\x1b[2J"
LAST = b"9223372036854775807"

PATH_EVENTS = re.compile(
    r"open|os\.(listdir|scandir|mkdir|rename|link|symlink|remove|rmdir|truncate)|shutil\.\w+"
)
HOST_EVENTS = frozenset(
    ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind")
)


class Recorder:
    """Collects the paths and addresses of one command."""

    def __init__(self) -> None:
        self.active, self.events = False, 0
        self.paths: set[str] = set()
        """Where they really are, links resolved."""
        self.hosts: list[str] = []
        sys.addaudithook(self._hear)
        objects.open_object_store = self._refuse  # type: ignore[assignment]  # its client is no Python, and no event names it

    def _refuse(self, location: str, bounds: Bounds) -> NoReturn:
        self.hosts.append(location)
        raise StorageError(location, "no command line names it")

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event in HOST_EVENTS:
            self.hosts.append(repr(arguments[:2]))
        elif PATH_EVENTS.fullmatch(event):
            self.events += 1
            if event == "open" and self._is_announced(arguments):
                return
            follows = event in FOLLOWING or (event == "open" and not arguments[2] & os.O_NOFOLLOW)
            for each in arguments[:2]:
                if isinstance(each, str | bytes):
                    self.paths.add(_real(os.fsdecode(each), follows=follows))

    def _is_announced(self, arguments: tuple[Any, ...]) -> bool:
        """Whether `open` is about to call the opener of LocalFiles, which may refuse the path."""
        return arguments[1] is not None and sys._getframe(2).f_code is LocalFiles.read.__code__


FOLLOWING = ("os.listdir", "os.scandir", "os.truncate")


def _real(path: str, *, follows: bool) -> str:
    """The place that using a path touches. What does not follow links touches the link itself."""
    if follows:
        return os.path.realpath(path)
    folder = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    return os.path.join(folder, os.path.basename(path))


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


def numbers(draw: random.Random, home: Path, outside: Path) -> None:
    """Change a number in a log entry or in metadata to one that no program expects."""
    del outside
    small = [path for path in _files(home) if path.stat().st_size < 1 << 20]
    target = draw.choice(small)
    data = target.read_bytes()
    if places := list(re.finditer(rb"\d+", data)):
        at = draw.choice(places)
        target.write_bytes(data[: at.start()] + draw.choice(NUMBERS) + data[at.end() :])


NUMBERS = [b"9" * 5000, LAST, b"-1", b"1e400", b"NaN", b"0.5", b"null", b"\xd9\xa3"]


def bomb(draw: random.Random, home: Path, outside: Path) -> None:
    """Replace a state file by one that unpacks to more than is allowed."""
    del outside
    packed = [path for path in _files(home) if path.suffix in PACKED]
    if packed:
        target = draw.choice(packed)
        target.write_bytes(zip_bomb() if target.suffix == ".zip" else lz4_bomb())


PACKED = (".delta", ".snapshot", ".changelog", ".zip")


@cache
def lz4_bomb() -> bytes:
    return b"".join(compress_pieces([b"\x7f" * (1 << 20)] * 300, "lz4"))


@cache
def zip_bomb() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata", bytes(300 << 20))
    return out.getvalue()


def names(draw: random.Random, home: Path, outside: Path) -> None:
    """Add a file whose name has control characters, is not text, or claims a huge number."""
    del outside
    folder = draw.choice([home, *(path for path in home.rglob("*") if path.is_dir())])
    if not folder.is_symlink():
        name = draw.choice(NAMES)
        with contextlib.suppress(FileExistsError), open(os.fsencode(folder) + b"/" + name, "xb"):
            pass


NAMES = [ESCAPE.encode(), b"\xff\xfe", b"7\n8", LAST, LAST + b".compact", LAST + b".delta"]
ATTACKS: tuple[Callable[[random.Random, Path, Path], None], ...] = (
    link,
    special,
    journal,
    journal,
    texts,
    texts,
    numbers,
    names,
    bomb,
)


def commands(home: str, scratch: str) -> list[list[str]]:
    """Every command that opens a checkpoint without a broker, with and without its file sink."""
    key, no_sink = ["--key", '{"user": 1}'], ["--no-file-sink"]
    with_sink = ["--sink", f"{home}/../output"]
    edits = [
        ["checkpoint", "undo", home],
        ["checkpoint", "undo", home, *with_sink],
        ["checkpoint", "migrate-offsets", home],
        ["checkpoint", "publish", home],
        ["checkpoint", "copy", home, f"{scratch}/copy"],
        ["checkpoint", "clone", home, f"{scratch}/clone", *no_sink],
        ["checkpoint", "clone", home, f"{scratch}/clone", "--sink", f"{scratch}/output"],
        ["checkpoint", "rewind", home, "--to-batch", "2"],
        ["switch", home, "--to", f"{scratch}/new"],
        ["switch", home, "--back", f"{scratch}/new"],
    ]
    for sink in (no_sink, with_sink):
        edits += [
            ["checkpoint", "repair", home, "--rewind", *sink],
            ["checkpoint", "rewind", home, "--to-batch", "1", *sink],
            ["checkpoint", "set-offsets", home, "--shift-by", "-1", *sink],
            ["state", "put", home, *key, "--value", '{"count": 0}', *sink],
            ["state", "delete", home, *key, *sink],
            ["state", "repartition", home, "--partitions", "3", *sink],
            ["state", "convert", home, "--to", "rocksdb", *sink],
            ["state", "convert", home, "--to", "hdfs", *sink],
            ["state", "evolve", home, "--rename", "count=n", *sink],
            ["state", "rekey", home, "--key-function", "builtins:dict", *sink],
            ["state", "split", home, "--columns", "count", "--to", "7", *sink],
            ["state", "merge", home, "--other", "1", *sink],
            ["state", "move", home, "--to", "7", *sink],
            ["state", "repair", home, *sink],
        ]
    reads = [
        ["checkpoint", "show", home],
        ["checkpoint", "verify", home],
        ["checkpoint", "verify", home, *no_sink],
        ["checkpoint", "verify", home, "--deep", *with_sink],
        ["checkpoint", "verify", f"{home}/../output"],
        ["checkpoint", "log", f"{home}/offsets"],
        ["checkpoint", "log", f"{home}/sources/0"],
        ["checkpoint", "log", f"{home}/../output/_spark_metadata"],
        ["checkpoint", "diff", home],
        ["checkpoint", "undo", home, "--list"],
        ["state", "show", home],
        ["state", "read", home],
        ["state", "get", home, *key],
        ["state", "diff", home],
        ["state", "stats", home],
        ["state", "verify", home],
        ["state", "export", home, "--to", f"{scratch}/rows.jsonl"],
        ["shadow", home, home, *(f"--output-{side}={home}/../output" for side in "ab")],
        ["stop", home, "--timeout", "0"],
        [
            *("kafka", "commit", "--checkpoint", home),
            *("--group", "g", "--bootstrap-servers", ":1"),
        ],
    ]
    in_process = [["dashboard", home], ["check", home]]
    now = ["--execute", "--settle-seconds", "0", "--even-if-busy"]
    as_json = [[*command, "--json"] for command in (*reads, *edits)]
    return [*reads, *in_process, *edits, *as_json, *([*edit, *now] for edit in edits)]


def show_page(home: str, runs: Path) -> None:
    """What `epochal dashboard` does when a page is open."""
    clock = ManualClock()
    board = Board([home], runs, clock)
    board.check_health()
    app = Dashboard(board, clock).app()
    for query in board.summaries():
        for part in ("health", "history", "offsets", "stores", "state", "stats"):
            assert ask(app, f"/api/queries/{query['key']}/{part}").status in (200, 400, 404)


def check(home: str, runs: Path) -> None:
    """What `epochal check` reads, without the program, which needs Spark."""
    del runs
    with contextlib.suppress(EpochalError, OSError):  # the command prints them in a line
        read_pins(LocalFiles(home, bounds=Bounds()))


IN_PROCESS: dict[str, Callable[[str, Path], None]] = {"dashboard": show_page, "check": check}


def run(scratch: Path, seed: int, recorder: Recorder, *, every: bool) -> tuple[int, list[str]]:
    """Prepare one checkpoint and run some or all commands; how many, and the violations."""
    draw = random.Random(seed)
    shutil.rmtree(scratch, ignore_errors=True)
    outside = scratch / "outside"
    (outside / "_spark_metadata").mkdir(parents=True)
    for name in ("key", "_spark_metadata/0"):
        (outside / name).write_bytes(b"abc")
    place = unpack(Golden("4.3.0", draw.choice(CASES)), scratch / "golden", relocate=True)
    roots = [place.checkpoint, place.checkpoint]
    if place.output.is_dir():
        roots.append(place.output)
    for _ in range(draw.randrange(1, 4)):
        draw.choice(ATTACKS)(draw, draw.choice(roots), outside)
    todo = commands(str(place.checkpoint), str(scratch / "made"))
    chosen = todo if every else draw.sample(todo, COMMANDS)
    violations = [
        each for command in chosen for each in _violations(seed, command, outside, recorder)
    ]
    return len(chosen), violations


def _violations(seed: int, command: list[str], outside: Path, recorder: Recorder) -> list[str]:
    recorder.paths, recorder.hosts = set(), []
    said = io.BytesIO()
    out = io.TextIOWrapper(said, "utf-8", errors="backslashreplace", write_through=True)
    broken = []
    recorder.active = True
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            if command[0] in IN_PROCESS:
                IN_PROCESS[command[0]](command[1], outside.parent / "runs")
            else:
                main(command)
    except BaseException as error:  # noqa: BLE001 - each is a finding
        broken.append(f"{type(error).__name__}: {error}"[:300])
    finally:
        signal.alarm(0)
        recorder.active = False
    broken += [
        f"opened {each!r}" for each in recorder.paths if f"{each}/".startswith(f"{outside}/")
    ]
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


def _files(home: Path) -> list[Path]:
    return [path for path in sorted(home.rglob("*")) if path.is_file() and not path.is_symlink()]


def plant(fault: str) -> None:
    """Put a fault into the boundary."""
    match fault:
        case "links are followed":
            LocalFiles._open = lambda self, path, flags: os.open(path, flags | os.O_NONBLOCK)  # type: ignore[method-assign]
            LocalFiles._refuse_link = lambda self, folder: None  # type: ignore[method-assign]
        case "journals name places":
            Journal._root = lambda self, record, root: (  # type: ignore[method-assign]
                open_files(record.roots[root]) if root else self._files
            )
        case "text is printed as it is":
            output.printable = lambda text: text  # type: ignore[attr-defined]


def run_all(scratch: Path, first: int, seeds: int, fault: str) -> dict[str, Any]:
    def give_up(*_: object) -> None:
        raise TimeoutError(f"no end after {SECONDS} s")

    signal.signal(signal.SIGALRM, give_up)
    logging.disable()
    recorder = Recorder()
    count = 0
    violations: list[str] = []
    plant(fault)
    for seed in range(first, first + seeds):
        if fault and violations:
            break
        ran, new = run(scratch / "case", seed, recorder, every=bool(fault))
        count += ran
        violations += new
    most_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "checkpoints": seeds,
        "commands": count,
        "paths": recorder.events,
        "most_bytes": most_bytes,
        "violations": violations,
    }


if __name__ == "__main__":
    result = run_all(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), " ".join(sys.argv[4:]))
    sys.stdout.write(json.dumps(result))
