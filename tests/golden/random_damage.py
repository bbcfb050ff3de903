"""Damages golden checkpoints at random, and obeys what `verify` prints until nothing is left.

A case is drawn from its seed: a query, its sink, how old a file sink is, one to three faults, and
whether the commands come from `verify` or from the dashboard's page. Commands are run exactly as
printed, with `--execute` added. A remedy that begins with "If" does not apply: the damage is real.

A Kafka topic and a Delta table leave no trace in a checkpoint, so a golden query without a file
sink stands for a query with either. The table gets what the golden query has written so far. Where
an edit warns that a Delta table would skip rows or take them twice, what it says is done.

`tests/spark/test_random_damage.py` lets Spark go on from those
that end healthy.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.golden.delta_output import restore_after, write_table
from tests.golden.library import Golden, Unpacked, unpack

from epochal.cli.main import main
from epochal.dashboard.health import HealthMonitor
from epochal.files.local import LocalFiles
from epochal.testing.clock import ManualClock
from epochal.tools.verify.findings import CANNOT

RELEASE = "4.3.0"
DELTA_RELEASE = "4.2.1"
"""The newest Spark for which there is a Delta connector."""
FILES, ROWS, DELTA, KAFKA = "files", "rows", "delta", "kafka"
WITH_SINK = ("file_sink", "file_sink_counts", "file_sink_cleanup", "named_sink")
WITHOUT_SINK = (
    *("windowed", "several_sources", "dedup_watermark", "global", "offsets_v2", "join_inner"),
    *("rocksdb_zip", "rocksdb_changelog", "rocksdb_v2", "rocksdb_v2_zip", "rocksdb_dedup"),
    *("rocksdb_session", "join_rocksdb", "join_rocksdb_ids"),
)
INTO_TABLES = (
    *("windowed", "several_sources", "dedup_watermark", "offsets_v2", "join_inner", "join_rocksdb"),
    *("rocksdb_zip", "rocksdb_changelog", "rocksdb_v2", "rocksdb_dedup", "rocksdb_session"),
)
"""Queries that append rows, and those to a file that the archive has."""
ROUNDS = 12
AT_ONCE = ("--execute", "--settle-seconds", "0")
COMMAND = re.compile(r"`(epochal [^`]+)`")
CLONE = re.compile(r"`(epochal checkpoint clone [^`]+)`")
SETTLED = "If "
"""How a remedy begins whose command is for files that are right after all."""


@dataclass
class Case:
    """One damaged checkpoint, and what became of it."""

    seed: int
    place: Unpacked
    sink: str = ""
    """Where the rows go: `files`, `delta`, `kafka`, or `rows` for a function of the user's."""
    faults: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    deep: bool = False
    """Whether `verify --deep` is obeyed, which alone sees keys of another partition in RocksDB."""
    outcome: str = ""
    """`healthy`, `cannot`, or what went wrong."""

    def __post_init__(self) -> None:
        self.sink = self.sink or (FILES if self.place.golden.case in WITH_SINK else ROWS)

    @property
    def has_sink(self) -> bool:
        return self.sink == FILES

    @property
    def told(self) -> list[str]:
        return ["--sink", str(self.place.output)] if self.has_sink else ["--no-file-sink"]

    def __str__(self) -> str:
        what = (
            f"seed {self.seed}: {self.place.golden.case} to {self.sink}: {'; '.join(self.faults)}"
        )
        return f"{what} -> {self.outcome} after {self.steps}"


def epochal(*words: str) -> tuple[int, str]:
    """Run a command; its status and everything that it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = main(words)
    return status, out.getvalue()


# Damage


def lose(draw: random.Random, path: Path) -> str:
    path.unlink()
    crc(path).unlink(missing_ok=True)
    return "lost"


def tear(draw: random.Random, path: Path) -> str:
    """Cut a file off, as a full disk does. Its checksum, if any, is that of the whole file."""
    size = draw.randrange(path.stat().st_size) if path.stat().st_size else 0
    path.write_bytes(path.read_bytes()[:size])
    return f"torn to {size} bytes"


def empty(draw: random.Random, path: Path) -> str:
    path.write_bytes(b"")
    crc(path).unlink(missing_ok=True)
    return "emptied"


def orphan(draw: random.Random, path: Path) -> str:
    """A checksum of the file that comes next, left by a write that was cut off."""
    number = path.name.partition(".")[0]
    after = path.name.replace(number, str(int(number) + 1), 1) if number.isdigit() else path.name
    crc(path.with_name(after)).write_bytes(b"crc\0\0\0\2\0")
    return "followed by a checksum without its file"


def ahead(draw: random.Random, path: Path) -> str:
    """A copy under a later number, as an incomplete restore leaves it."""
    number = path.name.partition(".")[0]
    later = path.name.replace(number, str(int(number) + draw.randrange(1, 4)), 1)
    if path.with_name(later).exists():
        return lose(draw, path)
    shutil.copyfile(path, path.with_name(later))
    return f"copied to {later}"


def flip(draw: random.Random, path: Path) -> str:
    """Change one bit of a state file, as a disk or a network does."""
    data = bytearray(path.read_bytes())
    if path.suffix not in STATE_SUFFIXES or not data:
        return lose(draw, path)
    bit = draw.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    crc(path).unlink(missing_ok=True)
    return f"changed in bit {bit}"


def swap(draw: random.Random, path: Path) -> str:
    """Put the file of another partition in its place, as a copy that was mixed up does."""
    others = [each for each in path.parent.parent.glob(f"*/{path.name}") if each != path]
    if path.suffix not in STATE_SUFFIXES or not others:
        return lose(draw, path)
    other = draw.choice(others)
    shutil.copyfile(other, path)
    crc(path).unlink(missing_ok=True)
    if crc(other).exists():
        shutil.copyfile(crc(other), crc(path))
    return f"replaced by that of partition {other.parent.name}"


STATE_SUFFIXES = (".delta", ".snapshot", ".changelog", ".zip", ".sst")
DAMAGE: tuple[Callable[[random.Random, Path], str], ...] = (
    *(lose, lose, tear, tear, empty, flip, orphan),
)


def crc(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def damage(draw: random.Random, case: Case) -> None:
    """Do one thing to one file: mostly a recent one, since that is what a crash leaves."""
    place = case.place
    groups = [
        place.checkpoint.glob("offsets/*"),
        place.checkpoint.glob("commits/*"),
        place.checkpoint.glob("sources/*/*"),
        place.checkpoint.glob("state/[0-9]/[0-9]/**/*"),
        place.checkpoint.glob("metadata"),
    ]
    if case.has_sink:
        groups += [place.output.glob("_spark_metadata/*")] * 2
    found = [path for path in draw.choice(groups) if path.is_file() and path.name[0] != "."]
    newest = sorted(found, key=number_of)[-6:] if draw.random() < 0.7 else sorted(found)
    if not newest:
        return
    path = draw.choice(newest)
    numbered = path.name.partition(".")[0].isdigit()
    ways = (*DAMAGE, ahead) if numbered else DAMAGE[:-1]
    how = draw.choice((*ways, swap) if case.deep else ways)
    case.faults.append(f"{path.relative_to(place.base)} is {how(draw, path)}")


def number_of(path: Path) -> tuple[int, str]:
    found = path.name.partition(".")[0]
    return (int(found) if found.isdigit() else -1, str(path))


# Obeying


def findings(case: Case, page: bool) -> list[tuple[str, list[str]]]:
    """The remedies that are printed, worst first, each with the commands to run."""
    if page:
        health = HealthMonitor(LocalFiles(case.place.checkpoint), ManualClock()).check().as_json()
        sink = " ".join(map(shlex.quote, case.told))
        return [
            (
                each["remedy"],
                [
                    command.replace("--sink OUTPUT", sink).removesuffix(" --execute")
                    for command in each["commands"]
                ],
            )
            for each in health["findings"]
            if each["severity"] != "info"
        ]
    depth = ("--deep",) if case.deep else ()
    _, out = epochal("checkpoint", "verify", str(case.place.checkpoint), *case.told, *depth)
    found = []
    for block in re.split(r"^(?=(?:error|warning|info): )", out, flags=re.MULTILINE):
        if block.startswith(("error: ", "warning: ")):
            remedy = " ".join(block.partition("remedy: ")[2].split())
            remedy = remedy.partition(" healthy")[0]
            found.append((remedy, COMMAND.findall(remedy)))
    return found


def obey(case: Case, *, page: bool) -> None:
    """Run what is printed until nothing is left, or until what is left cannot be repaired."""
    seen: set[str] = set()
    for _ in range(ROUNDS):
        state = digest(case.place)
        if state in seen:
            case.outcome = "a circle"
            return
        seen.add(state)
        found = findings(case, page)
        if not found:
            if not page:
                case.outcome = "healthy"
                return
            page = False  # the page says that it has not checked the sink
            seen.clear()
            continue
        if not try_commands(case, found):
            if page:  # it has not seen the sink, and says so
                page = False
                seen.clear()
                continue
            cannot = any(each.startswith(CANNOT) for each, _ in found)
            honest = cannot or all(each.startswith(SETTLED) for each, _ in found)
            case.outcome = "cannot" if honest else f"nothing helps: {found}"
            return
    case.outcome = "no end"


def try_commands(case: Case, found: list[tuple[str, list[str]]]) -> bool:
    """Run the first command that changes something; whether there is one."""
    if any(remedy.startswith(CANNOT) for remedy, _ in found):
        return False
    for remedy, commands in found:
        unsure = remedy.startswith("If ")
        for command in (
            commands[-1:] if unsure and "Otherwise" in remedy else commands[: not unsure]
        ):
            before = digest(case.place)
            run_command(case, shlex.split(command)[1:])
            if digest(case.place) != before:
                return True
    return False


def run_command(case: Case, words: list[str]) -> None:
    """Run a command at once. For a Delta table, as its plan warns."""
    if case.sink == DELTA:
        plan = epochal(*words)[1]
        if clones := CLONE.findall(plan):
            [clone] = clones
            go_on_with_a_clone(case, shlex.split(clone)[1:])
            return
        if "--query-id" in plan:  # the table has the old one
            words = [*words, "--query-id", case.place.facts["query_id"]]
    status, out = epochal(*words, *AT_ONCE)
    case.steps.append(f"{words[1]} {status}: {out[-300:] if status == 2 else ''}")
    if "Traceback" in out:
        raise AssertionError(out)


def go_on_with_a_clone(case: Case, words: list[str]) -> None:
    """What the warning of a rewind says: restore the table, and start the query on a clone."""
    new, old = case.place.base / "new", case.place.base / "old"
    status, out = epochal(*(str(new) if word == "NEW" else word for word in words), "--execute")
    case.steps.append(f"clone {status}: {out[-300:] if status == 2 else ''}")
    if status != 0:
        return
    restore_after(case.place, int(words[words.index("--at") + 1]))
    shutil.rmtree(old, ignore_errors=True)
    case.place.checkpoint.rename(old)
    new.rename(case.place.checkpoint)  # so that Spark finds it where it looks for all of them


def digest(place: Unpacked) -> str:
    """Identifies the bytes of a checkpoint and its output, wherever they are."""
    total = hashlib.sha256()
    base = str(place.base).encode()
    for root in (place.checkpoint, place.output):
        for path in sorted(root.rglob("*")):
            if path.is_file() and ".epochal" not in path.parts:
                total.update(str(path.relative_to(place.base)).encode())
                total.update(hashlib.sha256(path.read_bytes().replace(base, b"")).digest())
    return total.hexdigest()


def damaged(seed: int, into: Path) -> tuple[Case, random.Random]:
    """A golden checkpoint with one to three faults."""
    draw = random.Random(seed)
    sink = draw.choices((FILES, ROWS, DELTA, KAFKA), (4, 2, 2, 2))[0]
    names = WITH_SINK if sink == FILES else WITHOUT_SINK if sink == ROWS else INTO_TABLES
    golden = Golden(DELTA_RELEASE if sink == DELTA else RELEASE, draw.choice(names))
    case = Case(seed, unpack(golden, into, relocate=True), sink)
    if draw.random() < 0.4:  # a younger query, before the first or between two compactions
        newest = max(map(int, (path.name for path in case.place.checkpoint.glob("offsets/[0-9]*"))))
        to = draw.randrange(max(1, newest - 6), newest)
        words = ("checkpoint", "rewind", str(case.place.checkpoint), "--to-batch", str(to))
        if epochal(*words, *case.told, *AT_ONCE)[0] == 0:
            drop_rows_after(case.place, to)
            shutil.rmtree(case.place.checkpoint / ".epochal")
    if sink == DELTA:
        write_table(case.place)
    case.deep = draw.random() < 0.3
    for _ in range(draw.randrange(1, 4)):
        damage(draw, case)
    return case, draw


def make_case(seed: int, into: Path) -> Case:
    case, draw = damaged(seed, into)
    obey(case, page=draw.random() < 0.25)
    if case.sink == ROWS:
        commits = [int(path.name) for path in case.place.checkpoint.glob("commits/[0-9]*")]
        drop_rows_after(case.place, max(commits, default=-1))
    return case


def drop_rows_after(place: Unpacked, batch_id: int) -> None:
    """What an idempotent sink of the caller's own does when its query is rewound."""
    for path in place.output.glob("*.jsonl"):
        if int(path.stem) > batch_id:
            path.unlink()


def make_cases(first: int, count: int, scratch: Path) -> Iterator[Case]:
    for seed in range(first, first + count):
        yield make_case(seed, scratch / str(seed))
