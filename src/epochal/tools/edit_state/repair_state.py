"""Decides how to make damaged state loadable again with the least loss.

A damaged snapshot is rewritten from an older one and the deltas after it. A damaged or missing
delta makes every version from it up to the next snapshot unloadable. Then the query goes back to
the newest version that *every* store of *every* operator can still load. The logs go back with it,
so that Spark replays the batches in between.

Note: Spark before 4.2 never skips a snapshot. One bad snapshot prevents a restart even if all
deltas exist, so a bad snapshot must not stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from epochal.checkpoint.directory import Checkpoint
from epochal.errors import EditError, StateError
from epochal.files import Files
from epochal.state.files.chain import (
    Chain,
    checksum_name,
    delta_name,
    files_to_load,
    snapshot_name,
)
from epochal.state.files.merge import Rows, SourcedRecords, merge_records
from epochal.tools.edit.edit_file_log import SinkSurvey
from epochal.tools.edit.edit_plan import Change, Plan
from epochal.tools.edit.rewind import plan_rewind
from epochal.tools.edit.survey import Survey, last_committed
from epochal.tools.edit_state.edit_state import snapshot_bytes
from epochal.tools.inspect.state_listing import StoreListing
from epochal.tools.read_state.load_version import read_records
from epochal.tools.read_state.read import StoreReader
from epochal.tools.read_state.read_target import Provider, StateBatch, StateSettings


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """Which files of one store are readable, and why the others are not."""

    store: StoreListing
    deltas: frozenset[int]
    snapshots: frozenset[int]
    broken: dict[str, str]
    """The reason for each file that cannot be read."""

    def chain(self, version: int) -> Chain | None:
        """The readable files that make `version`; None if a delta is damaged or missing."""
        chain = files_to_load(version, self.snapshots, self.deltas)
        return None if chain.missing else chain

    @property
    def bad_snapshots(self) -> list[int]:
        """The snapshots that exist but cannot be read."""
        return sorted(self.store.snapshots.keys() - self.snapshots)


def newest_loadable(healths: Iterable[StoreHealth], versions: Iterable[int]) -> int | None:
    """The newest of `versions` at which every store can be loaded."""
    stores = list(healths)
    for version in sorted(versions, reverse=True):
        if all(health.chain(version) is not None for health in stores):
            return version
    return None


def plan_repair(surveyed: Survey, *, sink: SinkSurvey | None = None) -> Plan:
    """Rebuild bad snapshots, and go back as far as bad deltas require."""
    newest = last_committed(surveyed)
    settings = StateSettings.from_conf(surveyed.offsets[newest].conf, surveyed.url)
    if settings.provider is not Provider.HDFS:
        raise EditError(
            surveyed.url,
            "its state is kept by the RocksDB provider, and only RocksDB can write its snapshots. "
            "Spark 4.2 and later skips a bad snapshot "
            "(spark.sql.streaming.stateStore.autoSnapshotRepair.enabled); otherwise rewind.",
        )
    healths = list(examine(surveyed, newest, settings))
    both = surveyed.offsets.keys() & surveyed.commits.keys()
    version = newest_loadable(healths, (batch_id + 1 for batch_id in both))
    if version is None:
        reasons = "; ".join(_reasons(healths)) or "files are missing"
        raise EditError(
            surveyed.url,
            f"no version of the state can be rebuilt ({reasons}). Restore the files from a "
            f"backup, or start over on an empty checkpoint directory.",
        )
    rebuilt = [change for h in healths for change in _rebuild(surveyed, h, version, settings)]
    back = plan_rewind(surveyed, version - 1, sink=sink) if version <= newest else None
    kept = {change.path for change in rebuilt}
    changes = [c for c in (back.changes if back else ()) if c.path not in kept]
    lost = f"; batches {version} to {newest} will run again" if back else ""
    return Plan(
        command="state-repair",
        summary=f"rebuild {sum(c.after is not None for c in rebuilt)} snapshots{lost}",
        changes=(*rebuilt, *changes),
        arguments={"version": str(version)},
        warnings=(*_reasons(healths), *(back.warnings if back else ())),
        watches=surveyed.log_watches(),
        roots=back.roots if back else {},
    )


def examine(surveyed: Survey, batch_id: int, settings: StateSettings) -> Iterator[StoreHealth]:
    """Read every file of every store that a restart after `batch_id` loads."""
    batch = StateBatch(Checkpoint(surveyed.files), batch_id)
    for store in surveyed.stores_at(batch_id):
        reader = StoreReader(batch.store(store.operator, store.name))
        files = surveyed.files.at(store.path)
        broken: dict[str, str] = {}
        good: dict[str, set[int]] = {"delta": set(), "snapshot": set()}
        named = [(v, "snapshot", n) for v, n in store.snapshots.items()]
        named += [(v, "delta", n) for v, n in store.deltas.items()]
        for version, kind, name in named:
            try:
                _check(files, name, reader, settings, checksum_name(name) in store.files)
            except StateError as error:
                broken[name] = str(error)
            else:
                good[kind].add(version)
        yield StoreHealth(store, frozenset(good["delta"]), frozenset(good["snapshot"]), broken)


def _check(
    files: Files, name: str, reader: StoreReader, settings: StateSettings, has_checksum_file: bool
) -> None:
    found = _read(files, name, settings, has_checksum_file)
    reader.keys(found.puts)
    reader.values(found.puts.take(~found.records.deleted))


def _read(
    files: Files, name: str, settings: StateSettings, has_checksum_file: bool = False
) -> SourcedRecords:
    return read_records(
        files,
        name,
        settings.codec,
        row_checksums=settings.form.checksummed,
        has_checksum_file=has_checksum_file,
    )


def _rebuild(
    surveyed: Survey, health: StoreHealth, version: int, settings: StateSettings
) -> Iterator[Change]:
    """Rewrite each bad snapshot up to `version`; delete those that cannot be rebuilt."""
    for bad in health.bad_snapshots:
        if bad > version:
            continue  # the rewind deletes it with its version
        path = f"{health.store.path}/{health.store.snapshots[bad]}"
        if (checksum := checksum_name(path)) in surveyed.tree:
            yield surveyed.tree.delete(checksum, "checksum of the damaged snapshot")
        chain = health.chain(bad)
        if chain is None:
            yield surveyed.tree.delete(path, "damaged, and the files to rebuild it are missing")
            continue
        files = surveyed.files.at(health.store.path)
        rows = _rows_of(files, chain, settings)
        why = f"damaged; rebuilt from {_origin(chain)}"
        yield surveyed.tree.write(path, snapshot_bytes(rows, settings), why)


def _rows_of(files: Files, chain: Chain, settings: StateSettings) -> list[Rows]:
    base = _read(files, snapshot_name(chain.snapshot), settings) if chain.snapshot else None
    return merge_records(base, [_read(files, delta_name(v), settings) for v in chain.deltas])


def _origin(chain: Chain) -> str:
    deltas = f"deltas {chain.deltas.start} to {chain.deltas.stop - 1}"
    return f"{snapshot_name(chain.snapshot)} and {deltas}" if chain.snapshot else deltas


def _reasons(healths: Iterable[StoreHealth]) -> Iterator[str]:
    for health in healths:
        for name, reason in sorted(health.broken.items()):
            yield f"{health.store.path}/{name}: {reason}"
