"""Whether the lineage of a RocksDB changelog leads through files that exist."""

from __future__ import annotations

from epochal.state.files.rocksdb_changelog import Changelog, LineageItem
from epochal.state.store.rocksdb_directory import file_name
from epochal.tools.inspect.listing import Directories, Directory
from epochal.tools.inspect.state_listing import StoreListing, operators_of
from epochal.tools.verify.check_rocksdb import lineage_rules


def listing_of(*names: str) -> StoreListing:
    folders = {
        "": Directory(("state",)),
        "state": Directory(("0",)),
        "state/0": Directory(("0",)),
        "state/0/0": Directory((), names),
    }
    return operators_of(Directories(folders))[0].stores[0]


def item(version: int) -> LineageItem:
    return LineageItem(version, f"id{version}")


def test_verify_reports_a_changelog_that_the_lineage_names_and_that_is_gone() -> None:
    store = listing_of("1_id1.changelog", "3_id3.changelog")
    (found,) = lineage_rules(store, item(3), Changelog(3, (item(1), item(2)), ()))
    assert found.path == "state/0/0/2_id2.changelog"


def test_verify_reports_a_lineage_that_starts_at_a_snapshot_which_is_gone() -> None:
    names = [file_name(item(each), "changelog") for each in (3, 4)]
    changelog = Changelog(3, (item(3),), ())
    (found,) = lineage_rules(listing_of(*names), item(4), changelog)
    assert found.path == "state/0/0/4_id4.changelog"
    assert "1..2" in found.message
    assert not list(lineage_rules(listing_of(*names, "3_id3.zip"), item(4), changelog))
