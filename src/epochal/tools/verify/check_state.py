"""Checks the names of state files: versions, chains, partitions, leftovers. Pure.

Version N of a store consists of the newest snapshot at or below N and every delta after it.

Note: some files may be missing without harm. Everything below the oldest snapshot may be, since
Spark's cleanup removes it file by file and leaves single deltas behind. An operator without a key
to partition by has only partition 0. A partition that no longer exists after a repartition needs
no files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from epochal.checkpoint.metadata_log import listed, missing_runs, runs_of
from epochal.tools.inspect.state_listing import OperatorListing, StoreListing
from epochal.tools.verify.findings import Finding, finding


@dataclass(frozen=True, slots=True)
class StateFacts:
    restart_version: int
    newest_version: int | None
    """The newest version that the logs allow: one above the newest batch; None without offsets."""
    from_the_start: bool
    """Whether the logs still contain batch 0, so that no version has been cleaned up."""
    partitions: int | None = None
    """The number of partitions of the batch that a restart runs or continues; None if unknown."""
    counts: Mapping[int, int] = field(default_factory=dict)
    """The number of partitions at each version that the logs still cover."""
    has_epoch_files: bool = False
    """Whether a continuous query has run here: it publishes some versions only, as snapshots."""
    unique_ids: Mapping[int, tuple[tuple[str, ...], ...]] | None = None
    """With checkpoint format 2: the unique ids of the files of the version that a restart loads, by
    operator, then partition, then store."""

    def unique_id(self, operator: OperatorListing, store: StoreListing) -> str:
        """The unique id of the store's files that a restart loads; empty if no commit names one."""
        partitions = (self.unique_ids or {}).get(operator.operator, ())
        position = operator.store_names.index(store.name)
        if store.partition >= len(partitions) or position >= len(partitions[store.partition]):
            return ""
        return partitions[store.partition][position]


def operator_rules(
    operator: OperatorListing, facts: StateFacts, *, is_keyed: bool | None
) -> Iterator[Finding]:
    """Check the files of one operator.

    `is_keyed`: whether its key has columns to partition by; None if there is no schema to tell.
    """
    count = facts.partitions
    if count is None:
        count = max(operator.partitions, default=0) + 1
    if facts.restart_version > 0:
        yield from _partition_rules(operator, count, is_keyed)
    for store in operator.stores:
        for name in store.strays:
            code = "STATE_STRAY_SNAPSHOT" if name.endswith(".snapshot") else "STATE_STRAY_FILE"
            yield finding(code, f"{store.path}/{name}", "the part before the dot is not a version")
        for name in store.checksums:
            if (main := name.removesuffix(".crc")) not in store.files:
                yield finding("CHECKSUM_ORPHAN", f"{store.path}/{name}", f"{main} does not exist")
        if facts.unique_ids is not None and store.format.is_database:
            if store.partition < count and facts.restart_version > 0:
                yield from _id_rules(store, facts, facts.unique_id(operator, store))
            continue
        if store.partition < count and facts.restart_version > 0:
            yield from _chain_rules(store, facts)
        if facts.newest_version is not None:
            yield from _ahead_rules(store, facts.newest_version)


def _partition_rules(
    operator: OperatorListing, count: int, is_keyed: bool | None
) -> Iterator[Finding]:
    there = set(operator.partitions)
    single = there <= {0}
    last = 0 if is_keyed is False or (is_keyed is None and single) else count - 1
    for run in missing_runs(there, 0, last):
        yield finding(
            "STATE_PARTITION_MISSING",
            f"{operator.path}/{run.start}",
            f"partition {listed([run])} of {count} has no directory",
        )
    names = operator.store_names
    by_partition: dict[int, set[str]] = {}
    for store in operator.stores:
        by_partition.setdefault(store.partition, set()).add(store.name)
    for partition, found in by_partition.items():
        for name in names:
            if name not in found and partition < count and len(names) > 1:
                yield finding(
                    "STATE_STORE_MISSING",
                    f"{operator.path}/{partition}/{name}",
                    f"partition {partition} has {len(found)} of {len(names)} stores",
                )


def _chain_rules(store: StoreListing, facts: StateFacts) -> Iterator[Finding]:
    wanted = facts.restart_version
    versions = set(store.versions)
    newest = max(versions, default=0)
    if newest < wanted:
        yield finding(
            "STATE_BEHIND", store.path, f"its newest version is {newest}, a restart needs {wanted}"
        )
        return
    chain, suffix = store.chain(wanted), store.delta_suffix
    if chain.missing:
        yield finding(
            "STATE_CHAIN_BROKEN",
            f"{store.path}/{chain.first_missing}.{suffix}",
            f"version {wanted} needs {listed(list(chain.missing))}.{suffix} on top of "
            + (f"snapshot {chain.snapshot}" if chain.snapshot else "the empty store"),
        )
    if not facts.has_epoch_files:
        yield from _hole_rules(store, chain.snapshot, versions, facts)


def _hole_rules(
    store: StoreListing, base: int, versions: set[int], facts: StateFacts
) -> Iterator[Finding]:
    """Versions below the restart's base that are gone although older ones can be loaded."""
    lowest, suffix = min(versions), store.delta_suffix
    # While a repartition had fewer partitions, this one did not exist and got no versions.
    absent = (each for each, count in facts.counts.items() if store.partition >= count)
    holes = missing_runs(versions.union(absent), lowest, base - 1)
    if holes and not store.chain(holes[0].start - 1).missing:
        yield finding(
            "STATE_HOLE",
            f"{store.path}/{holes[0].start}.{suffix}",
            f"version {listed(holes)} cannot be loaded, versions before it can",
        )
    elif lowest < base and store.chain(lowest).missing and facts.from_the_start:
        yield finding(
            "STATE_HOLE",
            f"{store.path}/{lowest - 1}.{suffix}",
            f"version {lowest} cannot be loaded: nothing is there below it",
        )


def _ahead_rules(store: StoreListing, newest: int) -> Iterator[Finding]:
    steps = sorted(each for each in store.deltas.keys() | store.changelogs.keys() if each > newest)
    if steps:
        name = store.deltas.get(steps[0]) or store.changelogs[steps[0]][0]
        yield finding(
            "STATE_AHEAD",
            f"{store.path}/{name}",
            f"version {listed(runs_of(steps))} is there, the logs allow {newest} at most",
        )
    for version in store.bases:
        if version > newest:
            name = store.snapshots.get(version) or store.zips[version][0]
            yield finding(
                "STATE_SNAPSHOT_AHEAD",
                f"{store.path}/{name}",
                f"a snapshot of version {version}, the logs allow {newest} at most",
            )


def _id_rules(store: StoreListing, facts: StateFacts, unique_id: str) -> Iterator[Finding]:
    stem = f"{facts.restart_version}_{unique_id}"
    if unique_id and not {f"{stem}.zip", f"{stem}.changelog"} & store.files:
        yield finding(
            "ROCKSDB_ID_MISSING",
            f"{store.path}/{stem}",
            f"the commit of batch {facts.restart_version - 1} names {unique_id}; neither its zip "
            f"nor its changelog is there",
        )
