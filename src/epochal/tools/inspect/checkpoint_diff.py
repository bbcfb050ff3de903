"""Compares two batches or two checkpoints, and words the differences for people. Pure.

The content of offsets is compared: a Kafka offset differs per topic and partition, not as one text.
Programs get the differences as JSON. For people, times are ISO 8601, offsets have the step that
they made, and what says nothing is left out: an epoch's files, and ids that are always new.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from epochal.tools.inspect.view_models import BatchView, CheckpointView, OperatorView
from epochal.wording import counted, duration_text, span, time_text


@dataclass(frozen=True, slots=True)
class CheckpointDifference:
    """One value that differs; None where a side lacks it."""

    path: str
    before: object
    after: object

    def as_json(self) -> dict[str, object]:
        return {"path": self.path, "before": self.before, "after": self.after}

    @property
    def step(self) -> int | None:
        """The change of a number; None for other values."""
        numbers = (self.before, self.after)
        if any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
            return None
        return int(str(self.after)) - int(str(self.before))


def diff_batches(before: BatchView, after: BatchView) -> list[CheckpointDifference]:
    return list(_batch(before, after, ""))


def diff_checkpoints(before: CheckpointView, after: CheckpointView) -> list[CheckpointDifference]:
    """Compare two checkpoints: the query id, every batch in either of them, and the state."""
    states = (
        {str(operator.operator_id): _operator(operator) for operator in view.operators}
        for view in (before, after)
    )
    return [
        *_value("query_id", before.query_id, after.query_id),
        *_value("offset_log_version", before.offset_log_version, after.offset_log_version),
        *_value("commit_log_version", before.commit_log_version, after.commit_log_version),
        *_batches(before.batches, after.batches),
        *_value("state", *states),
    ]


def diff_entries(
    before: Mapping[str, object], after: Mapping[str, object]
) -> list[CheckpointDifference]:
    """Compare two entries of one log, in the form of `log --json`."""
    return [
        difference
        for name in dict.fromkeys([*before, *after])
        for difference in _value(name, _keyed(before.get(name)), _keyed(after.get(name)))
    ]


def _batches(
    before: Sequence[BatchView], after: Sequence[BatchView]
) -> Iterator[CheckpointDifference]:
    old = {batch.batch_id: batch for batch in before}
    new = {batch.batch_id: batch for batch in after}
    for batch_id in sorted({*old, *new}):
        path = f"batches.{batch_id}"
        if batch_id in old and batch_id in new:
            yield from _batch(old[batch_id], new[batch_id], f"{path}.")
        else:
            yield CheckpointDifference(
                path,
                old[batch_id].as_json() if batch_id in old else None,
                new[batch_id].as_json() if batch_id in new else None,
            )


def _batch(before: BatchView, after: BatchView, prefix: str) -> Iterator[CheckpointDifference]:
    yield from _value(f"{prefix}offsets", _keyed(before.offsets), _keyed(after.offsets))
    for name in ("watermark_ms", "timestamp_ms", "conf", "committed"):
        yield from _value(f"{prefix}{name}", getattr(before, name), getattr(after, name))


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


def _keyed(offsets: object) -> object:
    """Return offsets by source: positions of a list become names."""
    if isinstance(offsets, tuple | list):
        return {str(position): offset for position, offset in enumerate(offsets)}
    return offsets


def _value(path: str, before: object, after: object) -> Iterator[CheckpointDifference]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}, key=_natural):
            yield from _value(f"{path}.{key}", before.get(key), after.get(key))
    elif before != after:
        yield CheckpointDifference(path, before, after)


def _natural(key: str) -> tuple[bool, int, str]:
    """Sort key that puts numbers first, in numeric order."""
    is_number = key.isdecimal() and key.isascii() and len(key) < 20
    return (not is_number, int(key) if is_number else 0, key)


PARTS_SHOWN = 6
"""Offsets with more parts than this are summed up."""
TIMES = {"watermark_ms": "watermark", "next_watermark_ms": "watermark", "timestamp_ms": "time"}
OURS = "epochal"
"""The part of an offset entry that Epochal adds to it."""
UNSAID = (f"{OURS}.", "state_unique_ids.")
"""Parts of an entry that differ in every batch and mean nothing to a reader."""
SAID = (f"{OURS}.attempt", f"{OURS}.runId")
BEFORE, AFTER = "only before", "only after"


def offsets_text(offsets: object, shown: int | None = PARTS_SHOWN) -> str:
    """Offsets in a line: `orders 0:20 1:7`. Of a Kafka source with many partitions, the sum."""
    match offsets:
        case None:
            return "?"
        case Mapping():
            return "; ".join(
                f"{name}: {_offset(offset, shown)}" for name, offset in offsets.items()
            )
        case [only]:
            return _offset(only, shown)
        case list() | tuple():
            return "; ".join(f"{at}: {_offset(offset, shown)}" for at, offset in enumerate(offsets))
    return _value_text(offsets)


def change_lines(differences: Sequence[CheckpointDifference], *, brief: bool = False) -> list[str]:
    """One line for each difference of two entries or two batches.

    A brief line names only the new time or offset, for readers who see the old one above it.
    """
    moved = [difference for difference in differences if difference.path.startswith("offsets")]
    others = [difference for difference in differences if not difference.path.startswith("offsets")]
    lines = [
        _change(other, brief)
        for other in others
        if not other.path.startswith(UNSAID) or other.path in SAID
    ]
    return [*_describe_moves(moved, brief), *lines]


def first_lines(entry: Mapping[str, object]) -> list[str]:
    """The lines of an entry that has none before it: all of it, except single settings."""
    lines = []
    for name, value in entry.items():
        if name == "offsets":
            text = offsets_text(value)
            lines.append(f"offset {text}" if text.lstrip("-")[:1].isdigit() else text)
        elif name in TIMES:
            if name != "timestamp_ms" and value:
                lines.append(f"{TIMES[name]} {_time(value)}")
        elif name == "conf" and isinstance(value, Mapping):
            if value:
                lines.append(f"pins {counted(len(value), 'setting')}")
        elif name == OURS and isinstance(value, Mapping):
            if value.get("attempt") is not None:
                lines.append(f"attempt {value['attempt']}")
        elif name not in ("version", "state_unique_ids"):
            lines.append(f"{name} {_value_text(value)}")
    return lines


def checkpoint_rows(
    differences: Sequence[CheckpointDifference], noun: str = "batch"
) -> Iterator[tuple[str, str]]:
    """What differs between two checkpoints: a subject and a line about it, for each difference.

    Batches next to each other that differ in the same way share a line.
    """
    per_batch: list[tuple[int, list[CheckpointDifference]]] = []
    for subject, group in groupby(differences, _subject):
        of_operator = list(group)
        if isinstance(subject, int):
            per_batch.append((subject, of_operator))
            continue
        yield from _batch_rows(per_batch, noun)
        per_batch.clear()
        for difference in of_operator:
            yield subject, _change(difference)
    yield from _batch_rows(per_batch, noun)


def _subject(difference: CheckpointDifference) -> int | str:
    match difference.path.split("."):
        case ["batches", number, *_]:
            return int(number)
        case ["state", operator, *_]:
            return f"operator {operator}"
    return "checkpoint"


def _batch_rows(
    batches: Sequence[tuple[int, list[CheckpointDifference]]], noun: str
) -> Iterator[tuple[str, str]]:
    """Settings that differ alike in several batches first, then each batch."""
    alike: dict[str, list[int]] = {}
    for batch_id, differences in batches:
        for difference in _inside(differences):
            if difference.path.startswith("conf."):
                alike.setdefault(_change(difference), []).append(batch_id)
    for line, numbers in alike.items():
        yield span(numbers[0], numbers[-1], noun), line
    for text, run in groupby(batches, lambda batch: _tell_changes(batch[1])):
        numbers = [batch_id for batch_id, _ in run]
        yield from ((span(numbers[0], numbers[-1], noun), line) for line in text)


def _tell_changes(differences: Sequence[CheckpointDifference]) -> tuple[str, ...]:
    """What is said of one batch; batches of which the same is said share a line."""
    inside = [
        difference for difference in _inside(differences) if not difference.path.startswith("conf.")
    ]
    match [difference.path for difference in inside]:
        case [""]:
            return (AFTER if inside[0].before is None else BEFORE,)
        case ["timestamp_ms"]:
            return ("planned at other times",)
    return tuple(change_lines(inside))


def _inside(differences: Sequence[CheckpointDifference]) -> list[CheckpointDifference]:
    """Differences of one batch, with paths inside it."""
    return [
        CheckpointDifference(
            ".".join(difference.path.split(".", 2)[2:]), difference.before, difference.after
        )
        for difference in differences
    ]


def _describe_moves(parts: Sequence[CheckpointDifference], brief: bool) -> Iterator[str]:
    """Lines about offsets: one per source."""
    sources = {part.path.split(".")[1] for part in parts if part.path.count(".")}
    for source, group in groupby(parts, lambda part: [*part.path.split("."), ""][1]):
        moved = list(group)
        name = "offset" if len(sources) < 2 and source in ("0", "") else f"source {source}"
        steps = [part.step for part in moved]
        if len(moved) > PARTS_SHOWN and None not in steps:
            total = sum(step or 0 for step in steps)
            yield f"{name} {total:+,} in {counted(len(moved), 'partition')}"
            continue
        yield f"{name} " + ", ".join(_part(part, brief) for part in moved)


def _part(difference: CheckpointDifference, brief: bool) -> str:
    """`orders 0: 20 → 30 (+10)`."""
    inner = difference.path.split(".")[2:]
    where = f"{'.'.join(inner[:-1])} {inner[-1]}: " if len(inner) > 1 else ""
    step = f" ({difference.step:+,})" if difference.step else ""
    words = _offset if "." in difference.path else offsets_text
    before, after = (words(offset, PARTS_SHOWN) for offset in (difference.before, difference.after))
    return f"{where}{after}{step}" if brief and step else f"{where}{before} → {after}{step}"


def _change(difference: CheckpointDifference, brief: bool = False) -> str:
    name = difference.path.rpartition(".")[2]
    if name in TIMES:
        before = "" if brief else f"{_time(difference.before)} → "
        step, later = difference.step, ""
        if step and difference.before and difference.after:
            later = f" ({'+' if step > 0 else '-'}{duration_text(abs(step))})"
        return f"{TIMES[name]} {before}{_time(difference.after)}{later}"
    head, _, rest = difference.path.partition(".")
    if head == "state":
        rest = rest.partition(".")[2] or "operator"
    sides = (difference.before, difference.after)
    if difference.path == "conf":
        before, after = (f"{len(side):,}" if isinstance(side, Mapping) else "-" for side in sides)
        return f"pinned settings: {before} → {after}"
    if head == "conf":
        before, after = ("(none)" if side is None else str(side) for side in sides)
        return f"{rest}: {before} → {after}"
    words = {OURS: name, "state": rest.replace(".", " ")}.get(head, difference.path)
    before, after = _value_text(difference.before), _value_text(difference.after)
    return f"{words.replace('_', ' ')}: {before} → {after}"


def _time(value: object) -> str:
    return time_text(value) if isinstance(value, int) else "-"


def _value_text(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case str() | int() | float():
            return str(value)
    return json.dumps(value, ensure_ascii=False)


def _offset(offset: object, shown: int | None) -> str:
    match offset:
        case None:
            return "-"
        case Mapping():
            values = list(offset.values())
            if len(values) == 1 and not isinstance(values[0], Mapping | list):
                return _value_text(values[0])
            return ", ".join(f"{name} {_inner(part, shown)}" for name, part in offset.items())
    return _value_text(offset)


def _inner(value: object, shown: int | None) -> str:
    if not isinstance(value, Mapping) or any(isinstance(v, Mapping | list) for v in value.values()):
        return _value_text(value)
    numbers = [number for number in value.values() if isinstance(number, int)]
    if shown is not None and len(value) > shown and len(numbers) == len(value):
        return f"{sum(numbers):,} in {counted(len(value), 'partition')}"
    return " ".join(f"{name}:{_value_text(number)}" for name, number in value.items())
