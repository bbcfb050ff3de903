"""A Delta table: every commit of a streaming query has the query's id and the batch number."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from epochal.connectors.delta.delta_table import LOG, SCHEMES, STORAGE, import_deltalake
from epochal.errors import StorageError
from epochal.files import Files, join_url, scheme_of
from epochal.tools.switch.compare_rows import Row

_COMMIT = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, slots=True)
class EpochCommit:
    epoch: int
    removes: bool
    """Whether it removes files."""


class DeltaOutput:
    """A table at the versions in which a query's epochs ended. Its parts are data files."""

    by_epoch = True

    def __init__(self, files: Files, query_id: str) -> None:
        self._files, self._query_id = files, query_id
        self._versions = epochs_by_version(files, query_id)
        self._fragments: dict[str, tuple[Any, Any]] = {}
        self._read: dict[int, frozenset[str]] = {}

    @property
    def name(self) -> str:
        return f"Delta table {self._files.url}"

    @property
    def doubt(self) -> str:
        return "" if self._versions else f"its log has no commit of query {self._query_id}"

    def parts_at(self, epoch: int) -> frozenset[str] | None:
        version = version_after(self._versions, epoch)
        if version is None or version < 0:
            return frozenset()
        if version not in self._read:
            self._read[version] = self._load(version)
        return self._read[version]

    def replaces(self, epochs: range) -> bool:
        return any(each.removes for each in self._versions.values() if each.epoch in epochs)

    def rows(self, parts: Iterable[str]) -> Iterator[Row]:
        for path in sorted(parts):
            fragment, schema = self._fragments[path]
            yield from fragment.to_table(schema=schema).to_pylist()

    def _load(self, version: int) -> frozenset[str]:
        deltalake, scheme = import_deltalake(), SCHEMES.get(scheme_of(self._files.url), "")
        rest = self._files.url.partition(":")[2]
        uri = f"{scheme}:{rest}" if scheme else self._files.url
        try:
            table = deltalake.DeltaTable(
                uri, version=version, storage_options=STORAGE if scheme else None
            )
            dataset = table.to_pyarrow_dataset()
        except (deltalake.exceptions.DeltaError, OSError) as error:
            url = join_url(self._files.url, LOG)
            raise StorageError(url, f"version {version} cannot be read: {error}") from error
        found = {fragment.path: fragment for fragment in dataset.get_fragments()}
        self._fragments |= {path: (each, dataset.schema) for path, each in found.items()}
        return frozenset(found)


def epochs_by_version(files: Files, query_id: str) -> dict[int, EpochCommit]:
    """The epoch that each version of the table brought, for one query; ascending."""
    found: dict[int, EpochCommit] = {}
    for info in files.list(LOG):
        if (named := _COMMIT.fullmatch(info.name)) is None:
            continue
        raw = files.read(f"{LOG}/{info.name}")
        if query_id.encode() not in raw:
            continue
        actions = [json.loads(line) for line in raw.splitlines() if line.strip()]
        marks = [each["txn"] for each in actions if each.get("txn")]
        for mark in marks:
            if mark.get("appId") == query_id:
                removes = any(each.get("remove") for each in actions)
                found[int(named[1])] = EpochCommit(int(mark["version"]), removes)
    return dict(sorted(found.items()))


def version_after(versions: Mapping[int, EpochCommit], epoch: int) -> int | None:
    """The version of the table after an epoch; None if the query has written nothing.

    An epoch without rows makes no version, so it is that of the last epoch before it that has one.
    """
    up_to = [version for version, each in versions.items() if each.epoch <= epoch]
    if up_to:
        return max(up_to)
    return min(versions) - 1 if versions else None
