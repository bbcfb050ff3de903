"""Checks stateful operators: their metadata, their schemas and all their stores.

This module combines the two halves of verifying state: rules about file names (`check_state`) and
rules about file contents (`check_content`, `check_rocksdb`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from epochal.checkpoint.layout import (
    OFFSETS,
    operator_metadata_log_path,
    operator_metadata_path,
    state_schema_log_path,
    state_schema_path,
)
from epochal.checkpoint.operator_metadata import (
    OPERATOR_FORMAT,
    REPEATS_OPERATOR,
    OperatorMetadata,
    newest_at,
)
from epochal.checkpoint.restart import CODEC, LEGACY_DEFAULTS
from epochal.errors import EpochalError, OptionError, StorageError
from epochal.files.local import LocalFiles
from epochal.state.files.codecs import codec_name
from epochal.state.files.partitioning import placing_columns
from epochal.state.files.schema_file import FamilySchema, parse_schema_file
from epochal.state.rows.types import Kind, StructType
from epochal.tools.inspect.listing import CheckpointListing, LogListing, read_bytes, read_log
from epochal.tools.inspect.state_listing import OperatorListing, StoreListing
from epochal.tools.verify.check_bytes import RowChecker
from epochal.tools.verify.check_content import ContentCheck, ContentSettings, Tick
from epochal.tools.verify.check_files import orphan_rules, stale_rules
from epochal.tools.verify.check_logs import broken_entry, log_file_rules
from epochal.tools.verify.check_state import StateFacts, operator_rules
from epochal.tools.verify.depth import Depth, Progress
from epochal.tools.verify.findings import NOTHING, Finding, Severity, finding
from epochal.tools.verify.parallel import Work, check_in_processes, check_in_threads

if TYPE_CHECKING:
    from epochal.tools.verify.check_columns import EntryCheck

PARALLEL_FROM_FILES = 2_000
"""With fewer files, starting a process takes longer than it saves."""

ROW_CHECKSUM_KEY = "spark.sql.streaming.stateStore.rowChecksum.enabled"
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
    total = sum(_file_count(store) for operator in operators for store in operator.stores)
    if total < PARALLEL_FROM_FILES:
        workers = 1
    tick = _ticker(total, workers, progress)
    if settings is not None:
        yield from _unchecked_rules(listing, operators, settings)
    for operator in operators:
        own = read_operator_facts(listing, operator)
        yield from own.findings
        yield from operator_rules(operator, facts, is_keyed=is_keyed(own))
        if depth is not Depth.QUICK and settings is not None:
            check = content_check(listing, operator, own, facts, settings, tick)
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
    checksums = conf.get(ROW_CHECKSUM_KEY, "false").lower() == "true"
    if conf.get(STRICT_KEY, "false").lower() != "true":
        # Without strict distribution the plan chose the partition of each key, and the checkpoint
        # does not record how. Then keys are not checked against their partition.
        counts = {}
    return ContentSettings(codec, checksums, counts, depth is Depth.DEEP), []


def read_operator_facts(listing: CheckpointListing, operator: OperatorListing) -> OperatorFacts:
    """Read an operator's metadata and schemas, and record what is wrong with them."""
    found: list[Finding] = []
    facts = OperatorFacts(_metadata(listing, operator, found), findings=found)
    _check_side_files(listing, operator, found)
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
    if not _has_files(listing, folder) and (has_schema_log or ENCODING_KEY in conf):
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


def _has_files(listing: CheckpointListing, folder: str) -> bool:
    return any(
        not name.startswith(".")
        for _, directory in listing.directories.below(folder)
        for name in directory.files
    )


def _metadata(
    listing: CheckpointListing, operator: OperatorListing, found: list[Finding]
) -> OperatorMetadata | None:
    log_path = operator_metadata_log_path(operator.operator)
    log = read_log(
        listing.files, log_path, listing.directories[log_path], OPERATOR_FORMAT.deserialize
    )
    found.extend(
        finding("OPERATOR_METADATA_UNREADABLE", each.path, each.message)
        if each.code == "LOG_ENTRY_UNREADABLE"
        else each
        for each in log_file_rules(log)
    )
    found.extend(_moved_rules(listing, log))
    newest = newest_at(log.entries, None)
    if newest is not None:
        return log.entries[newest]
    path = operator_metadata_path(operator.operator)
    if path.rpartition("/")[2] not in listing.directories[path.rpartition("/")[0]].files:
        return None
    data = read_bytes(listing.files, path)
    try:
        if isinstance(data, EpochalError):
            raise data
        return OPERATOR_FORMAT.deserialize(data, path)
    except EpochalError as error:
        broken = broken_entry(path, error)
        if broken.code == "LOG_ENTRY_UNREADABLE":
            broken = finding("OPERATOR_METADATA_UNREADABLE", path, broken.message)
        found.append(broken)
    return None


def _moved_rules(
    listing: CheckpointListing, log: LogListing[OperatorMetadata]
) -> Iterator[Finding]:
    newest = newest_at(log.entries, None)
    if newest is None:
        return
    here = _without_scheme(listing.url)
    for store in log.entries[newest].stores:
        elsewhere = [
            path
            for path in store.schema_file_paths
            if not _without_scheme(path).startswith(f"{here}/")
        ]
        if elsewhere:
            yield finding(
                "OPERATOR_METADATA_MOVED",
                f"{log.path}/{newest}",
                f"it points at {elsewhere[0]}, which is outside {listing.url}",
            )


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
    data = read_bytes(listing.files, path)
    try:
        if isinstance(data, EpochalError):
            raise data
        return list(parse_schema_file(data, source=path))
    except StorageError as error:
        found.append(finding("FILE_UNREADABLE", path, error.reason))
    except EpochalError as error:
        reason = getattr(error, "reason", None) or str(error)
        found.append(finding("STATE_SCHEMA_UNREADABLE", path, reason))
    return []


def _check_side_files(
    listing: CheckpointListing, operator: OperatorListing, found: list[Finding]
) -> None:
    """Check Hadoop's checksums of metadata and schema files, which Spark never overwrites."""

    def read(path: str) -> bytes | None:
        data = read_bytes(listing.files, path)
        return data if isinstance(data, bytes) else None

    for path, directory in listing.directories.below(operator.path):
        if "/_metadata" not in path and "/_stateSchema" not in path:
            continue
        found.extend(orphan_rules(path, directory))
        raw = {
            name: data
            for name in directory.files
            if not name.startswith(".") and (data := read(f"{path}/{name}")) is not None
        }
        found.extend(stale_rules(path, directory, raw, read))


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
) -> Work[StoreListing]:
    """Return the function that checks a share of an operator's stores.

    `tables` are RocksDB's data files that are checked already; those checked now are added.
    """

    def entries(stores: Sequence[StoreListing], reports_progress: bool) -> list[Finding]:
        from epochal.tools.verify.check_rocksdb import RocksCheck

        share_tick = tick if reports_progress else _no_progress
        check = RocksCheck(
            listing.files,
            listing.directories,
            settings,
            share_tick,
            tables,
            _entry_check(listing, settings, own),
        )
        for store in stores:
            check.store(store, facts, unique_id_of(operator, store, facts))
        return check.findings

    def rows(stores: Sequence[StoreListing], reports_progress: bool) -> list[Finding]:
        check = ContentCheck(listing.files, settings, tick if reports_progress else _no_progress)
        checkers = {
            name: RowChecker(schema.key, schema.value, _placing_count(own, name, schema.key))
            for name, schema in own.schemas.items()
        }
        for store in stores:
            check.store(store, checkers.get(store.name))
        return check.findings

    return entries if operator.format is not None and operator.format.is_database else rows


def _entry_check(
    listing: CheckpointListing, settings: ContentSettings, own: OperatorFacts
) -> EntryCheck | None:
    """The check of RocksDB's entries in deep mode, if it is possible; `state_rules` says if not."""
    if not settings.deep or own.findings:
        return None
    from epochal.tools.verify.check_columns import open_entry_check

    opened = open_entry_check(listing.files, listing.restart_version - 1, settings.partitions)
    return None if isinstance(opened, str) else opened


def _unchecked_rules(
    listing: CheckpointListing, operators: Sequence[OperatorListing], settings: ContentSettings
) -> Iterator[Finding]:
    """Say why the entries of RocksDB cannot be checked, although that was asked for."""
    databases = (each for each in operators if each.format and each.format.is_database)
    place = next((each.path for each in databases), None)
    batch_id = listing.restart_version - 1
    if settings.deep and place is not None and batch_id in listing.commits.entries:
        from epochal.tools.verify.check_columns import open_entry_check

        opened = open_entry_check(listing.files, batch_id, settings.partitions)
        if isinstance(opened, str):
            yield finding("ROCKSDB_UNCHECKED", place, opened)


def _no_progress() -> None:
    """Report no progress."""


def unique_id_of(operator: OperatorListing, store: StoreListing, facts: StateFacts) -> str:
    """The unique id of the store's files that a restart loads; empty if no commit names one."""
    partitions = (facts.unique_ids or {}).get(operator.operator, ())
    position = operator.store_names.index(store.name)
    if store.partition >= len(partitions) or position >= len(partitions[store.partition]):
        return ""
    return partitions[store.partition][position]


def _placing_count(own: OperatorFacts, store: str, key: StructType) -> int:
    """How many of a key's first columns choose its partition; 0 if none does, or none can tell."""
    name = None if own.metadata is None else own.metadata.operator_name
    # Our own deduplication of messages keeps the time of a message in the column of its id, which
    # alone has chosen the partition. So the stored text does not tell it.
    return 0 if name == REPEATS_OPERATOR else len(placing_columns(name, store, key).fields)


def _file_count(store: StoreListing) -> int:
    kinds = (store.deltas, store.snapshots, store.changelogs, store.zips)
    return sum(len(kind) for kind in kinds)


def _ticker(total: int, workers: int, progress: Progress | None) -> Tick:
    if progress is None:
        return _no_progress
    report = progress
    done = 0

    def tick() -> None:
        nonlocal done
        # Only this process reports. It assumes that the other workers are about as far.
        done = min(done + workers, total)
        report(done, total)

    return tick
