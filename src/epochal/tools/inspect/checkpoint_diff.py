"""Compares two batches or two checkpoints. Pure: takes views and returns differences.

The content of offsets is compared: a Kafka offset differs per topic and partition, not as one text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from epochal.tools.inspect.view_models import BatchView, CheckpointView, OperatorView


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that differs; None where a side lacks it."""

    path: str
    before: object
    after: object

    def as_json(self) -> dict[str, object]:
        """The form that `diff --json` promises."""
        return {"path": self.path, "before": self.before, "after": self.after}

    @property
    def step(self) -> int | None:
        """The change of a number; None for other values."""
        numbers = (self.before, self.after)
        if any(isinstance(each, bool) or not isinstance(each, int) for each in numbers):
            return None
        return int(str(self.after)) - int(str(self.before))


def diff_batches(before: BatchView, after: BatchView) -> list[Difference]:
    """Compare two batches of the same checkpoint or of two checkpoints."""
    return list(_batch(before, after, ""))


def diff_checkpoints(before: CheckpointView, after: CheckpointView) -> list[Difference]:
    """Compare two checkpoints: the query id, every batch in either of them, and the state."""
    return [
        *_value("query_id", before.query_id, after.query_id),
        *_value("offset_log_version", before.offset_log_version, after.offset_log_version),
        *_value("commit_log_version", before.commit_log_version, after.commit_log_version),
        *_batches(before.batches, after.batches),
        *_operators(before.operators, after.operators),
    ]


def diff_entries(before: Mapping[str, object], after: Mapping[str, object]) -> list[Difference]:
    """Compare two entries of one log, in the form of `log --json`."""
    names = list(dict.fromkeys([*before, *after]))
    return [
        found
        for name in names
        for found in _value(name, keyed_offsets(before.get(name)), keyed_offsets(after.get(name)))
    ]


def _batches(before: Sequence[BatchView], after: Sequence[BatchView]) -> Iterator[Difference]:
    old = {batch.batch_id: batch for batch in before}
    new = {batch.batch_id: batch for batch in after}
    for batch_id in sorted({*old, *new}):
        path = f"batches.{batch_id}"
        if batch_id in old and batch_id in new:
            yield from _batch(old[batch_id], new[batch_id], f"{path}.")
        else:
            yield Difference(
                path,
                old[batch_id].as_json() if batch_id in old else None,
                new[batch_id].as_json() if batch_id in new else None,
            )


def _batch(before: BatchView, after: BatchView, prefix: str) -> Iterator[Difference]:
    yield from _value(
        f"{prefix}offsets", keyed_offsets(before.offsets), keyed_offsets(after.offsets)
    )
    yield from _value(f"{prefix}watermark_ms", before.watermark_ms, after.watermark_ms)
    yield from _value(f"{prefix}timestamp_ms", before.timestamp_ms, after.timestamp_ms)
    yield from _value(f"{prefix}conf", before.conf, after.conf)
    yield from _value(f"{prefix}committed", before.committed, after.committed)


def _operators(
    before: Sequence[OperatorView], after: Sequence[OperatorView]
) -> Iterator[Difference]:
    yield from _value(
        "state",
        {str(each.operator_id): _operator(each) for each in before},
        {str(each.operator_id): _operator(each) for each in after},
    )


def _operator(operator: OperatorView) -> dict[str, object]:
    return {
        "name": operator.name,
        "provider": operator.provider,
        "partitions": operator.partitions,
        "stores": {
            name: {
                "min_version": min((s.min_version or 0 for s in stores), default=None),
                "max_version": max((s.max_version or 0 for s in stores), default=None),
            }
            for name, stores in operator.stores.items()
        },
    }


def keyed_offsets(offsets: object) -> object:
    """Return offsets by source: positions of a list become names."""
    if isinstance(offsets, tuple | list):
        return {str(position): offset for position, offset in enumerate(offsets)}
    return offsets


def _value(path: str, before: object, after: object) -> Iterator[Difference]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}, key=_natural):
            yield from _value(f"{path}.{key}", before.get(key), after.get(key))
    elif before != after:
        yield Difference(path, before, after)


def _natural(key: str) -> tuple[bool, int, str]:
    """Sort key that puts numbers first, in numeric order."""
    is_number = key.isdecimal() and key.isascii() and len(key) < 20
    return (not is_number, int(key) if is_number else 0, key)
