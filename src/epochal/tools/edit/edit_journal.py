"""Executes plans so that a crash at any moment loses nothing, and undoes them.

Each edit has a directory `.epochal/journal/NNNN-COMMAND/` in the checkpoint:

    before-*.pack    the old bytes of all files that the plan changes, and of their hidden crcs
    after-*.pack     the new bytes; removed when the edit is done
    plan.json        the decision: once it exists, the edit must be finished or undone
    done             every change has been made
    undoing, undone  the same two steps for an undo

These files are created in this order and never rewritten. A change is made only if its file is
still as it was when the plan was made; a change that is already made is skipped. So a crash leaves
either the old checkpoint (no `plan.json`), or a journal that `finish` or `undo` completes. They may
crash and be repeated any number of times. The storage needs no rename and no lock. The caller must
hold the checkpoint's guard meanwhile.

A plan may also change files in other places: the output of a file sink, or the other checkpoint of
a switch. The journal records their URLs, but never opens them: whoever finishes or undoes an edit
must name these places again. Otherwise a prepared journal could change files anywhere.

A plan with several changes first closes the gate: it replaces the file `metadata` by a notice with
which no release of Spark starts. The last step restores `metadata`. So no query can run on a
checkpoint that is only partly edited.

Note: `Files` deletes a file's hidden crc together with the file, and never writes one. So an undo
writes crcs back as separate files, each after the file that it belongs to.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from epochal.checkpoint.layout import METADATA
from epochal.clock import Clock, SystemClock
from epochal.errors import EditError
from epochal.files import Files, join_url
from epochal.tools.edit.edit_plan import SINK, Change, FileRef, Plan, check_plan, crc_of
from epochal.tools.edit.journal_records import (
    PackReader,
    PackWriter,
    Record,
    RecordedChange,
    change_is_made,
    changed,
    check_watches,
    crc_bytes,
    describe,
    digest,
    stamp_of,
)
from epochal.tools.inspect.edit_status import (
    FORMAT_VERSION,
    PLAN_FILE,
    JournalEntry,
    JournalState,
    decode_plan,
    entry_ids,
    entry_path,
    entry_state,
    journal_entries,
    undo_of,
    unfinished_edit,
)

NOTICE: Final = "unfinished edit"
"""The key that replaces the query's `id` in `metadata` while an edit is unfinished."""

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}-[0-9a-f-]{27}\.tmp")
"""How the file is called in which another one is being written."""

Progress = Callable[[int, int], None]
"""Called with the number of changes made so far, and the total."""


class Journal:
    """The edits made to one checkpoint, oldest first."""

    def __init__(
        self, files: Files, *, clock: Clock | None = None, places: Sequence[Files] = ()
    ) -> None:
        self._files = files
        self._clock = clock or SystemClock()
        self._places = {place.url: place for place in places}

    def entries(self) -> list[JournalEntry]:
        """List the edits that have a plan, oldest first."""
        return journal_entries(self._files)

    def unfinished(self) -> JournalEntry | None:
        return unfinished_edit(self._files)

    def execute(self, plan: Plan, progress: Progress | None = None) -> JournalEntry:
        """Make every change of `plan`. If this is interrupted, `finish` completes it."""
        if (entry := self.unfinished()) is not None:
            raise EditError(
                self._url(entry.id),
                f"a {entry.command} that was interrupted is {entry.state} here. Run the same "
                f"command again to finish it, or {undo_of(self._files.url, entry)} to revert it.",
            )
        check_plan(plan)
        self._sweep()
        numbers = [int(entry_id.partition("-")[0]) for entry_id in entry_ids(self._files)]
        entry_id = f"{max(numbers, default=0) + 1:04d}-{plan.command}"
        self._places |= {place.url: place for place in plan.roots.values()}
        steps = _Steps(2 * len(plan.changes), progress)
        try:
            record = self._prepare(entry_id, plan, steps)
        except BaseException:  # Ctrl-C too: without a plan nothing has changed, so nothing may stay
            self._sweep()
            raise
        self._roll_forward(entry_id, record, steps)
        return self._entry(entry_id)

    def finish(self, entry_id: str, progress: Progress | None = None) -> JournalEntry:
        """Complete an edit that was interrupted. An edit that is done stays unchanged."""
        record = self._record(entry_id)
        state = entry_state(self._files, entry_id)
        if state is JournalState.DONE:
            self._drop_leftovers(entry_id)
            return self._entry(entry_id)
        if state is not JournalState.UNFINISHED:
            raise EditError(
                self._url(entry_id),
                f"this {record.command} is {state}, so it cannot be finished. "
                f"Run {undo_of(self._files.url, self._entry(entry_id))} to finish the undo.",
            )
        check_watches(record, self._root)
        self._check_gate(record)
        self._sweep_temporaries(record)
        # Check all files before changing any: raises if one is neither in its old nor new state.
        for change in record.changes:
            change_is_made(self._root(record, change.root), change)
        self._roll_forward(entry_id, record, _Steps(len(record.changes), progress))
        return self._entry(entry_id)

    def undo(self, entry_id: str | None = None, progress: Progress | None = None) -> JournalEntry:
        """Restore all files to their state before an edit, by default the newest one."""
        entry = self.undoable(entry_id)
        record = self._record(entry.id)
        if entry.state is JournalState.UNDONE:
            return entry
        made = self._made_changes(record)
        if entry.state is not JournalState.DONE:
            self._sweep_temporaries(record)
        self._mark(entry.id, "undoing")
        steps = _Steps(len(record.changes), progress)
        backups = PackReader(self._files.at(entry_path(entry.id)), "before")
        self._close_gate(entry.id, record)
        for change, is_made in reversed(list(zip(record.changes, made, strict=True))):
            self._restore(record, change, backups, is_made)
            steps.one_more()
        for root, directory in reversed(record.made_directories):
            _remove_if_empty(self._root(record, root), directory)
        for directory in record.emptied:
            self._files.make_dirs(directory)
        if record.gate is not None:
            self._restore(record, record.gate, backups, is_made=True)
        self._mark(entry.id, "undone")
        self._drop_leftovers(entry.id)
        return self._entry(entry.id)

    def why_not_undo(self, entry_id: str) -> EditError | None:
        """Return the error with which `undo` would fail: the query has continued, or files of the
        edit have changed."""
        try:
            self._made_changes(self._record(entry_id))
        except EditError as error:
            return error
        return None

    def prune(self) -> list[str]:
        """Remove every edit that is done or undone. They can no longer be undone."""
        pruned = self.prunable()
        for entry_id in pruned:
            # Delete the plan first: a directory without a plan is ignored and swept later, so a
            # crash here does no harm.
            self._files.delete(f"{entry_path(entry_id)}/{PLAN_FILE}")
        self._sweep()
        return pruned

    def prunable(self) -> list[str]:
        """List the edits that `prune` would remove."""
        finished = (JournalState.DONE, JournalState.UNDONE)
        return [entry.id for entry in self.entries() if entry.state in finished]

    def verify(self, entry_id: str, progress: Progress | None = None) -> None:
        """Read every file that an edit wrote; EditError if one has other content."""
        record = self._record(entry_id)
        written = [*record.changes, record.gate] if record.gate else record.changes
        steps = _Steps(len(written), progress)
        for change in written:
            files = self._root(record, change.root)
            if not change_is_made(files, change, trust_stamp=False):
                raise changed(files, change.path, "the new content", "the old content")
            steps.one_more()

    def _prepare(self, entry_id: str, plan: Plan, steps: _Steps) -> Record:
        at = self._files.at(entry_path(entry_id))
        changes: list[RecordedChange] = []
        gate, others = self._gate_of(plan)
        with PackWriter(at, "before") as backups, PackWriter(at, "after") as contents:
            for change in others:
                changes.append(self._prepare_change(plan, change, backups, contents))
                steps.one_more()
            closed = None if gate is None else self._prepare_change(plan, gate, backups, contents)
        record = Record(
            FORMAT_VERSION,
            plan.command,
            dict(plan.arguments),
            plan.summary,
            self._clock.now_ms(),
            {root: place.url for root, place in plan.roots.items()},
            list(plan.watches),
            self._directories_to_make(plan),
            list(plan.emptied),
            changes,
            closed,
        )
        check_watches(record, self._root)
        at.create(PLAN_FILE, msgspec.json.encode(record))
        return record

    def _gate_of(self, plan: Plan) -> tuple[Change | None, list[Change]]:
        """Split a plan into the last change, of `metadata`, and the other changes.

        A plan of a single change needs no gate. If the plan does not change `metadata`, the gate
        restores its content.
        """
        if len(plan.changes) < 2:
            return None, list(plan.changes)
        others = [change for change in plan.changes if change.place != ("", METADATA)]
        own = [change for change in plan.changes if change.place == ("", METADATA)]
        if own:
            return own[0], others
        stamp = stamp_of(self._files, METADATA)
        content = None if stamp is None else self._files.read(METADATA)
        return Change(METADATA, stamp, content), others

    def _prepare_change(
        self, plan: Plan, change: Change, backups: PackWriter, contents: PackWriter
    ) -> RecordedChange:
        files = self._place_of(plan, change.root)
        before = crc = after = None
        source: FileRef | None = None
        stamp = stamp_of(files, change.path)
        if stamp != change.before:
            raise changed(files, change.path, describe(change.before), describe(stamp))
        if stamp is not None:
            before = backups.add(files.read(change.path, large=True))
            if before.size != stamp.size:  # the file changed since its status was read
                raise changed(files, change.path, describe(stamp), f"{before.size} bytes")
        if (hidden := crc_bytes(files, change.path)) is not None:
            crc = backups.add(hidden)
        match change.after:
            case FileRef():
                source = change.after
                after = digest(self._place_of(plan, source.root).read(source.path, large=True))
            case bytes():
                after = contents.add(change.after)
        return RecordedChange(
            change.root, change.path, before, stamp.modified_ms if stamp else 0, crc, after, source
        )

    def _roll_forward(self, entry_id: str, record: Record, steps: _Steps) -> None:
        at = self._files.at(entry_path(entry_id))
        contents = PackReader(at, "after")
        self._close_gate(entry_id, record)
        for change in record.changes:
            if not change_is_made(self._root(record, change.root), change):
                self._apply(record, change, contents)
            elif change.after is None:
                # A crash may have deleted the file but not its crc. Deleting again removes it.
                self._root(record, change.root).delete(change.path)
            steps.one_more()
        for directory in record.emptied:
            _remove_if_empty(self._files, directory)
        if (gate := record.gate) is not None:
            if gate.after is None:
                self._files.delete(METADATA)
            elif gate.after.matches_blob(gate.before):
                self._restore(record, gate, PackReader(at, "before"), is_made=True)
            else:
                self._files.replace(METADATA, self._new_content(record, gate, contents))
        self._mark(entry_id, "done")
        self._drop_leftovers(entry_id)

    def _made_changes(self, record: Record) -> list[bool]:
        """Whether each change has been made; EditError if something else changed the files."""
        check_watches(record, self._root)
        self._check_gate(record)
        return [
            change_is_made(self._root(record, change.root), change, trust_stamp=False)
            for change in record.changes
        ]

    def _check_gate(self, record: Record) -> None:
        if record.gate is not None and not self._gate_is_closed():
            change_is_made(self._files, record.gate)

    def _close_gate(self, entry_id: str, record: Record) -> None:
        if record.gate is not None and not self._gate_is_closed():
            notice = {NOTICE: f"{entry_id}: run the same command again, or undo it"}
            self._files.replace(METADATA, msgspec.json.encode(notice))

    def _gate_is_closed(self) -> bool:
        try:
            return self._files.read(METADATA).startswith(f'{{"{NOTICE}":'.encode())
        except FileNotFoundError:
            return False

    def _apply(self, record: Record, change: RecordedChange, contents: PackReader) -> None:
        files = self._root(record, change.root)
        if change.after is None:
            files.delete(change.path)
            return
        content = self._new_content(record, change, contents)
        if change.before is None:
            files.create(change.path, content)
        else:
            files.replace(change.path, content)

    def _new_content(self, record: Record, change: RecordedChange, contents: PackReader) -> bytes:
        assert change.after is not None
        if change.source is None:
            return contents.get(change.after)
        source = self._root(record, change.source.root)
        content = source.read(change.source.path, large=True)
        if not change.after.matches(content):
            expected = f"{change.after.size} bytes of other content"
            raise changed(source, change.source.path, expected, f"{len(content)} bytes")
        return content

    def _restore(
        self, record: Record, change: RecordedChange, backups: PackReader, is_made: bool
    ) -> None:
        files = self._root(record, change.root)
        if is_made and change.before is None:
            files.delete(change.path)
        elif is_made and change.before is not None:
            files.replace(change.path, backups.get(change.before))
        # Replacing the file has removed its crc, so the old one comes last.
        if change.crc is not None and crc_bytes(files, change.path) is None:
            files.create(crc_of(change.path), backups.get(change.crc))

    def _directories_to_make(self, plan: Plan) -> list[tuple[str, str]]:
        directories = {
            (change.root, directory): None  # in this order, and each once
            for change in plan.changes
            if change.action == "create"
            for directory in accumulate(change.path.split("/")[:-1], "{}/{}".format)
        }
        return [
            (root, directory)
            for root, directory in directories
            if self._place_of(plan, root).info(directory) is None
        ]

    def undoable(self, entry_id: str | None = None) -> JournalEntry:
        """Return the edit that `undo` would undo; EditError if a later edit must go first."""
        entries = self.entries()
        made = [entry for entry in entries if entry.state is not JournalState.UNDONE]
        if entry_id is None:
            if not made:
                problem = "the journal contains no edit that could be undone."
                raise EditError(self._files.url, problem)
            return made[-1]
        ids = [entry.id for entry in entries]
        if entry_id not in ids:
            raise EditError(
                self._files.url,
                f"there is no edit {entry_id!r} in the journal; known: {', '.join(ids) or 'none'}.",
            )
        for entry in made:
            if ids.index(entry.id) > ids.index(entry_id):
                raise EditError(
                    self._url(entry.id),
                    f"the {entry.command} was made after {entry_id} and depends on it. "
                    f"Undo {entry.id} first.",
                )
        return entries[ids.index(entry_id)]

    def _sweep(self) -> None:
        """Remove the directories of edits without a plan, which have changed nothing."""
        for entry_id in entry_ids(self._files):
            if self._files.info(f"{entry_path(entry_id)}/{PLAN_FILE}") is None:
                self._files.delete_tree(entry_path(entry_id))

    def _sweep_temporaries(self, record: Record) -> None:
        """Remove the temporary files that a killed process left while it wrote the plan's files."""
        touched = {("", ""): {METADATA, crc_of(METADATA)}}
        for change in record.changes:
            folder, _, name = change.path.rpartition("/")
            touched.setdefault((change.root, folder), set()).update({name, crc_of(name)})
        for (root, folder), names in touched.items():
            files = self._root(record, root)
            for info in files.list(folder):
                target = _TEMPORARY.fullmatch(info.name)
                if target is not None and target[1] in names:
                    files.delete(f"{folder}/{info.name}" if folder else info.name)

    def _drop_leftovers(self, entry_id: str) -> None:
        kept = "before-" if entry_state(self._files, entry_id) is JournalState.DONE else "-"
        for info in self._files.list(entry_path(entry_id)):
            if info.name.endswith(".pack") and not info.name.startswith(kept):
                self._files.delete(f"{entry_path(entry_id)}/{info.name}")

    def _record(self, entry_id: str) -> Record:
        path = f"{entry_path(entry_id)}/{PLAN_FILE}"
        try:
            raw = self._files.read(path)
        except FileNotFoundError:
            raise EditError(
                self._url(entry_id),
                "the journal contains no such edit. `epochal checkpoint undo --list` lists them.",
            ) from None
        return decode_plan(raw, Record, join_url(self._files.url, path))

    def _entry(self, entry_id: str) -> JournalEntry:
        return next(entry for entry in self.entries() if entry.id == entry_id)

    def _mark(self, entry_id: str, mark: str) -> None:
        self._files.replace(f"{entry_path(entry_id)}/{mark}", b"%d\n" % self._clock.now_ms())

    def _place_of(self, plan: Plan, root: str) -> Files:
        return plan.roots[root] if root else self._files

    def _root(self, record: Record, root: str) -> Files:
        """The place of a recorded change: the checkpoint, or one that the caller has named."""
        if not root:
            return self._files
        url = record.roots.get(root, "")
        if url not in self._places:
            option = "--sink" if root == SINK else "--other"
            raise EditError(
                self._files.url,
                f"this {record.command} also concerns files in {url}. A place that only a "
                f"checkpoint names is never opened. If it is yours, name it on the command line, "
                f"with {option} {shlex.quote(url)}.",
            )
        return self._places[url]

    def _url(self, entry_id: str) -> str:
        return join_url(self._files.url, entry_path(entry_id))


class _Steps:
    """Counts the steps that are done and reports the progress."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def one_more(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)


def _remove_if_empty(files: Files, directory: str) -> None:
    if files.info(directory) is not None and not any(True for _ in files.walk(directory)):
        files.delete_tree(directory)
