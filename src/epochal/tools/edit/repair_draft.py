"""Collects the changes of a repair while the findings are handled one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from epochal.checkpoint.layout import COMMITS, SINK_LOG
from epochal.checkpoint.restart import CODEC
from epochal.errors import EditError, EpochalError
from epochal.state.files.codecs import compress, decompress
from epochal.state.files.rocksdb_changelog import LineageItem, with_lineage
from epochal.state.store.rocksdb_directory import file_name
from epochal.tools.edit.edit_file_log import (
    SinkSurvey,
    rewind_sink,
    skipped_by_tables,
    skipped_if_planned_again,
    skipped_with_state_lost,
)
from epochal.tools.edit.edit_plan import Change, Tree, crc_of
from epochal.tools.edit.rewind import delete_state_after, possible_batches
from epochal.tools.edit.survey import Survey, delete_batches_after, rocks_directory
from epochal.tools.inspect.epoch_overlay import OverlaidFiles
from epochal.tools.inspect.state_listing import StoreListing
from epochal.tools.verify.findings import Finding
from epochal.tools.verify.remedies import DAMAGED, batch_to_run_again, needs
from epochal.wording import span


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOptions:
    """What the caller allows a repair to do."""

    query_id: str
    """The id to write if the checkpoint has lost its query id."""
    codes: Collection[str] = ()
    """Repair only findings with these codes; empty repairs everything that is safe to repair."""
    may_go_back: bool = False
    """Whether committed batches may be dropped if nothing else helps."""


class RepairDraft:
    def __init__(
        self,
        surveyed: Survey,
        findings: Iterable[Finding],
        options: RepairOptions,
        sink: SinkSurvey | None = None,
        emptied: Collection[str] = (),
    ) -> None:
        self.surveyed, self.options, self.sink = surveyed, options, sink
        self.findings = list(findings)
        self.warnings: list[str] = []
        self.emptied: list[str] = []
        self._changes: dict[tuple[str, str], Change] = {}
        self._directories = {each.path for each in self.findings if each.code == "LOG_NAME_TAKEN"}
        self._directories |= set(emptied)
        self._is_hindered = False

    def add(self, *changes: Change) -> None:
        """Add changes. If two changes concern the same file, its deletion wins."""
        for change in changes:
            if change.path in self._directories:
                self._is_hindered = True
            elif change.place not in self._changes or change.after is None:
                self._changes[change.place] = change

    def is_taken(self, path: str) -> bool:
        """Whether a directory has this name, so that no file can be written there yet."""
        return path in self._directories

    def take_hindered(self) -> bool:
        """Whether a change was left out since the last call, because a directory has its name."""
        was, self._is_hindered = self._is_hindered, False
        return was

    def remove(self, path: str, why: str) -> None:
        tree = self.tree_of(path)
        if path in tree:
            self.add(tree.delete(path, why))

    def tree_of(self, path: str) -> Tree:
        """The tree that the path of a finding belongs to: the checkpoint's or the sink's."""
        if self.sink is not None and path.startswith(f"{SINK_LOG}/"):
            return self.sink.tree
        return self.surveyed.tree

    def changes(self) -> tuple[Change, ...]:
        """Return all changes, except those of hidden crc files whose own file changes too."""
        crcs = {(root, crc_of(path)) for root, path in self._changes}
        return tuple(each for place, each in self._changes.items() if place not in crcs)

    def go_back(self, below: int | None, why: str) -> str | None:
        """Drop all batches after the newest one that can be restarted, below `below` if given.

        Returns why this is not possible or not allowed, or None.
        """
        surveyed = self.surveyed
        possible = [
            batch_id
            for batch_id in possible_batches(surveyed)
            if (below is None or batch_id < below) and not self._needs_broken_state(batch_id)
        ]
        if not possible:
            return (
                "no batch is left from which a restart could continue: restore files from a backup"
            )
        to_batch = possible[-1]
        committed = [each for each in surveyed.listing.commits.ids if each > to_batch]
        dropped = span(committed[0], committed[-1], "batch") if committed else ""
        if committed and not self.options.may_go_back:
            return (
                f"this would drop the committed {dropped}: run `epochal checkpoint rewind "
                f"CHECKPOINT --to-batch {to_batch} --sink OUTPUT`, or repair with --rewind"
            )
        if self.sink is not None:
            try:
                self.add(*rewind_sink(self.sink, to_batch))
            except EditError as error:
                return f"the sink cannot go back with the checkpoint: {error}"
        self.add(*delete_state_after(surveyed, to_batch + 1))
        self.add(*delete_batches_after(surveyed.tree, to_batch, why))
        if committed:
            self.warnings.append(
                f"{dropped.capitalize()} {'was' if len(committed) == 1 else 'were'} committed and "
                f"will run again: a sink that does not recognize batch ids gets duplicate rows."
            )
            if self.sink is None:
                self.warnings.append(skipped_by_tables(surveyed.url, to_batch))
        else:
            self.warnings.append(
                f"The batches after {to_batch} were not committed. Spark will plan them again, "
                f"with new offsets."
            )
            if self.sink is None:
                self.warnings.append(skipped_if_planned_again(surveyed.url, to_batch))
        return None

    def run_again(self, batch_id: int) -> str | None:
        """Take back the commit of the newest batch, so that it runs again with the same offsets.

        A file sink skips a batch that its log has, and then Spark computes no state for it either.
        If state of the batch is lost, the sink must forget the batch. A Delta table does the same,
        and cannot forget, so that is a warning. Returns why the batch cannot run again.
        """
        surveyed = self.surveyed
        if batch_id and (missing := surveyed.missing_state(batch_id - 1)) is not None:
            return f"the batch cannot run again: {missing} is missing"
        is_damaged = self._has_damaged_state(batch_id)
        if is_damaged or surveyed.missing_state(batch_id) is not None:
            try:
                if self.sink is not None:
                    self.add(*rewind_sink(self.sink, batch_id - 1))
                else:
                    self.warnings.append(skipped_with_state_lost(surveyed.url, batch_id))
            except EditError as error:
                return f"the sink cannot go back with the checkpoint: {error}"
        if is_damaged:
            self.add(*delete_state_after(surveyed, batch_id))
        self.remove(f"{COMMITS}/{batch_id}", "unreadable: the batch runs again")
        self.warnings.append(f"Batch {batch_id} runs again, with the same offsets.")
        return None

    def replay_instead(self, path: str) -> bool:
        """Let changelogs replace the broken snapshots of a store that `path` belongs to.

        Spark takes an older snapshot if there is no newer one, and replays all changelogs after it.
        With unique ids it looks for a snapshot only in the lineage of the newest changelog, which
        begins at the broken one, so that lineage is written again.
        """
        surveyed, version = self.surveyed, self.surveyed.listing.restart_version
        store = surveyed.store_of(path)
        if store is None or version - 1 not in surveyed.offsets:
            return False
        broken = self._broken_snapshots(store)
        files = OverlaidFiles(surveyed.files, {}, broken.__contains__)
        directory = rocks_directory(surveyed, store, version - 1, files)
        target = LineageItem(version, surveyed.unique_id(store, version - 1))
        name = f"{store.path}/{file_name(target, 'changelog')}"
        try:
            chain = directory.back_to_snapshot(target)
            damaged = {each.path for each in self.findings}
            if any(f"{store.path}/{file_name(each, 'changelog')}" in damaged for each in chain[1:]):
                return False
            if target.unique_id and directory.changelog(target).lineage != chain[:-1]:
                codec = surveyed.offsets[version - 1].conf.get(CODEC, "lz4")
                raw = decompress(files.read(name, large=True), codec, source=name)
                content = compress(with_lineage(raw, chain[:-1], name), codec)
                self.add(surveyed.tree.write(name, content, "its lineage begins further back"))
                self.remove(f"{name}.crc", "checksum of what was written again")
        except EpochalError:
            return False
        for each in sorted(broken):
            self.remove(each, "its changelogs have the same content")
            self.remove(f"{each}.crc", "checksum of a removed snapshot")
        return True

    def _broken_snapshots(self, store: StoreListing) -> set[str]:
        """The snapshots that cannot be read. A broken data file is that of all later ones."""
        inside = f"{store.path}/"
        paths = {each.path for each in self.findings if each.path.startswith(inside)}
        first = [
            each.version
            for each in self.findings
            if each.path.startswith(f"{inside}SSTs/") and each.version is not None
        ]
        return {
            inside + name
            for version, names in store.zips.items()
            for name in names
            if inside + name in paths or version >= min(first, default=version + 1)
        }

    def state_to_write_again(self, found: Finding) -> int | None:
        """The batch that runs again and writes the damaged file of a finding anew, if there is one.

        Nothing else needs the file, so it can go.
        """
        store, listing = self.surveyed.store_of(found.path), self.surveyed.listing
        batch_id = None if store is None else batch_to_run_again(listing, store, found)
        if batch_id in listing.commits.ids and not self.runs_again(batch_id):
            return None  # its unreadable commit stays
        return batch_id

    def runs_again(self, batch_id: int | None) -> bool:
        """Whether the commit of the batch is taken back."""
        change = self._changes.get((self.surveyed.tree.root, f"{COMMITS}/{batch_id}"))
        return change is not None and change.after is None

    @property
    def broken_state(self) -> set[str]:
        """The damaged state files, on which no version may depend."""
        return {
            each.path
            for each in self.findings
            if each.code in ("STATE_FILE_UNREADABLE", "STATE_ROW_CHECKSUM", "STATE_ROW_INVALID")
        }

    def _has_damaged_state(self, batch_id: int) -> bool:
        """Whether a file of the state after a batch is damaged."""
        return any(
            each.path.startswith(f"{store.path}/") and needs(store, batch_id + 1, each)
            for store in self.surveyed.stores_at(batch_id)
            for each in self.findings
            if each.code in DAMAGED
        )

    def _needs_broken_state(self, batch_id: int) -> bool:
        broken = self.broken_state
        return any(
            store.needs(batch_id + 1, path.removeprefix(f"{store.path}/"))
            for store in self.surveyed.stores_at(batch_id)
            for path in broken
            if path.rpartition("/")[0] == store.path
        )
