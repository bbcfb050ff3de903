"""Plans the conversion of the offset log from version 1 to version 2, which names the sources.

Version 1 lists offsets in the order of the query's sources. Version 2 has a name for each, so that
sources can be reordered. Spark 4.2 reads both versions but never converts one to the other. A
checkpoint keeps the version that it began with, and Spark refuses to use named sources with an old
checkpoint (CANNOT_ENABLE_ON_EXISTING_CHECKPOINT).

Note: naming a source also moves its directory, from `sources/0` to `sources/NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from epochal.checkpoint.entries import OFFSET_FORMAT, OffsetEntry
from epochal.checkpoint.layout import OFFSETS, SOURCES, source_log_path
from epochal.checkpoint.restart import SOURCE_EVOLUTION
from epochal.errors import EditError, OptionError
from epochal.tools.edit.edit_plan import Change, FileRef, Plan, Tree, is_crc, is_temporary
from epochal.tools.edit.survey import Survey

_NAME = re.compile(r"[A-Za-z0-9_]+")


def plan_migrate(surveyed: Survey, names: Mapping[int, str]) -> Plan:
    broken = sorted(surveyed.listing.offsets.broken)
    if broken:
        raise EditError(
            surveyed.url,
            f"offsets/{broken[0]} cannot be read, so the log cannot be converted. Run `epochal "
            f"checkpoint verify` to see what is wrong, and repair it first.",
        )
    old = {i: entry for i, entry in surveyed.offsets.items() if entry.version == 1}
    if names and len(old) < len(surveyed.offsets):
        raise EditError(
            surveyed.url,
            "its offset log has version 2 already. Sources can be named only when version 1 is "
            "converted.",
        )
    _check_names(surveyed, old, names)
    tree = surveyed.tree
    changes = list(_moved_sources(tree, names))
    for batch_id, entry in sorted(old.items()):
        content = OFFSET_FORMAT.serialize(convert(entry, names))
        changes.append(tree.write(f"{OFFSETS}/{batch_id}", content, "version 1 -> 2"))
    named = ", ".join(f"{place}={name}" for place, name in sorted(names.items()))
    return Plan(
        command="migrate-offsets",
        summary=f"{len(old)} offset entries to version 2" + (f", sources {named}" if named else ""),
        changes=tuple(changes),
        arguments={"to": "v2", **({"names": named} if named else {})},
        warnings=("Spark 4.2 and later can read the result; Spark 3.5 to 4.1 cannot.",)
        if changes
        else (),
        watches=(*surveyed.log_watches(), tree.watch(SOURCES)),
    )


def convert(entry: OffsetEntry, names: Mapping[int, str]) -> OffsetEntry:
    """Convert an entry to version 2. Like Spark, leave out sources that have no offset."""
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
        content = FileRef("", path, tree.infos[path].size)
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
            f"The offset log has {len(wanted)} sources, but names are given for "
            f"{sorted(names) or 'none'}. Name every source, from 0 to {len(wanted) - 1}."
        )
    for index, name in names.items():
        if not _NAME.fullmatch(name):
            raise OptionError(
                f"{name!r} is not a valid name of a source: use only letters, digits and `_`."
            )
        # Spark 4.2 names the directories of named sources, but logs their offsets without names.
        is_named = not any(surveyed.tree.under(source_log_path(index)))
        is_taken = any(surveyed.tree.under(f"{SOURCES}/{name}")) and not is_named
        if name in map(str, wanted) or is_taken:
            raise OptionError(f"{SOURCES}/{name} exists already: choose another name.")
    if len(set(names.values())) < len(names):
        raise OptionError(f"Two sources have the same name: {', '.join(sorted(names.values()))}.")
