"""Finds out whether the state after a batch can be loaded: reads the files that make that version.

`verify` judges the version that a restart loads now. An edit that goes back must know the same of
an older batch, and must not count what is wrong with later versions. Every file is read once, even
if the versions of several batches need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from epochal.checkpoint.metadata_log import parse_batch_id
from epochal.errors import StateError, StorageError
from epochal.state.store.contract import FileSettings, StoredVersion
from epochal.state.store.store_format import DATABASE_FORMAT
from epochal.tools.inspect.listing import CheckpointListing
from epochal.tools.inspect.state_listing import OperatorListing, StoreListing, operators_of
from epochal.tools.verify.check_content import ContentSettings, no_tick
from epochal.tools.verify.check_logs import operator_gap_rules
from epochal.tools.verify.check_operators import (
    OperatorFacts,
    content_check,
    content_settings,
    is_keyed,
    read_operator_facts,
)
from epochal.tools.verify.check_state import StateFacts, operator_rules
from epochal.tools.verify.findings import Depth, Finding, Severity


class LoadCheck:
    """Checks the state of a checkpoint batch by batch."""

    def __init__(self, listing: CheckpointListing) -> None:
        self._listing = listing
        self._read: dict[str, list[Finding]] = {}
        self._tables: dict[str, Finding | int | None] = {}

    def problems(self, batch_id: int) -> Iterator[Finding]:
        """Yield what keeps the state after a committed batch from being loaded as it was."""
        if self._operators and batch_id in self._listing.commits.entries:
            for finding in self._findings(batch_id):
                if finding.severity is Severity.ERROR:
                    yield finding

    def _findings(self, batch_id: int) -> Iterator[Finding]:
        commit = self._listing.commits.entries[batch_id]
        facts = StateFacts(
            restart_version=batch_id + 1,
            newest_version=None,
            from_the_start=False,
            partitions=self._listing.partitions_at(batch_id),
            unique_ids=commit.state_unique_ids,
        )
        yield from operator_gap_rules(self._listing, commit)
        settings, unfit = content_settings(self._listing, Depth.NORMAL, batch_id)
        yield from unfit
        for operator, own in self._operators:
            for finding in own.findings:
                written = parse_batch_id(finding.path.rpartition("/")[2].partition("_")[0])
                # What a later batch wrote is gone after going back to this one.
                if finding.code in _NEEDED and (written is None or written <= batch_id):
                    yield finding
            yield from operator_rules(operator, facts, is_keyed=is_keyed(own))
            if settings is None:
                continue
            check = content_check(
                self._listing, operator, own, facts, settings, no_tick, self._tables
            )
            for store in operator.stores:
                if facts.partitions is not None and store.partition >= facts.partitions:
                    continue
                if unique_id := facts.unique_id(operator, store):
                    names = self._lineage(store, batch_id + 1, unique_id, settings)
                else:
                    names = chain_files(store, batch_id + 1)
                for name in names:  # each on its own, so that its findings can be kept
                    path = f"{store.path}/{name}"
                    if path not in self._read:
                        self._read[path] = list(check([only(store, name)], False))
                    yield from self._read[path]

    def _lineage(
        self, store: StoreListing, version: int, unique_id: str, settings: ContentSettings
    ) -> list[str]:
        """The names of the files that make a version, if its commit names a unique id."""
        stored = StoredVersion(
            self._listing.files.at(store.path), version, unique_id, FileSettings(settings.codec)
        )
        try:
            return DATABASE_FORMAT.versions.file_names(stored, store.files)
        except (StateError, StorageError):
            # The file that the commit names tells what is wrong, if it can be read at all.
            names = (f"{version}_{unique_id}.{kind}" for kind in ("zip", "changelog"))
            return [name for name in names if name in store.files]

    @cached_property
    def _operators(self) -> list[tuple[OperatorListing, OperatorFacts]]:
        listing = self._listing
        return [
            (each, read_operator_facts(listing, each)) for each in operators_of(listing.directories)
        ]


_NEEDED = frozenset(
    {"STATE_SCHEMA_MISSING", "STATE_SCHEMA_UNREADABLE", "OPERATOR_METADATA_MISSING"}
)


def chain_files(store: StoreListing, version: int) -> list[str]:
    """The names of the files that make a version, without unique ids in them."""
    chain = store.chain(version)
    if store.format.is_database:
        names = [*store.zips.get(chain.snapshot, ())]
        return names + [name for each in chain.deltas for name in store.changelogs.get(each, ())]
    names = [store.snapshots[chain.snapshot]] if chain.snapshot else []
    return names + [store.deltas[each] for each in chain.deltas if each in store.deltas]


def only(store: StoreListing, name: str) -> StoreListing:
    """The store as if `name` were its only state file."""

    def one(files: Mapping[int, str]) -> dict[int, str]:
        return {version: each for version, each in files.items() if each == name}

    def some(files: Mapping[int, list[str]]) -> dict[int, list[str]]:
        return {version: [name] for version, names in files.items() if name in names}

    return replace(
        store,
        deltas=one(store.deltas),
        snapshots=one(store.snapshots),
        changelogs=some(store.changelogs),
        zips=some(store.zips),
    )
