"""Plans a copy of a checkpoint to another location, with the paths inside it adapted.

Three kinds of files contain absolute paths. Operator metadata of version 2 names the checkpoint's
schema files, so these paths are always adapted. The log of a file source names input files, and the
log of a file sink output files. Their paths change only if the data was moved, which the caller
declares with a map. Hadoop's hidden crcs and temporary files are not copied.

Of Epochal's own directory everything is copied that a restart may need: the plan of a continuous
query, the batch that Spark planned and did not commit, and the staged rows of an epoch that is
decided and not committed. What belongs to a run or an edit of the original stays there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from urllib.parse import quote

from msgspec import structs

from epochal.checkpoint.file_log import FileSourceLog, open_source_log
from epochal.checkpoint.layout import EPOCHAL, SINK_LOG, SOURCES, STATE
from epochal.checkpoint.operator_metadata import OPERATOR_FORMAT
from epochal.errors import EditError, OptionError
from epochal.files import Files, join_url, scheme_of
from epochal.tools.edit.edit_file_log import SinkSurvey, log_batches
from epochal.tools.edit.edit_plan import (
    ORIGIN,
    SINK,
    Content,
    FileRef,
    Plan,
    Tree,
    is_crc,
    is_temporary,
    stays,
)
from epochal.tools.edit.survey import Survey
from epochal.tools.inspect.edit_status import JournalState, journal_entries
from epochal.tools.inspect.source_listing import SINK_FORMAT, SOURCE_FORMAT
from epochal.wording import time_text

_COPIES = ("copy", "clone")
_OPERATOR_METADATA = re.compile(rf"{STATE}/\d+/_metadata/v2/\d+")
_FILE_SCHEME = re.compile("file:(//)?")
_SCHEMA_PATH = re.compile(rf"(?P<scheme>(file:(//)?)?).*(?P<inside>/{STATE}/\d+/_stateSchema/.*)")


def plan_copy(
    surveyed: Survey, target: Files, moved: Mapping[str, str], *, sink: SinkSurvey | None = None
) -> Plan:
    """Plan the files to write at `target`, which must be empty.

    `moved` maps old prefixes of logged paths to new ones.
    """
    refuse_nested(surveyed.url, target.url)
    refuse_occupied(target)
    empty = Tree({})
    paths = [path for path in surveyed.tree.infos if not is_crc(path) and not is_temporary(path)]
    contents: dict[str, Content] = {
        path: FileRef(ORIGIN, path, surveyed.tree.infos[path].size) for path in paths
    }
    adapted = dict(_rewritten(surveyed, target, moved))
    contents |= adapted
    for path, info in surveyed.files.walk(EPOCHAL):  # the survey leaves it out
        if not stays(path) and not is_crc(path) and not is_temporary(path):
            contents[path] = FileRef(ORIGIN, path, info.size)
    changes = [
        empty.write(path, content, "copied, with adapted paths" if path in adapted else "copied")
        for path, content in contents.items()
    ]
    roots = {ORIGIN: surveyed.files}
    arguments = {"from": surveyed.url, "to": target.url}
    if sink is not None:
        roots[SINK] = sink.files
        arguments[SINK] = sink.files.url
        for name in sink.names:
            entries = list(sink.entries(name))
            followed = [structs.replace(one, path=move_path(one.path, moved)) for one in entries]
            if entries != followed:
                content = SINK_FORMAT.serialize(followed)
                changes.append(sink.tree.write(f"{SINK_LOG}/{name}", content, "mapped paths"))
    return Plan(
        command="copy",
        summary=f"copy {surveyed.url} to {target.url}",
        changes=tuple(changes),
        arguments=arguments,
        warnings=tuple(_warnings(surveyed, adapted, moved)),
        roots=roots,
    )


def move_path(path: str, moved: Mapping[str, str]) -> str:
    """Replace the longest matching old prefix of a logged path; without a match, keep the path.

    A prefix may be a plain path or a URL. Logged paths are URLs with escapes.
    """
    for old, new in sorted(moved.items(), key=lambda item: len(item[0]), reverse=True):
        for prefix in (old.rstrip("/"), quote(old.rstrip("/"), safe="/:")):
            # Hadoop writes a local path in three ways; the new one is written in the same way.
            for scheme in ("",) if scheme_of(prefix) else ("file://", "file:", ""):
                form = f"{scheme}{prefix}"
                if path == form or path.startswith(f"{form}/"):
                    start, written = new.rstrip("/"), _FILE_SCHEME.match(form)
                    if written is not None and not scheme_of(new):
                        start = f"{written[0]}{quote(start, safe='/:')}"
                    return start + path[len(form) :]
    return path


def _rewritten(
    surveyed: Survey, target: Files, moved: Mapping[str, str]
) -> Iterator[tuple[str, Content]]:
    for path in surveyed.tree.infos:
        if _OPERATOR_METADATA.fullmatch(path):
            raw = surveyed.files.read(path)
            yield path, follow_schema_paths(raw, join_url(surveyed.url, path), target)
    for source in surveyed.tree.names(SOURCES) if moved else ():
        directory = f"{SOURCES}/{source}"
        if not isinstance(open_source_log(surveyed.files.at(directory)), FileSourceLog):
            continue
        for name in log_batches(surveyed.tree, directory):
            path = f"{directory}/{name}"
            raw = surveyed.files.read(path)
            entries = list(SOURCE_FORMAT.deserialize(raw, join_url(surveyed.url, path)))
            followed = [structs.replace(one, path=move_path(one.path, moved)) for one in entries]
            if entries != followed:
                yield path, SOURCE_FORMAT.serialize(followed)


def follow_schema_paths(raw: bytes, url: str, target: Files) -> bytes:
    """Rewrite operator metadata so that its schema files are below `target`."""
    entry = OPERATOR_FORMAT.deserialize(raw, url)

    def followed(path: str) -> str:
        parts = _SCHEMA_PATH.fullmatch(path)
        if parts is None:
            return path
        scheme = "" if scheme_of(target.url) else parts["scheme"]
        return f"{scheme}{target.url}{parts['inside']}"

    stores = tuple(
        replace(store, schema_file_paths=tuple(map(followed, store.schema_file_paths)))
        for store in entry.stores
    )
    return OPERATOR_FORMAT.serialize(replace(entry, stores=stores))


def _warnings(
    surveyed: Survey, adapted: Mapping[str, Content], moved: Mapping[str, str]
) -> Iterator[str]:
    if moved and not any(path.startswith(f"{SOURCES}/") for path in adapted):
        yield "No path in the log of a source begins with one of the mapped prefixes."
    if not surveyed.offsets:
        yield "The checkpoint has no batches yet."
    yield (
        "The copy has the same query id. Run only one of the two queries: both would write the "
        "same batches to the same sink."
    )


def refuse_nested(origin: str, target: str) -> None:
    """Raise OptionError if one of two directories lies inside the other."""
    if f"{target}/".startswith(f"{origin}/") or f"{origin}/".startswith(f"{target}/"):
        raise OptionError(
            f"{target} and {origin} lie inside each other: choose a target outside the checkpoint."
        )


def refuse_occupied(target: Files) -> None:
    """Raise EditError if a directory has files that are not Epochal's own."""
    for path, _ in target.walk():
        if path.startswith(f"{EPOCHAL}/"):
            continue
        edits = [each for each in journal_entries(target) if each.state is JournalState.DONE]
        if edits and edits[0].command in _COPIES:
            raise EditError(
                target.url,
                f"is not empty: it has a whole copy of {edits[0].arguments.get('from')}, made at "
                f"{time_text(edits[0].started_ms)}. If the command was killed after that, nothing "
                f"is missing; check it with `epochal checkpoint verify {target.url}`. To copy "
                f"again, first run `epochal checkpoint undo {target.url} --execute`.",
            )
        raise EditError(
            target.url,
            f"is not empty ({path}). Copying over another checkpoint would mix two histories: "
            f"choose an empty directory.",
        )
