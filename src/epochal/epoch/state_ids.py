"""The unique ids of state files, with checkpoint format 2: what a commit entry says of them. Pure.

The name of a file contains its id, and only the commit of an epoch says which ids are live. A task
gives a version its id when it prepares it. The manifest thereby contains the ids, so an epoch that
is finished after a crash is committed with the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from epochal.checkpoint.entries import CommitEntry, StateUniqueIds
from epochal.epoch.messages import PreparedState, by_store
from epochal.errors import EpochError
from epochal.state.files.chain import id_of_prepared


def ids_of(states: Sequence[PreparedState]) -> StateUniqueIds | None:
    """Return the ids in the names of an epoch's state files; None if the names have none.

    Spark lists the stores of a partition in the order of their names.
    """
    if not any(id_of_prepared(each.name) for each in states):
        return None
    found: dict[int, tuple[tuple[str, ...], ...]] = {}
    for operator, of_operator in groupby(sorted(states, key=by_store), lambda each: each.operator):
        partitions = {
            partition: tuple(id_of_prepared(each.name) for each in stores)
            for partition, stores in groupby(of_operator, lambda each: each.partition)
        }
        if list(partitions) != list(range(len(partitions))) or "" in sum(partitions.values(), ()):
            raise EpochError(
                f"Operator {operator} has state of the partitions {list(partitions)}, but a commit "
                f"must name the files of every partition from 0 on. This is a bug."
            )
        found[operator] = tuple(partitions.values())
    return found


def is_live(states: Sequence[PreparedState], commit: CommitEntry | None) -> bool:
    """Return whether a commit names these versions, or has no ids to name them by.

    It does not if Spark ran the epoch again after it had been decided and not committed.
    """
    if commit is None or not commit.state_unique_ids:
        return True
    return ids_of(states) == commit.state_unique_ids
