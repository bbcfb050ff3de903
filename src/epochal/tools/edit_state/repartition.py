"""Decides how to distribute the state of a query over another number of partitions.

Spark fixes the number of partitions of stateful operators with the first batch, and its own offline
repartition requires the RocksDB provider. This one follows the same rules for both providers. Both
logs get a batch N+1 that equals batch N except for the number of partitions. Every
store gets version N+2 in every partition, also in empty ones, and operator metadata gets the new
number. As with Spark, directories of partitions that are no longer used stay, because a rewind
needs them.

Before any row is moved, every row is checked to be in the partition that the hash of its key
selects. If one is not, the query places its rows by something other than the stored key, and the
edit is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from epochal.checkpoint.entries import OffsetEntry
from epochal.checkpoint.layout import StoreKey
from epochal.checkpoint.restart import SHUFFLE_PARTITIONS
from epochal.errors import EditError, OptionError
from epochal.state.files.merge import Rows
from epochal.state.store.contract import StoreContent
from epochal.tools.edit.edit_file_log import SinkSurvey
from epochal.tools.edit.edit_plan import Change, Plan
from epochal.tools.edit.rewind import rewind_command
from epochal.tools.edit.survey import Survey
from epochal.tools.edit_state.edit_state import (
    EditBase,
    NextVersion,
    find_edit_base,
    plan_batch,
    require_same_families,
)
from epochal.tools.inspect.pinned_settings import is_usable
from epochal.tools.inspect.state_listing import StoreListing
from epochal.tools.read_state.placed_families import PlacedFamily, families_in_store
from epochal.tools.reporting import tracked
from epochal.wording import counted

MAX_PARTITIONS = 100_000


def plan_repartition(surveyed: Survey, partitions: int, *, sink: SinkSurvey | None = None) -> Plan:
    if not 0 < partitions <= MAX_PARTITIONS:
        raise OptionError(
            f"[STATE_REPARTITION_INVALID_PARAMETER.IS_NOT_GREATER_THAN_ZERO] the number of "
            f"partitions must be between 1 and {MAX_PARTITIONS}, not {partitions}."
        )
    base = _base(surveyed, partitions)
    current = base.settings.partitions
    if current is None:
        raise EditError(
            base.url,
            f"[MISSING_OFFSET_SEQ_METADATA] offsets/{base.batch_id} lacks {SHUFFLE_PARTITIONS}, so "
            f"the current number of partitions is unknown.",
        )
    if current == partitions:
        raise EditError(
            base.url,
            f"[SHUFFLE_PARTITIONS_ALREADY_MATCH] the query already has "
            f"{counted(partitions, 'partition')}.",
        )
    moved = _Mover(base, current, partitions)
    moved.move()
    summary = (
        f"repartition {counted(moved.rows, 'row')} of "
        f"{counted(len(surveyed.operators), 'operator')} from {current} to "
        f"{counted(partitions, 'partition')}"
    )
    return plan_batch(
        base,
        moved.version.edited({SHUFFLE_PARTITIONS: str(partitions)}, _metadata(base, partitions)),
        command="state-repartition",
        summary=summary,
        arguments={"partitions": str(partitions)},
        sink=sink,
    )


class _Mover:
    """Reads every row once and writes it to the snapshot of its new partition."""

    def __init__(self, base: EditBase, current: int, wanted: int) -> None:
        self._base, self._current, self._wanted = base, current, wanted
        self.version = NextVersion(base)
        self.rows = 0

    def move(self) -> None:
        """Move the rows of every store that is placed by its key."""
        for operator in self._base.surveyed.operators:
            for store_name in operator.store_names:
                self._move(operator.operator, store_name)

    def _move(self, number: int, store_name: str) -> None:
        families = families_in_store(self._base.batch, number, store_name)
        if not all(family.is_placed for family in families):
            return
        parts: list[list[Rows]] = [[] for _ in range(self._wanted)]
        content = self._base.settings.format.versions.empty
        highest = 0
        for store in tracked(self._base.stores(number, store_name)):
            numbers = content.families
            content = self._base.content(store)
            require_same_families(store, content, numbers)
            highest = max(highest, content.highest_family)
            self._distribute(store, content, families, parts)
        self.version.remove(number, store_name)
        for partition, moved in enumerate(parts):
            key = StoreKey(number, partition, store_name)
            self.version.write(key, content.with_rows(moved, highest))

    def _distribute(
        self,
        store: StoreListing,
        content: StoreContent,
        families: list[PlacedFamily],
        parts: list[list[Rows]],
    ) -> None:
        moved = 0
        for family in families:
            for rows in content.parts(family.target.family, store.path):
                keys = family.keys(rows.keys, rows.source)
                here = family.places(keys, self._current)
                if wrong := int((here != store.partition).sum()):
                    raise EditError(
                        rows.source,
                        f"{wrong} of {len(here)} rows are not in the partition that the hash of "
                        f"their key selects out of {self._current}. The query places them by "
                        f"something else, so they cannot be moved without it.",
                    )
                there = family.places(keys, self._wanted)
                for partition in np.unique(there).tolist():
                    parts[partition].append(rows.take(there == partition))
                moved += len(rows)
                self.rows += 0 if family.is_index else len(rows)
        if moved != len(content):
            raise EditError(
                store.path,
                f"{len(content) - moved} of {len(content)} entries belong to column families that "
                f"the schema does not have, so they cannot be moved.",
            )


def _base(surveyed: Survey, partitions: int) -> EditBase:
    """The batch that the edit follows: the newest, or the one before an abandoned repartition."""
    started, committed = surveyed.listing.offsets.latest, surveyed.listing.commits.latest
    if started is None or committed is None or started != committed + 1:
        return find_edit_base(surveyed)
    abandoned = _repartition_of(surveyed.offsets.get(committed), surveyed.offsets.get(started))
    if abandoned is None:
        return find_edit_base(surveyed)
    if abandoned != partitions:
        raise EditError(
            surveyed.url,
            f"[LAST_BATCH_ABANDONED_REPARTITION] batch {started} is an unfinished repartition to "
            f"{abandoned} partitions. Finish it with --partitions {abandoned}, or remove it with "
            f"{rewind_command(surveyed.url, committed)}.",
        )
    return find_edit_base(surveyed, batch_id=committed)


def _repartition_of(before: OffsetEntry | None, after: OffsetEntry | None) -> int | None:
    """The new number of partitions, if that is all that the batch `after` changes."""
    if before is None or after is None:
        return None
    count = after.conf.get(SHUFFLE_PARTITIONS, "")
    same = replace(
        after,
        conf={**after.conf, SHUFFLE_PARTITIONS: before.conf.get(SHUFFLE_PARTITIONS, "")},
        control_batch_info=before.control_batch_info,
    )
    is_change = count != before.conf.get(SHUFFLE_PARTITIONS)
    is_change = is_change and is_usable(SHUFFLE_PARTITIONS, count)
    return int(count) if is_change and same == before else None


def _metadata(base: EditBase, partitions: int) -> Iterator[Change]:
    """Update the operator metadata, where it exists, with the new number of partitions."""
    for operator in base.surveyed.operators:
        metadata = base.batch.operator(operator.operator)
        if metadata is not None:
            stores = tuple(replace(store, num_partitions=partitions) for store in metadata.stores)
            why = counted(partitions, "partition")
            yield base.written_metadata(replace(metadata, stores=stores), why)
