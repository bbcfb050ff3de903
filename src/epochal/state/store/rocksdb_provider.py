"""Keeps a store in the files of Spark's RocksDB provider, without a RocksDB that stays open.

The rows of a version are in memory, as with the HDFS-backed provider; only the files differ.
RocksDB itself, through `rocksdict`, is needed just to read and write snapshots.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID, uuid5

from epochal.checkpoint.restart import ROCKSDB_PROVIDER_CLASS, STATE_ENCODING, STATE_FORMAT
from epochal.errors import StateUsageError
from epochal.files import AtomicFile
from epochal.state.files.chain import is_prepared_snapshot
from epochal.state.files.rocksdb_snapshot import import_rocksdict
from epochal.state.store.conf import StateStoreConf
from epochal.state.store.ids import StateStoreId
from epochal.state.store.prepared import EncodedVersion, PreparedVersion, read_prepared
from epochal.state.store.provider import StateStoreProvider
from epochal.state.store.rocksdb_files import RocksStoreFiles
from epochal.state.store.versions import Draft, FrozenVersion

UNSAFE_ROW = "unsaferow"
_IDS = UUID("5d3c1a0e-6c52-4f0a-9b54-0d2f6c1b7e21")
"""The namespace of the unique ids that we give to versions."""


class RocksDBStateStoreProvider(StateStoreProvider):
    """Keeps a store in `N.changelog` and `N.zip` files, as Spark's RocksDB provider does."""

    files_class = RocksStoreFiles

    @classmethod
    def check(cls, store_id: StateStoreId, conf: StateStoreConf) -> None:
        """Raise unless this provider can keep state with these settings, and can run here."""
        if conf.provider_class != ROCKSDB_PROVIDER_CLASS:
            raise StateUsageError(
                str(store_id),
                f"the query keeps its state with {conf.provider_class}; this is the provider for "
                f"{ROCKSDB_PROVIDER_CLASS}.",
                "STATE_STORE_INVALID_PROVIDER",
            )
        if conf.checkpoint_format_version > 2:
            raise StateUsageError(
                str(store_id),
                f"{STATE_FORMAT} is {conf.checkpoint_format_version}; Epochal knows 1 and 2. Run "
                f"the query with Spark.",
                "STATE_STORE_CHECKPOINT_IDS_NOT_SUPPORTED",
            )
        if conf.encoding_format.lower() != UNSAFE_ROW:
            raise StateUsageError(
                str(store_id),
                f"the state's rows are encoded as {conf.encoding_format} ({STATE_ENCODING}); "
                f"Epochal reads such state but writes only {UNSAFE_ROW}. Run the query with Spark.",
                "STATE_STORE_UNSUPPORTED_OPERATION",
            )
        import_rocksdict()

    def encode_version(self, version: int, draft: Draft, attempt: str) -> EncodedVersion:
        """The file of the next version; some must be whole snapshots.

        If names contain unique ids, that of the version follows from the run and the attempt.
        """
        files = self._rocks_files
        if files.has_ids:
            unique_id = uuid5(_IDS, f"{self.provider_id} {version} {attempt}")
            files.lineage.begin(version, str(unique_id))
        if not files.needs_snapshot(version):
            return super().encode_version(version, draft, attempt)
        rows = draft.freeze()
        *shared, (name, archive) = files.encode_snapshot(version, rows.items())
        files.write_snapshot(shared)
        files.lineage.snapshots.add(version)
        return EncodedVersion(name, archive, rows, is_snapshot=True)

    def commit(
        self, version: int, draft: Draft, delta: AtomicFile, *, force_snapshot: bool
    ) -> None:
        """Publish a changelog. Refused if names contain unique ids: nothing would name this one."""
        if self._rocks_files.has_ids:
            raise StateUsageError(
                str(self.store_id),
                "a store whose files have unique ids is written by `prepare` and `publish`.",
                "STATE_STORE_UNSUPPORTED_OPERATION",
            )
        super().commit(version, draft, delta, force_snapshot=force_snapshot)

    def _load_prepared(self, prepared: PreparedVersion) -> FrozenVersion:
        if not is_prepared_snapshot(prepared.name):
            return super()._load_prepared(prepared)
        with self._lock:
            rows = self._prepared.get(prepared.name)
            if rows is None:
                files = self._rocks_files
                data = read_prepared(files.files, prepared, str(self.store_id))
                files.open_prepared(prepared, data)
                rows = self._made_of(files.read_archive(data, prepared.name))
                self._prepared[prepared.name] = rows
            return rows

    def _publish_snapshot(self, version: int, staged: Iterable[tuple[str, AtomicFile]]) -> None:
        super()._publish_snapshot(version, staged)
        self._rocks_files.lineage.snapshots.add(version)

    @property
    def _rocks_files(self) -> RocksStoreFiles:
        assert isinstance(self._files, RocksStoreFiles)
        return self._files
