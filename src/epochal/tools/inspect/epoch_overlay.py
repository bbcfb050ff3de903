"""Shows a checkpoint as if all state of a continuous query had Spark's names already. Read-only.

The newest state of a continuous query is in epoch files, from which Spark's files follow byte by
byte. The overlay adds those to what is on storage, so readers need to know Spark's files only. It
is a view of one moment: batches that the query adds later are not in it.

Note: what reads epoch files is imported only if there are some, so that `show` starts fast.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from epochal.checkpoint.entries import CommitLog, OffsetLog
from epochal.checkpoint.layout import COMMITS, EPOCHS, OFFSETS, OWN_KEY, STATE
from epochal.checkpoint.metadata_log import parse_batch_id
from epochal.errors import EditError, EpochalError
from epochal.files import Bounds, FileInfo, Files, join_url
from epochal.state.store.store_format import FORMATS

if TYPE_CHECKING:
    from epochal.epoch.epoch_files.state_chain import StateChain

TORN_AT_MOST = 3
"""How many of the newest entries of `offsets` may be unreadable."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The newest epoch that a continuous query has decided, and the files with its state."""

    epoch: int
    chain: StateChain


@dataclass(frozen=True, slots=True)
class EpochState:
    """Spark's files that follow from epoch files: by path, then the version that each makes."""

    contents: Mapping[str, bytes] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)


def newest_decided(files: Files, batch_id: int | None = None) -> Decided | None:
    """The newest decision of a continuous query, or that of `batch_id`, if it has epoch files.

    None if Spark wrote the batch, or ran it again: then its state is in Spark's files.
    """
    offsets = OffsetLog(files.at(OFFSETS), read_only=True)
    epoch = offsets.latest_batch_id() if batch_id is None else batch_id
    entry = None if epoch is None else offsets.get(epoch)
    if epoch is None or entry is None or OWN_KEY not in entry.extra:
        return None
    from epochal.epoch.manifest import is_finished_by_another, manifest_of

    manifest = manifest_of(entry, join_url(offsets.url, str(epoch)), epoch)
    commit = CommitLog(files.at(COMMITS), read_only=True).get(epoch)
    if manifest is None or manifest.chain is None or is_finished_by_another(manifest, commit):
        return None
    return Decided(epoch, manifest.chain)


def epoch_state(files: Files, chain: StateChain) -> EpochState:
    """Take the files of a chain apart into Spark's files."""
    from epochal.epoch.epoch_files.chain_files import read_chain

    contents: dict[str, bytes] = {}
    versions: dict[str, int] = {}
    for file in read_chain(files.at(EPOCHS), chain):
        for entry, data in file.items():
            path = f"{entry.key.path}/{entry.name}"
            contents[path], versions[path] = data, file.header.epoch + 1
    return EpochState(contents, versions)


def overlaid(files: Files) -> Files:
    """The checkpoint with the state of all decided epochs under Spark's names.

    The same `files` if there is nothing to add. Errors name the epoch file that cannot be read.
    """
    decided = newest_decided(files)
    return files if decided is None else _with_state(files, decided, decided.epoch)


def _with_state(files: Files, decided: Decided, newest: int) -> Files:
    """The checkpoint up to its newest batch, with the state of what was decided."""
    contents = {**_older(files, decided), **epoch_state(files, decided.chain).contents}

    def is_later(path: str) -> bool:
        folder, _, name = path.rpartition("/")
        batch_id = parse_batch_id(name) if folder in (OFFSETS, COMMITS) else None
        return batch_id is not None and batch_id > newest

    return OverlaidFiles(files, contents, is_later)


def missing_files(
    files: Files, decided: Decided, there: Container[str]
) -> Iterator[tuple[str, bytes, str]]:
    """Yield what Spark's files lack of the state after a decision: path, content, and a word on it.

    `there` are the paths that exist.
    """
    state = epoch_state(files, decided.chain)
    versions = state.versions
    snapshots = {path: path for path in versions}  # of the version that a delta makes
    for names in (store_format.files for store_format in FORMATS):
        for path in versions:
            if path.endswith(f".{names.delta}"):
                snapshots[path] = f"{path.removesuffix(names.delta)}{names.snapshot}"
    lacking = {version for path, version in versions.items() if snapshots[path] not in there}
    # Of the newest version of which every store has a snapshot, nothing before it is needed.
    base = max(set(versions.values()) - lacking, default=0)
    for path, version in sorted(versions.items(), key=lambda item: (item[1], item[0])):
        data = state.contents[path]
        if version > base and (path not in there or files.read(path, large=True) != data):
            yield path, data, f"version {version}"


@dataclass(frozen=True, slots=True)
class EpochView:
    """A checkpoint with the state in epoch files, and what is to be said of them."""

    files: Files
    unpublished: int | None = None
    """The newest batch, if Spark could not start after it, because its state is in epoch files."""
    broken: EpochalError | None = None
    """Why the state in epoch files cannot be read."""


def view_with_epochs(files: Files) -> EpochView:
    """Show the state in epoch files under Spark's names, as far as it can be read."""
    try:
        batch_ids = sorted(OffsetLog(files.at(OFFSETS), read_only=True).batch_ids(), reverse=True)
    except (EpochalError, OSError):
        return EpochView(files)
    decided = None
    # A torn entry hides only the state of its own epoch.
    for batch_id in batch_ids[:TORN_AT_MOST]:
        with suppress(EpochalError, OSError):
            decided = newest_decided(files, batch_id)
            break
    if decided is None:
        return EpochView(files)
    try:
        there = {path for path, _ in files.walk(STATE)}
        is_behind = any(missing_files(files, decided, there))
        shown = _with_state(files, decided, batch_ids[0])
        return EpochView(shown, decided.epoch if is_behind else None)
    except EpochalError as error:
        return EpochView(files, broken=error)


def _older(files: Files, decided: Decided) -> dict[str, bytes]:
    """What retained decisions before the newest chain need, as far as it is still there."""
    from epochal.epoch.epoch_files.chain_files import in_parallel
    from epochal.epoch.epoch_files.state_chain import EpochRun, StateChain
    from epochal.epoch.manifest import manifest_of

    log = OffsetLog(files.at(OFFSETS), read_only=True)
    epochs = [epoch for epoch in log.batch_ids() if epoch < decided.chain.published]

    def read(epoch: int) -> Mapping[str, bytes]:
        try:
            entry = log.get(epoch)
            manifest = None if entry is None else manifest_of(entry, log.url, epoch)
            if manifest is None or manifest.chain is None or not manifest.chain.runs:
                return {}
            own = manifest.chain.runs[-1]
            run = EpochRun(epoch, epoch, own.attempt, own.checksums)
            return epoch_state(files, StateChain(epoch, (run,))).contents
        except EpochalError:
            return {}  # beyond the retention, and deleted

    return {path: data for files in in_parallel(read, epochs) for path, data in files.items()}


class OverlaidFiles:
    """Files with some more in memory, and without those whose path `is_hidden`."""

    def __init__(
        self,
        files: Files,
        contents: Mapping[str, bytes],
        is_hidden: Callable[[str], bool],
        prefix: str = "",
    ) -> None:
        self._files, self._contents = files, contents
        self._is_hidden, self._prefix = is_hidden, prefix

    @property
    def url(self) -> str:
        return self._files.url

    @property
    def bounds(self) -> Bounds:
        return self._files.bounds

    def at(self, path: str) -> Files:
        if not path:
            return self
        return OverlaidFiles(self._files.at(path), self._contents, self._is_hidden, self._key(path))

    def read(self, path: str, *, large: bool = False) -> bytes:
        key = self._key(path)
        if key in self._contents:
            return self._contents[key]
        if self._is_hidden(key):
            raise FileNotFoundError(2, "No such file", join_url(self.url, path))
        return self._files.read(path, large=large)

    def info(self, path: str) -> FileInfo | None:
        key = self._key(path)
        if key in self._contents:
            return FileInfo(path.rpartition("/")[2], False, len(self._contents[key]), 0)
        if any(other.startswith(f"{key}/") for other in self._contents):
            return FileInfo(path.rpartition("/")[2], True, 0, 0)
        return None if self._is_hidden(key) else self._files.info(path)

    def list(self, path: str = "") -> list[FileInfo]:
        key = self._key(path)
        start = f"{key}/" if key else ""
        listed = self._files.list(path)
        infos = {info.name: info for info in listed if not self._is_hidden(start + info.name)}
        for file_name, data in self._below(key):
            name, slash, _ = file_name.partition("/")
            infos[name] = FileInfo(name, bool(slash), 0 if slash else len(data), 0)
        return [infos[name] for name in sorted(infos)]

    def walk(self, path: str = "") -> Iterator[tuple[str, FileInfo]]:
        infos = {
            name: info
            for name, info in self._files.walk(path)
            if not self._is_hidden(self._key(name))
        }
        start = f"{path}/" if path else ""
        for name, data in self._below(self._key(path)):
            infos[start + name] = FileInfo(name.rpartition("/")[2], False, len(data), 0)
        yield from sorted(infos.items())

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise EditError(self.url, "cannot be changed through a view that is read-only")

    create_atomic = create = replace = make_dirs = delete = delete_tree = _refuse

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    def _below(self, key: str) -> Iterator[tuple[str, bytes]]:
        start = f"{key}/" if key else ""
        for name, data in self._contents.items():
            if name.startswith(start):
                yield name[len(start) :], data
