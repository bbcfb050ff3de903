"""Words what changed between two entries, two batches or two checkpoints. Pure.

Programs get the same differences as JSON. For people, times are ISO 8601, offsets have the step
that they made, and what says nothing is left out: an epoch's files, and ids that are always new.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from epochal.tools.inspect.checkpoint_diff import Difference
from epochal.wording import counted, duration_text, span, time_text

PARTS_SHOWN = 6
"""Offsets with more parts than this are summed up."""
TIMES = {
    "watermark_ms": "watermark",
    "next_watermark_ms": "watermark",
    "timestamp_ms": "time",
}
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
            return "; ".join(f"{name}: {_offset(each, shown)}" for name, each in offsets.items())
        case [only]:
            return _offset(only, shown)
        case list() | tuple():
            return "; ".join(f"{at}: {_offset(each, shown)}" for at, each in enumerate(offsets))
    return _value(offsets)


def change_lines(differences: Sequence[Difference], *, brief: bool = False) -> list[str]:
    """One line for each difference of two entries or two batches.

    A brief line names only the new time or offset, for readers who see the old one above it.
    """
    moved = [each for each in differences if each.path.startswith("offsets")]
    others = [each for each in differences if not each.path.startswith("offsets")]
    told = [_change(each, brief) for each in others if not _is_unsaid(each.path)]
    return [*_moved(moved, brief), *told]


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
            lines.append(f"{name} {_value(value)}")
    return lines


def checkpoint_rows(
    differences: Sequence[Difference], noun: str = "batch"
) -> Iterator[tuple[str, str]]:
    """What differs between two checkpoints: a subject and a line about it, for each difference.

    Batches next to each other that differ in the same way share a line.
    """
    per_batch: list[tuple[int, list[Difference]]] = []
    for subject, group in groupby(differences, _subject):
        found = list(group)
        if isinstance(subject, int):
            per_batch.append((subject, found))
            continue
        yield from _batch_rows(per_batch, noun)
        per_batch.clear()
        for each in found:
            yield subject, _change(each)
    yield from _batch_rows(per_batch, noun)


def _subject(found: Difference) -> int | str:
    match found.path.split("."):
        case ["batches", number, *_]:
            return int(number)
        case ["state", operator, *_]:
            return f"operator {operator}"
    return "checkpoint"


def _batch_rows(
    batches: Sequence[tuple[int, list[Difference]]], noun: str
) -> Iterator[tuple[str, str]]:
    """Settings that differ alike in several batches first, then each batch."""
    alike: dict[str, list[int]] = {}
    for batch_id, found in batches:
        for each in _inside(found):
            if each.path.startswith("conf."):
                alike.setdefault(_change(each), []).append(batch_id)
    for line, numbers in alike.items():
        yield span(numbers[0], numbers[-1], noun), line
    for told, run in groupby(batches, lambda each: _told(each[1])):
        numbers = [batch_id for batch_id, _ in run]
        yield from ((span(numbers[0], numbers[-1], noun), line) for line in told)


def _told(found: Sequence[Difference]) -> tuple[str, ...]:
    """What is said of one batch; batches of which the same is said share a line."""
    inside = [each for each in _inside(found) if not each.path.startswith("conf.")]
    match [each.path for each in inside]:
        case [""]:
            return (AFTER if inside[0].before is None else BEFORE,)
        case ["timestamp_ms"]:
            return ("planned at other times",)
    return tuple(change_lines(inside))


def _inside(found: Sequence[Difference]) -> list[Difference]:
    """Differences of one batch, with paths inside it."""
    return [
        Difference(".".join(each.path.split(".", 2)[2:]), each.before, each.after) for each in found
    ]


def _is_unsaid(path: str) -> bool:
    return path.startswith(UNSAID) and path not in SAID


def _moved(parts: Sequence[Difference], brief: bool) -> Iterator[str]:
    """Lines about offsets: one per source."""
    sources = {each.path.split(".")[1] for each in parts if each.path.count(".")}
    for source, group in groupby(parts, lambda each: [*each.path.split("."), ""][1]):
        found = list(group)
        name = "offset" if len(sources) < 2 and source in ("0", "") else f"source {source}"
        steps = [each.step for each in found]
        if len(found) > PARTS_SHOWN and None not in steps:
            total = sum(step or 0 for step in steps)
            yield f"{name} {total:+,} in {counted(len(found), 'partition')}"
            continue
        yield f"{name} " + ", ".join(_part(each, brief) for each in found)


def _part(found: Difference, brief: bool) -> str:
    """`orders 0: 20 → 30 (+10)`."""
    inner = found.path.split(".")[2:]
    where = f"{'.'.join(inner[:-1])} {inner[-1]}: " if len(inner) > 1 else ""
    step = f" ({found.step:+,})" if found.step else ""
    words = _offset if "." in found.path else offsets_text
    before, after = (words(each, PARTS_SHOWN) for each in (found.before, found.after))
    return f"{where}{after}{step}" if brief and step else f"{where}{before} → {after}{step}"


def _change(found: Difference, brief: bool = False) -> str:
    name = found.path.rpartition(".")[2]
    if name in TIMES:
        before = "" if brief else f"{_time(found.before)} → "
        return f"{TIMES[name]} {before}{_time(found.after)}{_later(found)}"
    head, _, rest = found.path.partition(".")
    if head == "state":
        rest = rest.partition(".")[2] or "operator"
    if found.path == "conf":
        before, after = _settings(found.before), _settings(found.after)
        return f"pinned settings: {before} → {after}"
    if head == "conf":
        return f"{rest}: {_setting(found.before)} → {_setting(found.after)}"
    words = {OURS: name, "state": rest.replace(".", " ")}.get(head, found.path)
    return f"{words.replace('_', ' ')}: {_value(found.before)} → {_value(found.after)}"


def _later(found: Difference) -> str:
    step = found.step
    if not step or not found.before or not found.after:
        return ""
    return f" ({'+' if step > 0 else '-'}{duration_text(abs(step))})"


def _time(value: object) -> str:
    return time_text(value) if isinstance(value, int) else "-"


def _settings(value: object) -> str:
    return f"{len(value):,}" if isinstance(value, Mapping) else "-"


def _setting(value: object) -> str:
    return "(none)" if value is None else str(value)


def _value(value: object) -> str:
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
                return _value(values[0])
            return ", ".join(f"{name} {_inner(each, shown)}" for name, each in offset.items())
    return _value(offset)


def _inner(value: object, shown: int | None) -> str:
    if not isinstance(value, Mapping) or any(isinstance(v, Mapping | list) for v in value.values()):
        return _value(value)
    numbers = [each for each in value.values() if isinstance(each, int)]
    if shown is not None and len(value) > shown and len(numbers) == len(value):
        return f"{sum(numbers):,} in {counted(len(value), 'partition')}"
    return " ".join(f"{name}:{_value(each)}" for name, each in value.items())
