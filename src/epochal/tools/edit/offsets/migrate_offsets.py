"""Plans the step from offset log version 1 to 2, with which sources can be named and reordered.

Version 1 lists offsets in the order of the query's sources; version 2 names each. Spark 4.2 reads
both but never converts: a checkpoint keeps the version it began with, and asking for named sources
on an old one is refused (CANNOT_ENABLE_ON_EXISTING_CHECKPOINT). What a reader would get wrong:
naming a source also moves its private directory, `sources/0` to `sources/NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from epochal.checkpoint.entries import OFFSET_FORMAT, OffsetEntry
from epochal.checkpoint.layout import OFFSETS, SOURCES, source_log_path
from epochal.checkpoint.pinned import SOURCE_EVOLUTION
from epochal.errors import EditError, OptionError
from epochal.tools.edit.edit_plan import Change, Elsewhere, Plan, Tree, is_crc, is_temporary
from epochal.tools.edit.survey import Survey

_NAME = re.compile(r"[A-Za-z0-9_]+")


def plan_migrate(surveyed: Survey, names: Mapping[int, str]) -> Plan:
    """What to write so that every offset entry is of version 2; with `names`, named."""
    broken = sorted(surveyed.listing.offsets.broken)
    if broken:
        raise EditError(
            surveyed.url,
            f"offsets/{broken[0]} cannot be read, so the log cannot be converted. Run "
            f"`epochal checkpoint verify`, repair it first.",
        )
    old = {i: entry for i, entry in surveyed.offsets.items() if entry.version == 1}
    if names and len(old) < len(surveyed.offsets):
        raise EditError(
            surveyed.url,
            "its offset log is of version 2 already; sources get their names on the first "
            "conversion only.",
        )
    _check_names(surveyed, old, names)
    tree = surveyed.tree
    changes = [
        *_moved_sources(tree, names),
        *(
            tree.write(
                f"{OFFSETS}/{batch_id}",
                OFFSET_FORMAT.serialize(convert(entry, names)),
                "version 1 -> 2",
            )
            for batch_id, entry in sorted(old.items())
        ),
    ]
    named = ", ".join(f"{place}={name}" for place, name in sorted(names.items()))
    return Plan(
        command="migrate-offsets",
        summary=f"{len(old)} offset entries to version 2" + (f", sources {named}" if named else ""),
        changes=tuple(changes),
        arguments={"to": "v2", **({"names": named} if named else {})},
        warnings=("Spark 4.2 and later read the result; 3.5 to 4.1 refuse it.",) if changes else (),
        watches=(*surveyed.log_watches(), tree.watch(SOURCES)),
    )


def convert(entry: OffsetEntry, names: Mapping[int, str]) -> OffsetEntry:
    """An entry of version 1 as version 2; a source without an offset is left out, as Spark does."""
    assert isinstance(entry.offsets, tuple)
    offsets: dict[str, str | None] = {
        names.get(place, str(place)): offset
        for place, offset in enumerate(entry.offsets)
        if offset is not None
    }
    conf = {**entry.conf, SOURCE_EVOLUTION: "true"} if names else entry.conf
    return replace(entry, version=2, offsets=offsets, conf=conf, keys=None, has_metadata=True)


def _moved_sources(tree: Tree, names: Mapping[int, str]) -> Iterator[Change]:
    moves = [
        (path, f"{source_log_path(name)}/{path[len(source_log_path(place)) + 1 :]}")
        for place, name in sorted(names.items())
        for path in tree.under(source_log_path(place))
        if not is_crc(path) and not is_temporary(path)
    ]
    for path, target in moves:
        content = Elsewhere("", path, tree.infos[path].size)
        yield tree.write(target, content, f"moved from {path}")
    for path, target in moves:
        yield tree.delete(path, f"moved to {target}")


def _check_names(
    surveyed: Survey, old: Mapping[int, OffsetEntry], names: Mapping[int, str]
) -> None:
    if not names:
        return
    counts = {len(entry.offsets) for entry in old.values()}
    wanted = set(range(max(counts, default=0)))
    if set(names) != wanted:
        raise OptionError(
            f"Name every source: {len(wanted)} are in the offset log, named are "
            f"{sorted(names) or 'none'}."
        )
    for name in names.values():
        if not _NAME.fullmatch(name):
            raise OptionError(f"A source's name is letters, digits and `_`, not {name!r}.")
        if name in map(str, wanted) or any(True for _ in surveyed.tree.under(f"{SOURCES}/{name}")):
            raise OptionError(f"{SOURCES}/{name} is there already: choose another name.")
    if len(set(names.values())) < len(names):
        raise OptionError(f"Two sources have the same name: {', '.join(sorted(names.values()))}.")
