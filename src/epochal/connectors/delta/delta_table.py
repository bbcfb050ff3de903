"""The calls to Delta's library: load, create and commit. It decides nothing.

Note: a handle does not see its own commits. `refresh` is needed after each of them, or the next one
conflicts with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from epochal.connectors.delta.delta_rules import DataFile, TableShape, in_microseconds, schema_json
from epochal.connectors.tables.compaction import LiveFile
from epochal.connectors.tables.table_epochs import EpochNote, WriteMode
from epochal.connectors.tables.table_maintenance import CommitRefusedError
from epochal.errors import OptionError, StorageError, TableMismatchError
from epochal.files import Files, join_url, open_files, scheme_of

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties

LOG = "_delta_log"
NOTE_KEY = "epochal"
"""Under this key a commit of the table says which epoch it is."""
HISTORY_VERSIONS = 1000
RELOAD_VERSIONS = 100
"""A loaded table keeps the log entries that it was loaded with and all later ones, and reads them
again whenever it advances. Loading it anew starts from the newest checkpoint of the log."""
SCHEMES = {"": "", "file": "", "s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "gcs": "gs"}
SCHEMES |= {"az": "az", "azure": "az", "abfs": "abfs", "abfss": "abfss"}
STORAGE = {
    "allow_http": "true",  # for endpoints given as http://; the clouds' own use https
    "connect_timeout": "10s",
    "timeout": "600s",
    "max_retries": "6",
    "retry_timeout": "60s",
}
"""As `epochal.files` sets them. The rest comes from the environment, as there."""
_COLOUR = re.compile(r"\x1b\[\d*m")


class TableGoneError(CommitRefusedError):
    """The table does not exist any more."""

    def __init__(self) -> None:
        super().__init__("the table does not exist any more")


def import_deltalake() -> Any:
    """Return the library; OptionError if it is not installed."""
    try:
        import deltalake
    except ImportError:
        raise OptionError(
            "delta: tables need the package deltalake, which is not installed. Run "
            "`pip install 'epochal[delta]'`."
        ) from None
    return deltalake


class TableHandle:
    """A Delta table at one of its versions. Not safe to use from several threads."""

    def __init__(self, files: Files) -> None:
        self.url, self._files = files.url, files
        self._deltalake = import_deltalake()
        scheme = scheme_of(files.url)
        if scheme not in SCHEMES:
            raise OptionError(
                f"delta: a table cannot be at {files.url}. Use a local path, or a URL of S3, "
                f"Google Cloud Storage or Azure."
            )
        self._storage = STORAGE if SCHEMES[scheme] else None
        rest = files.url.partition(":")[2]
        self._uri = f"{SCHEMES[scheme]}:{rest}" if SCHEMES[scheme] else files.url
        # Both take longer than the commit itself once the table is large: see `DeltaMaintained`.
        self._hooks: PostCommitHookProperties = self._deltalake.PostCommitHookProperties(
            create_checkpoint=False, cleanup_expired_logs=False
        )
        self._loaded_version = 0
        self._table: DeltaTable | None = None

    def load(self) -> bool:
        """Load the newest version; False if there is no table."""
        with self._translated():
            if not self._deltalake.DeltaTable.is_deltatable(self._uri, self._storage):
                self._table = None
                return False
            self._table = self._deltalake.DeltaTable(self._uri, storage_options=self._storage)
            self._loaded_version = self.version()
            return True

    def refresh(self) -> None:
        """Advance to the newest version; TableGoneError if the table was deleted."""
        if self._table is not None and self.version() - self._loaded_version >= RELOAD_VERSIONS:
            self.load()
        with self._translated():
            self._loaded.update_incremental()
            # The library does not notice that a log is gone, and would begin a new one in the
            # middle. The file of the newest version always exists.
            if self._files.info(f"{LOG}/{self._loaded.version():020d}.json") is None:
                raise TableGoneError

    def create(self, schema: Mapping[str, Any], partition_by: Sequence[str]) -> None:
        """Create the table, unless another writer was faster, and load it."""
        with self._translated():
            self._deltalake.DeltaTable.create(
                self._uri,
                schema=self._deltalake.Schema.from_json(json.dumps(schema)),
                mode="ignore",
                partition_by=list(partition_by),
                storage_options=self._storage,
            )
        self.load()

    def add_columns(self, fields: Sequence[Mapping[str, Any]]) -> None:
        """Add columns, in a commit of their own, and load the result."""
        with self._translated():
            field_of = self._deltalake.Field.from_json
            self._loaded.alter.add_columns(
                [field_of(json.dumps(field)) for field in fields],
                post_commithook_properties=self._hooks,
            )
        self.load()

    def version(self) -> int:
        return int(self._loaded.version())

    def shape(self) -> TableShape:
        """Return what the table's log says about it."""
        metadata, protocol = self._loaded.metadata(), self._loaded.protocol()
        return TableShape(
            str(metadata.id),
            tuple(json.loads(self._loaded.schema().to_json())["fields"]),
            tuple(metadata.partition_columns),
            dict(metadata.configuration),
            tuple(protocol.writer_features or ()),
        )

    def marker(self, application: str) -> int | None:
        """Return the number in the newest `txn` action of an application."""
        with self._translated():
            return self._loaded.transaction_version(application)

    def token(self, query_id: str, epoch: int) -> str:
        """Return the fingerprint that was committed with an epoch; empty if it is not found."""
        with self._translated():
            for commit in self._loaded.history(HISTORY_VERSIONS):
                note = commit.get(NOTE_KEY)
                if not isinstance(note, dict):
                    continue
                if (note.get("query"), note.get("epoch")) == (query_id, epoch):
                    return str(note.get("token", ""))
        return ""

    def write(
        self,
        mode: WriteMode,
        files: Sequence[DataFile],
        note: EpochNote,
        partition_by: Sequence[str],
    ) -> None:
        """Commit files and the marker, beside the table's files or instead of them.

        CommitRefusedError if the marker has moved since `refresh`; to replace files, if anything
        has: an overwrite of an old version would keep what was added since.
        """
        retries = None if mode is WriteMode.APPEND else 0
        added = [self._added(file) for file in files]
        self._commit(added, mode.value, partition_by, self._properties(note, retries))

    def merge(self, rows: pa.Table, keys: Sequence[str], note: EpochNote) -> None:
        """Replace rows of the same keys and insert others.

        CommitRefusedError if the table has changed since `refresh`.
        """
        # The library reads `a IS NOT DISTINCT FROM b AND c` as `a IS NOT DISTINCT FROM (b AND c)`.
        same = " AND ".join(f"(t.`{key}` IS NOT DISTINCT FROM s.`{key}`)" for key in keys)
        with self._translated():
            self._loaded.merge(
                rows,
                same,
                source_alias="s",
                target_alias="t",
                commit_properties=self._properties(note, 0),
                post_commithook_properties=self._hooks,
            ).when_matched_update_all().when_not_matched_insert_all().execute()

    def mark(self, note: EpochNote) -> None:
        """Commit the marker alone; CommitRefusedError if the table has changed."""
        self._commit([], "append", self.shape().partition_by, self._properties(note, 0))

    def known_files(self) -> list[str]:
        """Return the paths of the table's files, and of those that it keeps for old readers."""
        with self._translated():
            removed = self._loaded.vacuum(
                retention_hours=0, dry_run=True, enforce_retention_duration=False
            )
            return [*self._loaded.file_uris(), *removed]

    def live_files(self) -> list[LiveFile]:
        """Return the files of this version. The log escapes their paths, we do not."""
        with self._translated():
            actions: Any = pa.table(self._loaded.get_add_actions(flatten=True))
        columns = self._loaded.metadata().partition_columns
        sizes = actions.column("size_bytes").to_pylist()
        values = [actions.column(f"partition.{name}").to_pylist() for name in columns]
        keys = zip(*values, strict=True) if columns else [()] * len(sizes)
        partitions = [tuple(zip(columns, map(_text, key), strict=True)) for key in keys]
        paths = map(unquote, actions.column("path").to_pylist())
        return list(map(LiveFile, paths, sizes, partitions))

    def replace_files(
        self, old: Sequence[LiveFile], new: DataFile, application: str, number: int
    ) -> None:
        """Commit one file instead of several with the same rows, and a marker.

        CommitRefusedError if the table has changed since `refresh`.
        """
        remove = self._deltalake.transaction.RemoveAction
        actions = [self._added(new, data_change=False)]
        actions += [
            remove(file.path, False, new.modified_ms, file.size, dict(file.partition))
            for file in old
        ]
        columns = [name for name, _ in old[0].partition]
        self._commit(actions, "append", columns, self._marking(application, number))

    def take_over(self, application: str, number: int) -> None:
        """Commit a marker alone; CommitRefusedError if the table has changed since `refresh`."""
        columns = self.shape().partition_by
        self._commit([], "append", columns, self._marking(application, number))

    def create_checkpoint(self) -> None:
        """Write a checkpoint of the log at this version."""
        with self._translated():
            self._loaded.create_checkpoint()

    def clean_log(self) -> None:
        """Remove log files that are older than the table wants to keep them."""
        with self._translated():
            self._loaded.cleanup_metadata()

    @property
    def _loaded(self) -> DeltaTable:
        assert self._table is not None, "load the table first"
        return self._table

    def _commit(
        self,
        actions: list[Any],
        mode: str,
        partition_by: Sequence[str],
        properties: CommitProperties,
    ) -> None:
        with self._translated():
            self._loaded.create_write_transaction(
                actions,
                mode,
                self._loaded.schema(),
                partition_by=list(partition_by),
                commit_properties=properties,
                post_commithook_properties=self._hooks,
            )

    def _added(self, file: DataFile, *, data_change: bool = True) -> Any:
        return self._deltalake.transaction.AddAction(
            file.path, file.size, file.partition, file.modified_ms, data_change, file.stats
        )

    def _properties(self, note: EpochNote, retries: int | None) -> CommitProperties:
        where = {"query": note.query_id, "epoch": note.epoch}
        what = where | {"attempt": note.attempt, "token": note.token}
        return self._marking(note.query_id, note.epoch, retries, {NOTE_KEY: what})

    def _marking(
        self, application: str, number: int, retries: int | None = 0, note: Any = None
    ) -> CommitProperties:
        properties: CommitProperties = self._deltalake.CommitProperties(
            custom_metadata=note,
            max_commit_retries=retries,
            app_transactions=[self._deltalake.Transaction(application, number)],
        )
        return properties

    @contextmanager
    def _translated(self) -> Iterator[None]:
        errors = self._deltalake.exceptions
        try:
            yield
        except errors.CommitFailedError as error:
            raise CommitRefusedError(_reason(error)) from error
        except errors.TableNotFoundError as error:
            raise TableGoneError from error
        except (errors.DeltaError, OSError) as error:
            raise StorageError(join_url(self.url, LOG), _reason(error)) from error


def check_merge(table: str, schema: pa.Schema, keys: Sequence[str]) -> None:
    """Merge no rows into a table that is not kept; TableMismatchError if the library cannot.

    A merge is run after its epoch was decided, and would then fail at every restart.
    """
    with TemporaryDirectory() as folder:
        handle = TableHandle(open_files(folder))
        handle.create(schema_json(schema), ())
        try:
            handle.merge(in_microseconds(schema.empty_table()), keys, EpochNote("", 0, 0, ""))
        except StorageError as error:
            reason = (
                f"Delta's library cannot merge by the columns {', '.join(keys)} "
                f"({error.__cause__}). Rename columns whose names have a backtick."
            )
            raise TableMismatchError(table, (reason,)) from error


def _reason(error: BaseException) -> str:
    """Return the library's message, which is a coloured tree of causes, as one line."""
    lines = [_COLOUR.sub("", line).strip(" ↳") for line in str(error).strip().splitlines()]
    return ": ".join(line for line in lines if line)[:500]


def _text(value: Any) -> str | None:
    """Return a partition value as the log has it."""
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
