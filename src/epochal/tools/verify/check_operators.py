"""Checks stateful operators: their metadata, their schemas and all their stores.

This module combines the two halves of verifying state: rules about file names (`check_state`) and
rules about file contents (`check_content`, `check_rocksdb`).

File contents are checked in parallel. On a local disk the checks are bound by the CPU. Each share
of the stores runs in a fork of this process, which sends its findings back through a pipe and
exits. If a fork fails, this process checks its share again, so that the original error surfaces. On
other storage the checks mostly wait, for which threads suffice, and the clients of object stores do
not survive a fork.

Note: a process that has threads must not fork. Only the command line asks for more than one worker.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from epochal.checkpoint.layout import (
    OFFSETS,
    operator_metadata_path,
    state_schema_log_path,
    state_schema_path,
)
from epochal.checkpoint.operator_metadata import REPEATS_OPERATOR, OperatorMetadata, newest_at
from epochal.checkpoint.restart import CODEC, LEGACY_DEFAULTS, ROW_CHECKSUMS
from epochal.errors import EpochalError, OptionError, StorageError
from epochal.files.local import LocalFiles
from epochal.state.files.codecs import codec_name
from epochal.state.files.partitioning import placing_columns
from epochal.state.files.schema_file import FamilySchema, parse_schema_file
from epochal.state.rows.types import Kind, StructType
from epochal.tools.inspect.listing import (
    WAITING_THREADS,
    CheckpointListing,
    read_bytes,
    read_entry,
    read_operator_log,
)
from epochal.tools.inspect.state_listing import OperatorListing, StoreListing
from epochal.tools.verify.check_content import (
    ContentCheck,
    ContentSettings,
    RowChecker,
    Tick,
    no_tick,
)
from epochal.tools.verify.check_files import crc_rules
from epochal.tools.verify.check_logs import broken_entry, log_file_rules
from epochal.tools.verify.check_state import StateFacts, operator_rules
from epochal.tools.verify.findings import NOTHING, Depth, Finding, Progress, Severity, finding

if TYPE_CHECKING:
    from epochal.tools.verify.check_columns import EntryCheck

T = TypeVar("T")
Work = Callable[[Sequence[T], bool], list[Finding]]
"""Checks a share of the items. The flag tells whether this share reports progress."""

READ_BYTES = 1 << 16
PARALLEL_FROM_FILES = 2_000
"""With fewer files, starting a process takes longer than it saves."""

ENCODING_KEY = "spark.sql.streaming.stateStore.encodingFormat"
"""Spark pins it since 4.0, the first release that writes operator metadata."""
STATE_SCHEMA = "_stateSchema"
_STARTING_WRITES_IT = (
    f"{NOTHING} if the query is going to run: Spark writes it again when the query starts. Until "
    f"then Epochal and Spark's state reader cannot read this state. Or restore it from a backup."
)
STRICT_KEY = "spark.sql.streaming.statefulOperator.useStrictDistribution"


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """An operator's metadata and schemas, as far as they could be read."""

    metadata: OperatorMetadata | None = None
    schemas: dict[str, FamilySchema] = field(default_factory=dict)
    """By store name; only stores that have a single schema for all their rows."""
    findings: list[Finding] = field(default_factory=list)


def state_rules(
    listing: CheckpointListing,
    operators: list[OperatorListing],
    facts: StateFacts,
    depth: Depth,
    progress: Progress | None,
    workers: int,
) -> Iterator[Finding]:
    """Check all operators. At depth QUICK, file contents are not read."""
    settings, found = content_settings(listing, depth)
    yield from found
    stores = [store for operator in operators for store in operator.stores]
    kinds = (
        kind for one in stores for kind in (one.deltas, one.snapshots, one.changelogs, one.zips)
    )
    total = sum(map(len, kinds))
    if total < PARALLEL_FROM_FILES:
        workers = 1
    tick = _ticker(total, workers, progress)
    entries: EntryCheck | str | None = None
    databases = [one.path for one in operators if one.format and one.format.is_database]
    if settings is not None and settings.deep and databases:
        from epochal.tools.verify.check_columns import open_entry_check

        batch_id = listing.restart_version - 1
        entries = open_entry_check(listing.files, batch_id, settings.partitions)
        is_logged = batch_id in listing.commits.entries and batch_id in listing.offsets.entries
        if isinstance(entries, str) and is_logged:  # otherwise a finding about the logs says why
            yield finding("ROCKSDB_UNCHECKED", databases[0], entries)
    for operator in operators:
        own = read_operator_facts(listing, operator)
        yield from own.findings
        yield from operator_rules(operator, facts, is_keyed=is_keyed(own))
        if depth is not Depth.QUICK and settings is not None:
            known = None if own.findings or isinstance(entries, str) else entries
            check = content_check(listing, operator, own, facts, settings, tick, entries=known)
            if workers > 1 and not isinstance(listing.files, LocalFiles):
                yield from check_in_threads(operator.stores, check)
            else:
                yield from check_in_processes(operator.stores, check, workers)


def content_settings(
    listing: CheckpointListing, depth: Depth, batch_id: int | None = None
) -> tuple[ContentSettings | None, list[Finding]]:
    """Take the format of the state files from the offsets of a batch, by default the newest."""
    newest = max(listing.offsets.entries, default=None) if batch_id is None else batch_id
    conf = {} if newest is None else listing.offsets.entries[newest].conf
    try:
        codec = codec_name(conf.get(CODEC, LEGACY_DEFAULTS[CODEC]))
    except OptionError as error:
        return None, [finding("CONF_INVALID", f"{OFFSETS}/{newest}", str(error))]
    counts = listing.partition_counts
    checksums = conf.get(ROW_CHECKSUMS, "false").lower() == "true"
    if conf.get(STRICT_KEY, "false").lower() != "true":
        # Without strict distribution the plan chose the partition of each key, and the checkpoint
        # does not record how. Then keys are not checked against their partition.
        counts = {}
    return ContentSettings(codec, checksums, counts, depth is Depth.DEEP), []


def read_operator_facts(listing: CheckpointListing, operator: OperatorListing) -> OperatorFacts:
    found: list[Finding] = []
    facts = OperatorFacts(_metadata(listing, operator, found), findings=found)
    # Spark never overwrites metadata and schema files, so Hadoop's checksums of them matter.
    for path, directory in listing.directories.below(operator.path):
        if "/_metadata" in path or f"/{STATE_SCHEMA}" in path:
            names = [name for name in directory.files if not name.startswith(".")]
            contents = {name: read_bytes(listing.files, f"{path}/{name}") for name in names}
            raw = {name: data for name, data in contents.items() if isinstance(data, bytes)}
            found.extend(crc_rules(listing.files, path, directory, raw))
    for store in operator.store_names:
        for path in _schema_paths(listing, operator.operator, store):
            families = _schema(listing, path, found)
            if path.endswith("/schema") and len(families) == 1:
                facts.schemas[store] = families[0]
    found.extend(_missing_rules(listing, operator, facts.metadata))
    return facts


def _missing_rules(
    listing: CheckpointListing, operator: OperatorListing, metadata: OperatorMetadata | None
) -> Iterator[Finding]:
    """Find lost metadata and schema files. The settings of the newest batch tell what is due."""
    newest = max(listing.offsets.entries, default=None)
    conf = {} if newest is None else listing.offsets.entries[newest].conf
    folder = operator_metadata_path(operator.operator).rpartition("/")[0]
    has_schema_log = f"{operator.path}/{STATE_SCHEMA}" in listing.directories.by_path
    names = (name for _, below in listing.directories.below(folder) for name in below.files)
    has_files = any(not name.startswith(".") for name in names)
    if not has_files and (has_schema_log or ENCODING_KEY in conf):
        yield finding(
            "OPERATOR_METADATA_MISSING",
            folder,
            f"operator {operator.operator} has {len(operator.stores)} stores, but no metadata",
            severity=None if has_schema_log else Severity.WARNING,
            remedy="" if has_schema_log else _STARTING_WRITES_IT,
        )
    if metadata is not None and any(store.schema_file_paths for store in metadata.stores):
        yield from _lost_schemas(listing, operator, metadata)
    elif not has_schema_log:
        for store in operator.store_names:
            path = state_schema_path(operator.operator, store)
            place = path.rpartition("/")[0]
            there = place.removesuffix("/_metadata") in listing.directories.by_path
            if there and "schema" not in listing.directories[place].files:
                yield finding(
                    "STATE_SCHEMA_MISSING",
                    path,
                    f"store {store} of operator {operator.operator} has no schema",
                    severity=Severity.WARNING if CODEC in conf else Severity.INFO,
                    remedy=_STARTING_WRITES_IT
                    if CODEC in conf
                    else f"{NOTHING}: Spark before 3.1 wrote no schema files.",
                )


def _lost_schemas(
    listing: CheckpointListing, operator: OperatorListing, metadata: OperatorMetadata
) -> Iterator[Finding]:
    for store in metadata.stores:
        directory = state_schema_log_path(operator.operator, store.name)
        for named in store.schema_file_paths:
            name = named.rpartition("/")[2]
            if name not in listing.directories[directory].files:
                yield finding(
                    "STATE_SCHEMA_MISSING",
                    f"{directory}/{name}",
                    f"the metadata of operator {operator.operator} names it",
                )


def _metadata(
    listing: CheckpointListing, operator: OperatorListing, found: list[Finding]
) -> OperatorMetadata | None:
    log, metadata = read_operator_log(listing, operator.operator)
    broken = list(log_file_rules(log))
    if isinstance(metadata, EpochalError):
        broken.append(broken_entry(operator_metadata_path(operator.operator), metadata))
    found.extend(
        finding("OPERATOR_METADATA_UNREADABLE", each.path, each.message)
        if each.code == "LOG_ENTRY_UNREADABLE"
        else each
        for each in broken
    )
    if isinstance(metadata, EpochalError):
        return None
    newest, here = newest_at(log.entries, None), _without_scheme(listing.url)
    for store in () if newest is None else log.entries[newest].stores:
        elsewhere = [
            path
            for path in store.schema_file_paths
            if not _without_scheme(path).startswith(f"{here}/")
        ]
        if elsewhere:
            message = f"it points at {elsewhere[0]}, which is outside {listing.url}"
            found.append(finding("OPERATOR_METADATA_MOVED", f"{log.path}/{newest}", message))
    return metadata


def _without_scheme(location: str) -> str:
    """Remove the scheme of a URL, so that `file:/a`, `file:///a` and `/a` compare equal."""
    return re.sub(r"^[A-Za-z][A-Za-z0-9+.-]+:/*", "/", location)


def _schema_paths(listing: CheckpointListing, operator: int, store: str) -> Iterator[str]:
    path = state_schema_path(operator, store)
    if "schema" in listing.directories[path.rpartition("/")[0]].files:
        yield path
    log_path = state_schema_log_path(operator, store)
    for name in listing.directories[log_path].files:
        if not name.startswith("."):
            yield f"{log_path}/{name}"


def _schema(listing: CheckpointListing, path: str, found: list[Finding]) -> list[FamilySchema]:
    families = read_entry(
        listing.files, path, lambda data, source: list(parse_schema_file(data, source=source))
    )
    if not isinstance(families, EpochalError):
        return families
    code = "FILE_UNREADABLE" if isinstance(families, StorageError) else "STATE_SCHEMA_UNREADABLE"
    found.append(finding(code, path, getattr(families, "reason", None) or str(families)))
    return []


def is_keyed(own: OperatorFacts) -> bool | None:
    """Whether an operator's key has columns to partition by; None if no schema tells."""
    schema = next(iter(own.schemas.values()), None)
    if schema is None:
        return None
    return any(child.kind is not Kind.VOID for child in schema.key.layout.children)


def content_check(
    listing: CheckpointListing,
    operator: OperatorListing,
    own: OperatorFacts,
    facts: StateFacts,
    settings: ContentSettings,
    tick: Tick,
    tables: dict[str, Finding | int | None] | None = None,
    entries: EntryCheck | None = None,
) -> Work[StoreListing]:
    """Return the function that checks a share of an operator's stores.

    `tables` are RocksDB's data files that are checked already; those checked now are added. With
    `entries`, the entries of databases are checked, too.
    """

    def databases(stores: Sequence[StoreListing], reports_progress: bool) -> list[Finding]:
        from epochal.tools.verify.check_rocksdb import RocksCheck

        share_tick = tick if reports_progress else no_tick
        place = listing.files, listing.directories
        check = RocksCheck(*place, settings, share_tick, tables, entries)
        for store in stores:
            check.store(store, facts, facts.unique_id(operator, store))
        return check.findings

    def rows(stores: Sequence[StoreListing], reports_progress: bool) -> list[Finding]:
        check = ContentCheck(listing.files, settings, tick if reports_progress else no_tick)
        checkers = {
            name: RowChecker(schema.key, schema.value, _placing_count(own, name, schema.key))
            for name, schema in own.schemas.items()
        }
        for store in stores:
            check.store(store, checkers.get(store.name))
        return check.findings

    return databases if operator.format is not None and operator.format.is_database else rows


def _placing_count(own: OperatorFacts, store: str, key: StructType) -> int:
    """How many of a key's first columns choose its partition; 0 if none does, or none can tell."""
    name = None if own.metadata is None else own.metadata.operator_name
    # Our own deduplication of messages keeps the time of a message in the column of its id, which
    # alone has chosen the partition. So the stored text does not tell it.
    return 0 if name == REPEATS_OPERATOR else len(placing_columns(name, store, key).fields)


def _ticker(total: int, workers: int, progress: Progress | None) -> Tick:
    if progress is None:
        return no_tick
    report = progress
    done = 0

    def tick() -> None:
        nonlocal done
        # Only this process reports. It assumes that the other workers are about as far.
        done = min(done + workers, total)
        report(done, total)

    return tick


def check_in_processes(items: Sequence[T], work: Work[T], workers: int) -> list[Finding]:
    """Return the findings of `work` for all items, in no particular order."""
    workers = min(workers, len(items))
    if workers <= 1:
        return work(items, True)
    shares = [items[start::workers] for start in range(workers)]
    children: list[tuple[int, int]] = []
    try:
        children += (_start(share, work) for share in shares[1:])
        found = work(shares[0], True)
        for share in shares[1:]:
            answer = _collect(*children[0])
            del children[0]
            found.extend(work(share, False) if answer is None else answer)
    finally:
        for process, _ in children:  # only after an error, or after Ctrl-C
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    return found


def check_in_threads(items: Sequence[T], work: Work[T]) -> list[Finding]:
    """Do the same as `check_in_processes`, for work that mostly waits."""
    from concurrent.futures import ThreadPoolExecutor

    threads = min(WAITING_THREADS, len(items))
    if threads <= 1:
        return work(items, True)
    shares = [items[start::threads] for start in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        answers = pool.map(work, shares, [True] + [False] * (threads - 1))
        return [each for answer in answers for each in answer]


def _start(share: Sequence[T], work: Work[T]) -> tuple[int, int]:
    """Check a share in a child; return its process id and the pipe with its findings."""
    receive, send = os.pipe()
    process = os.fork()
    if process:
        os.close(send)
        return process, receive
    status = 1
    try:
        os.close(receive)
        answer = json.dumps([each.as_json() for each in work(share, False)]).encode()
        while answer:
            answer = answer[os.write(send, answer) :]
        status = 0
    finally:
        # Exit without cleanup: buffers and exit handlers belong to the parent.
        os._exit(status)


def _collect(process: int, pipe: int) -> list[Finding] | None:
    """Return a child's findings; None if it failed.

    The pipe is read to its end before waiting: a child blocks once the pipe is full.
    """
    parts = []
    while part := os.read(pipe, READ_BYTES):
        parts.append(part)
    os.close(pipe)
    _, status = os.waitpid(process, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        return None
    return [
        Finding(**{**fields, "severity": Severity(fields["severity"])})
        for fields in json.loads(b"".join(parts))
    ]
