"""Finds the partition of stored keys, for every column family of a store.

A store without families is treated as one family without a name. In transformWithState the same
grouping key is in different places of the families' keys: a map has it before its own key, and an
index by time has it after the time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from epochal.state.files.partitioning import owner_path, places_of_owners, placing_columns
from epochal.state.files.rocksdb_family import FAMILY_BYTES, indexed_family
from epochal.state.rows.byte_spans import Ints, Spans, spans_of
from epochal.state.rows.murmur3 import partition_ids
from epochal.state.rows.types import StructType
from epochal.tools.read_state.read_target import StateBatch, StoreTarget


@dataclass(frozen=True, slots=True)
class PlacedFamily:
    """A column family, and which part of its keys decides their partition."""

    target: StoreTarget
    owner: tuple[int, ...] | None
    """For transformWithState: where the grouping key is."""
    placing: StructType
    """For all others: the first columns of the key, whose hash decides."""

    @property
    def is_placed(self) -> bool:
        """Whether the hash of the key decides; if not, everything is in partition 0."""
        return self.owner is not None or bool(self.placing.fields)

    @property
    def is_index(self) -> bool:
        """Whether its rows follow from those of another family."""
        return self.target.family is not None and indexed_family(self.target.family) is not None

    def keys(self, keys: Spans, source: str) -> pa.StructArray:
        """Decode stored keys, with the number of the family."""
        target = self.target
        skip = 0 if target.family is None else FAMILY_BYTES
        bare = Spans(keys.buffer, keys.starts + skip, keys.lengths - skip)
        if target.avro is not None:
            bare = spans_of([target.avro.plain_key(key, source) for key in bare])
        versions = target.settings.format.versions
        return versions.key_columns(bare, target.encoder, target.schema.key, source)

    def places(self, keys: pa.StructArray, partitions: int) -> Ints:
        """The partition of each decoded key."""
        if len(keys) == 0:
            return np.zeros(0, np.int64)
        if self.owner is not None:
            return places_of_owners(keys, self.target.schema.key, self.owner, partitions)
        columns = [keys.field(n) for n in range(len(self.placing.fields))]
        return partition_ids(columns, self.placing, partitions)


def families_in_store(batch: StateBatch, operator: int, store_name: str) -> list[PlacedFamily]:
    """Every column family of a store, or the store itself if it has none."""
    name, variables = batch.operator_name(operator), batch.variables(operator)
    if variables is None and not batch.uses_join_families(operator):
        target = batch.store(operator, store_name)
        return [PlacedFamily(target, None, placing_columns(name, store_name, target.schema.key))]
    maps = [variable.name for variable in (variables or {}).values() if variable.kind == "MapState"]
    families: list[PlacedFamily] = []
    for family, schema in batch.schemas(operator, store_name).items():
        target = batch.family(operator, family)
        if variables is None:
            placed = PlacedFamily(target, None, placing_columns(name, family, schema.key))
        else:
            placed = PlacedFamily(target, owner_path(family, maps), StructType(()))
        families.append(placed)
    return families
