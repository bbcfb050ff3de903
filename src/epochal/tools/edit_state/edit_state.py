"""Decides what an edit of state writes: always a new batch, never a changed old one.

An edit after batch N creates batch N+1: the same offsets, watermark and settings in both logs, and
version N+2 of every store of every operator. Existing files are not changed. So batch N stays
readable, `diff` and the change feed show exactly what the edit did, and undo only has to delete
files. To Spark it is a batch that read no input; the query continues with batch N+2. The log of a
file sink gets an empty entry for batch N+1.

Every store of every operator needs a file of the new version. A store that the edit does not name
keeps its state: it gets an empty delta or changelog, or a copy of its RocksDB snapshot. With unique
ids, every store gets a new one, and the commit lists them.

A store without column families has one schema file, in its partition 0, which is replaced. A store
with families has a log: a new file, which the operator metadata of the new batch names.

A row is a pair of tuples, whatever the provider: the key's columns and the value's columns. A list
of transformWithState has a list of tuples as its value. Indexes of transformWithState are neither
read nor written here: they follow from the rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from epochal.checkpoint.directory import Checkpoint
from epochal.checkpoint.entries import COMMIT_FORMAT, OFFSET_FORMAT, CommitEntry, OffsetEntry
from epochal.checkpoint.layout import (
    COMMITS,
    OFFSETS,
    StoreKey,
    operator_metadata_log_path,
    operator_metadata_path,
    parse_state_file,
    state_schema_log_path,
    state_schema_path,
)
from epochal.checkpoint.operator_metadata import OPERATOR_FORMAT, OperatorMetadata
from epochal.checkpoint.restart import NEW_QUERY_DEFAULTS, TABLE_FORMAT
from epochal.errors import EditError
from epochal.state.files.merge import Rows
from epochal.state.files.rocksdb_avro import AvroForm
from epochal.state.files.rocksdb_changelog import LineageItem
from epochal.state.files.rocksdb_family import FamilyRows, Row, RowOrList, family_prefix
from epochal.state.files.schema_file import FamilySchema, encode_schema_file
from epochal.state.rows.byte_spans import spans_of
from epochal.state.rows.column_decoder import decode_rows
from epochal.state.rows.murmur3 import partition_ids
from epochal.state.rows.types import StructType
from epochal.state.rows.unsafe_row import encode_row
from epochal.state.store.contract import RowForm, StoreContent, StoredVersion
from epochal.state.store.rocksdb_directory import RocksDirectory
from epochal.tools.edit.edit_file_log import SinkSurvey, add_sink_batches
from epochal.tools.edit.edit_plan import Change, Plan
from epochal.tools.edit.rewind import delete_state_after, rewind_command
from epochal.tools.edit.survey import Survey, empty_batches
from epochal.tools.inspect.state_listing import StoreListing
from epochal.tools.read_state.read_target import StateBatch, StateSettings, StoreTarget

NO_WAY_BACK = (
    "Older versions of this store are deleted, because they do not match the new schema. "
    "The query cannot be rewound to before this edit; the edit can only be undone."
)
WHY = "the new schema"


@dataclass(frozen=True)
class EditBase:
    """The batch that an edit follows: the newest one, committed, with state."""

    surveyed: Survey
    batch_id: int
    offsets: OffsetEntry
    commit: CommitEntry
    settings: StateSettings

    @property
    def url(self) -> str:
        return self.surveyed.url

    @property
    def version(self) -> int:
        """The version of the state that is edited."""
        return self.batch_id + 1

    @property
    def next_version(self) -> int:
        """The version that the edit writes."""
        return self.batch_id + 2

    @cached_property
    def batch(self) -> StateBatch:
        return StateBatch(Checkpoint(self.surveyed.files), self.batch_id)

    def stores(self, operator: int | None = None, name: str | None = None) -> list[StoreListing]:
        """The stores of the batch: all, those of an operator, or those of them with one name."""
        return [
            store
            for store in self.surveyed.stores_at(self.batch_id)
            if operator in (None, store.operator) and name in (None, store.name)
        ]

    def content(self, store: StoreListing) -> StoreContent:
        """Everything in the version of a store that is edited."""
        files, unique_id = self.surveyed.files, self.surveyed.unique_id(store, self.batch_id)
        stored = StoredVersion(files.at(store.path), self.version, unique_id, self.settings)
        return self.settings.format.versions.read_content(stored)

    def written_metadata(self, metadata: OperatorMetadata, why: str) -> Change:
        path = operator_metadata_path(metadata.operator_id)
        if metadata.version == 2:
            path = f"{operator_metadata_log_path(metadata.operator_id)}/{self.batch_id + 1}"
        return self.surveyed.tree.write(path, OPERATOR_FORMAT.serialize(metadata), why)


@dataclass(frozen=True, slots=True)
class EditedBatch:
    """How the new batch differs from a copy of the one before."""

    files: Mapping[str, bytes]
    """State files by path."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings that differ from the batch before."""
    commit: CommitEntry | None = None
    others: tuple[Change, ...] = ()
    """Changes to files that do not belong to one version: metadata, schemas, deletions."""
    emptied: tuple[str, ...] = ()
    """Directories that the changes empty."""


def find_edit_base(surveyed: Survey, *, batch_id: int | None = None) -> EditBase:
    """The newest batch, if an edit may follow it; otherwise an EditError with the reason.

    Pass `batch_id` to use an older batch, if it is known that later ones may be replaced.
    """
    url = surveyed.url
    started = surveyed.listing.offsets.latest if batch_id is None else batch_id
    committed = surveyed.listing.commits.latest
    if started is None:
        raise EditError(url, "[NO_BATCH_FOUND] the offset log is empty: there is no state to edit.")
    if committed is None:
        raise EditError(url, "[NO_COMMITTED_BATCH] no batch is committed yet: run the query first.")
    if started != committed:
        raise EditError(
            url,
            f"[LAST_BATCH_FAILED] batch {started} was started, but the newest committed batch is "
            f"{committed}. Start the query so that it finishes, or remove the batch with "
            f"{rewind_command(url, committed)}. Then edit.",
        )
    for log in (surveyed.listing.offsets, surveyed.listing.commits):
        if started in log.broken:
            raise EditError(url, f"{log.path}/{started} cannot be read: {log.broken[started]}")
    if not surveyed.stores:
        raise EditError(url, "the query keeps no state.")
    entry = surveyed.offsets[started]
    settings = StateSettings.from_conf(entry.conf, url)
    return EditBase(surveyed, started, entry, surveyed.commits[started], settings)


def older_files(base: EditBase, stores: Iterable[StoreListing], why: str) -> Iterator[Change]:
    """Delete every version that stores have, including checksums and RocksDB's shared files."""
    tree = base.surveyed.tree
    for store in stores:
        for name in sorted(store.files):
            if parse_state_file(name) is not None and not name.startswith("."):
                yield tree.delete(f"{store.path}/{name}", why)
        for folder in ("SSTs", "logs"):
            for path in tree.under(f"{store.path}/{folder}"):
                if not path.rpartition("/")[2].startswith("."):
                    yield tree.delete(path, why)


def plan_batch(
    base: EditBase,
    edited: EditedBatch,
    *,
    command: str,
    summary: str,
    arguments: Mapping[str, str],
    sink: SinkSurvey | None,
    warnings: tuple[str, ...] = (),
    details: tuple[str, ...] = (),
) -> Plan:
    """The edit as file changes: state, then offsets, then the commit, then the sink's log.

    `summary` says what the edit does; the number of the batch is added.
    """
    tree = base.surveyed.tree
    batch_id = base.batch_id + 1
    why = f"state of batch {batch_id}"
    written = [tree.write(path, data, why) for path, data in edited.files.items()]
    touched = {change.path for change in (*written, *edited.others)}
    # Files left by a failed attempt could be mistaken for the new version, or hide it. Delete them.
    leftovers = [
        change
        for change in delete_state_after(base.surveyed, base.version)
        if change.path not in touched
    ]
    offsets = replace(base.offsets, conf={**base.offsets.conf, **edited.conf}, extra={})
    commit = replace(edited.commit or base.commit, extra={})
    logs = [
        tree.write(f"{OFFSETS}/{batch_id}", OFFSET_FORMAT.serialize(offsets), f"batch {batch_id}"),
        tree.write(f"{COMMITS}/{batch_id}", COMMIT_FORMAT.serialize(commit), f"batch {batch_id}"),
    ]
    plan = Plan(
        command=command,
        summary=f"{summary}, as batch {batch_id}",
        changes=(*leftovers, *written, *edited.others, *logs),
        arguments=arguments,
        warnings=warnings,
        details=details,
        watches=base.surveyed.log_watches(),
        emptied=edited.emptied,
    )
    return add_sink_batches(plan, sink, range(batch_id, batch_id + 1))


class NextVersion:
    """The version after `base`. It starts as a copy, of which an edit replaces some stores."""

    def __init__(self, base: EditBase) -> None:
        self._base = base
        carried = empty_batches(base.surveyed, base.batch_id, 1, _new_id)
        by_folder = {change.path.rpartition("/")[0]: change for change in carried.changes}
        self._carried: dict[StoreKey, Change] = {
            store.key: by_folder[store.path] for store in base.stores()
        }
        self._ids = carried.commits[0].store_ids()
        self._files: dict[str, bytes] = {}

    def remove(self, operator: int, store: str | None = None) -> None:
        """Write no files for the stores of an operator, or for those with one name."""
        for key in [*self._carried, *self._ids]:
            if key.operator == operator and store in (None, key.store):
                self._carried.pop(key, None)
                self._ids.pop(key, None)

    def write(self, key: StoreKey, content: StoreContent) -> None:
        """Give a store exactly this content."""
        base = self._base
        table_format = int(base.offsets.conf.get(TABLE_FORMAT, NEW_QUERY_DEFAULTS[TABLE_FORMAT]))
        self._carried.pop(key, None)
        for name, data in content.encode(self._item(key), base.settings, table_format).items():
            self._files[f"{key.path}/{name}"] = data

    def write_rows(
        self, key: StoreKey, schema: FamilySchema, rows: Iterable[tuple[Row, Row]]
    ) -> None:
        """Give a store without column families exactly these rows."""
        empty = self._base.settings.format.versions.empty
        form = form_of(self._base, FamilyRows(schema), empty, None, key.path)
        keys, values = [], []
        for key_row, value in rows:
            keys.append(form.key(key_row))
            values.append(form.encode_value(keys[-1], value))
        self.write(key, empty.with_rows([Rows(spans_of(keys), spans_of(values), key.path)]))

    def change(
        self, key: StoreKey, content: StoreContent, changes: Iterable[tuple[bytes, bytes | None]]
    ) -> None:
        """Put and delete records of a store with this content; values are complete."""
        base, item, lineage = self._base, self._item(key), None
        if item.unique_id:
            before = LineageItem(base.version, base.commit.state_id(*key))
            rocks = RocksDirectory(base.surveyed.files.at(key.path), base.settings)
            earlier = () if before in rocks.snapshots else rocks.changelog(before).lineage
            lineage = (*earlier, before)
        self._carried.pop(key, None)
        name, data = content.encode_changes(changes, item, lineage, base.settings)
        self._files[f"{key.path}/{name}"] = data

    def edited(
        self,
        conf: Mapping[str, str] | None = None,
        others: Iterable[Change] = (),
        emptied: tuple[str, ...] = (),
    ) -> EditedBatch:
        """The new batch, with settings that differ and further changes."""
        changes = (*self._carried.values(), *others)
        commit = self._base.commit.with_store_ids(dict(sorted(self._ids.items())))
        return EditedBatch(self._files, conf or {}, commit, changes, emptied)

    def _item(self, key: StoreKey) -> LineageItem:
        if not self._base.commit.state_unique_ids:
            return LineageItem(self._base.next_version, "")
        return LineageItem(self._base.next_version, self._ids.setdefault(key, _new_id()))


def _new_id() -> str:
    return str(uuid.uuid4())


def new_schema(base: EditBase, schema: FamilySchema, target: StoreTarget) -> Iterator[Change]:
    """Record the new schema of a store, or of one of its column families.

    Without families, older versions of the store cannot be read with it, and are deleted.
    """
    operator, store = target.operator_id, target.store_name
    if target.family is not None:
        families = {**base.batch.schemas(operator, store), target.family: schema}
        yield from new_families(base, operator, store, list(families.values()))
        return
    path = state_schema_path(operator, store)
    yield base.surveyed.tree.write(path, encode_schema_file([schema]), WHY)
    yield from older_files(base, base.stores(operator, store), "written for the old schema")


def new_families(
    base: EditBase, operator: int, store: str, families: list[FamilySchema]
) -> Iterator[Change]:
    metadata = base.batch.operator(operator)
    if metadata is None:
        raise EditError(base.url, f"operator {operator} has no metadata that names its schemas.")
    name = f"{base.batch_id + 1}_{uuid.uuid4()}"
    path = f"{state_schema_log_path(operator, store)}/{name}"
    yield base.surveyed.tree.write(path, encode_schema_file(families, version=3), WHY)
    # Spark reads the path as it stands here, so the new file is named like the one before it.
    stores = tuple(
        replace(
            recorded,
            schema_file_paths=(f"{recorded.schema_file_paths[-1].rpartition('/')[0]}/{name}",),
        )
        if recorded.name == store
        else recorded
        for recorded in metadata.stores
    )
    yield base.written_metadata(replace(metadata, stores=stores), WHY)


def avro_forms(batch: StateBatch, operator: int) -> dict[str, AvroForm]:
    """Those families of an operator whose rows are stored as Avro."""
    targets = [batch.family(operator, name) for name in batch.schemas(operator)]
    return {one.family: one.avro for one in targets if one.family and one.avro is not None}


def require_same_families(
    store: StoreListing, content: StoreContent, numbers: Mapping[str, int]
) -> None:
    """Raise EditError if a partition numbers its families otherwise than another one."""
    if numbers and dict(content.families) != dict(numbers):
        raise EditError(
            store.path,
            f"its column families are numbered {dict(content.families)}, but those of another "
            f"partition {dict(numbers)}. Rows cannot be moved between them.",
        )


def rows_of_target(target: StoreTarget) -> FamilyRows:
    name = target.family or target.store_name
    schema = replace(target.schema, name=name, encoder=target.encoder)
    return FamilyRows(schema, target.has_lists, target.avro)


def form_of(
    base: EditBase, rows: FamilyRows, content: StoreContent, family: str | None, source: str
) -> RowForm:
    """How single rows of a store, or of one of its families, are encoded in its content."""
    settings = base.settings
    start = b"" if family is None else family_prefix(content.families[family])
    return settings.format.versions.row_form(start, rows, settings.form, source)


def partitions_of(keys: Sequence[Row], schema: StructType, count: int) -> list[int]:
    if not schema.fields or not keys:
        return [0] * len(keys)
    encoded = spans_of([encode_row(key, schema) for key in keys])
    columns = decode_rows(encoded, schema, source="new keys").flatten()
    return [int(partition) for partition in partition_ids(columns, schema, count)]


def read_rows(
    base: EditBase, target: StoreTarget, store: StoreListing
) -> Iterator[tuple[Row, RowOrList]]:
    content = base.content(store)
    for rows in content.parts(target.family, store.path):
        form = form_of(base, rows_of_target(target), content, target.family, rows.source)
        for key, value in zip(rows.keys, rows.values, strict=True):
            yield form.decode_key(key), form.decode_value(key, value)
