"""Reads what a checkpoint pins. Nothing is created or changed."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from urllib.parse import unquote

from epochal.checkpoint.directory import Checkpoint
from epochal.checkpoint.file_log import FileSourceLog, RateLog
from epochal.checkpoint.layout import JOIN_STORES, state_schema_log_path, state_schema_path
from epochal.checkpoint.operator_metadata import StoreMetadata
from epochal.checkpoint.restart import RestartAction
from epochal.checkpoint.spark_json import parse_json
from epochal.continuous.plan.pinned_plan import is_ours, stored_shape
from epochal.errors import CheckpointError, StorageError
from epochal.files import Files, join_url
from epochal.state.files.schema_file import FamilySchema, parse_schema_file
from epochal.tools.edit.offset_targets import is_kafka
from epochal.tools.inspect.epoch_overlay import view_with_epochs
from epochal.tools.upgrade.upgrade_findings import (
    FILE,
    KAFKA,
    NUMBER,
    OTHER,
    RATE,
    RATE_MICRO_BATCH,
    OperatorFact,
    Pins,
    SourceFact,
    StoreFact,
)


def read_pins(files: Files) -> Pins:
    """Read a checkpoint's logs and schemas."""
    checkpoint = Checkpoint(files)
    plan = checkpoint.plan_restart()
    newest = checkpoint.offsets.get_latest() if plan.action is not RestartAction.FAIL else None
    commit = checkpoint.commits.get_latest() if newest is not None else None
    entry = newest[1] if newest is not None else None
    offsets = {} if entry is None else entry.by_source
    # The columns of keys are known if our engine has stored them.
    keys = {operator.operator_id: operator.keys for operator in stored_shape(files) or ()}
    operators = {
        number: replace(operator, keys=keys.get(number))
        for number, operator in read_operators(files).items()
    }
    return Pins(
        url=files.url,
        next_batch=plan.batch_id or 0,
        offset_version=1 if entry is None else entry.version,
        sources=tuple(_source(checkpoint, key, text) for key, text in offsets.items()),
        operators=operators,
        conf={} if entry is None else dict(entry.conf),
        commit_version=1 if commit is None else commit[1].version,
        is_ours=is_ours(files),
        failure=plan.reason,
        failure_condition=plan.condition or plan.reason,
        unpublished=view_with_epochs(files).unpublished,
    )


def read_operators(files: Files) -> dict[int, OperatorFact]:
    """Read the stateful operators below `state`, with their schemas."""
    operators = {}
    for number, metadata in Checkpoint(files).operators().items():
        if metadata is None:
            stores = (StoreMetadata(), *map(StoreMetadata, JOIN_STORES))
            read = {store.name: _store(files, number, store) for store in stores}
            with_schema = {name: store for name, store in read.items() if store.families}
            operators[number] = OperatorFact(number, "", with_schema)
            continue
        text = metadata.properties_json
        properties = parse_json(text, "its operator properties") if text else None
        operators[number] = OperatorFact(
            number,
            metadata.operator_name,
            {store.name: _store(files, number, store) for store in metadata.stores},
            dict(properties) if isinstance(properties, dict) else {},
        )
    return operators


def _store(files: Files, operator: int, store: StoreMetadata) -> StoreFact:
    paths = [state_schema_path(operator, store.name)]
    if store.schema_file_paths:
        # The stored paths are absolute and may be those of before a move.
        names = [path.rpartition("/")[2] for path in store.schema_file_paths]
        paths = [f"{state_schema_log_path(operator, store.name)}/{name}" for name in names]
    families: dict[str, FamilySchema] = {}
    with suppress(FileNotFoundError):
        data = files.read(paths[-1])
        source = join_url(files.url, paths[-1])
        families = {schema.name: schema for schema in parse_schema_file(data, source=source)}
    return StoreFact(store.name, families, store.num_partitions)


def _source(checkpoint: Checkpoint, key: str, offset: str | None) -> SourceFact:
    kind, places = kind_of_offset(offset)
    if kind not in (FILE, NUMBER):
        return SourceFact(key, kind, places)
    with suppress(CheckpointError, StorageError, FileNotFoundError):
        log = checkpoint.source_log(key)
        if isinstance(log, RateLog):
            return SourceFact(key, RATE)
        if isinstance(log, FileSourceLog) and (newest := log.get_latest()) is not None:
            places = frozenset(unquote(file.path.rpartition("/")[0]) for file in newest[1])
    return SourceFact(key, kind, places, shares=kind == FILE and not places)


def kind_of_offset(offset: str | None) -> tuple[str, frozenset[str]]:
    """Recognise a source by its offset; for Kafka also its topics."""
    try:
        value = json.loads(offset or "null")
    except (ValueError, RecursionError):
        return OTHER, frozenset()
    match value:
        case bool():
            return OTHER, frozenset()
        case int():
            return NUMBER, frozenset()
        case {"logOffset": int()}:
            return FILE, frozenset()
        case {"offset": int(), "timestamp": int()}:
            return RATE_MICRO_BATCH, frozenset()
        case {**topics} if is_kafka(topics):
            return KAFKA, frozenset(str(topic) for topic in topics)
    return OTHER, frozenset()
