"""Versions share their rows and never see each other's changes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from epochal.state.store import versions
from epochal.state.store.versions import EMPTY, Draft, FrozenVersion, memory_bytes


def first_byte(keys: Sequence[bytes]) -> list[bytes]:
    return [key[:1] for key in keys]


def version(**rows: str) -> FrozenVersion:
    return FrozenVersion.of({key.encode(): value.encode() for key, value in rows.items()})


def test_a_draft_without_changes_freezes_into_its_parent() -> None:
    parent = version(a="1")
    assert parent.draft().freeze() is parent


def test_many_keys_are_read_in_their_order_with_none_for_missing_ones() -> None:
    draft = version(a="1", b="2").draft()
    assert draft.get_many([b"b", b"x", b"a", b"b"]) == [b"2", None, b"1", b"2"]
    draft.put_many([b"x", b"b", b"x"], [b"7", b"8", b"9"])
    assert draft.get_many([b"b", b"x", b"a"]) == [b"8", b"9", b"1"]


def test_an_iterator_shows_the_store_as_it_was_when_it_was_made() -> None:
    draft = version(a="1", b="2").draft()
    draft.put(b"c", b"3")
    rows = draft.items()
    draft.put(b"d", b"4")
    draft.put(b"a", b"9")
    draft.remove(b"b")
    assert dict(rows) == {b"a": b"1", b"b": b"2", b"c": b"3"}


def test_a_prefix_finds_its_rows_in_every_layer() -> None:
    draft = version(a1="1", a2="2", b1="3").draft()
    draft.put(b"a3", b"4")
    frozen = draft.freeze()
    draft = frozen.draft()
    draft.put(b"a4", b"5")
    draft.remove(b"a1")
    assert dict(draft.with_prefix(b"a", first_byte)) == {b"a2": b"2", b"a3": b"4", b"a4": b"5"}
    assert draft.with_prefix(b"z", first_byte) == []
    draft.put(b"a5", b"6")
    draft.put_many([b"a6", b"a2"], [b"7", b"8"])
    draft.remove(b"a3")
    assert dict(draft.with_prefix(b"a", first_byte)) == {
        b"a2": b"8",
        b"a4": b"5",
        b"a5": b"6",
        b"a6": b"7",
    }


def test_memory_counts_what_versions_share_once() -> None:
    first = FrozenVersion.of({f"{n:08d}".encode(): bytes(16) for n in range(1000)})
    draft = first.draft()
    draft.put(b"new", bytes(16))
    second = draft.freeze()
    alone = memory_bytes([second])
    assert alone > memory_bytes([first]) > 1000 * (8 + 16)
    assert memory_bytes([first, second]) < alone * 1.1
    assert memory_bytes([]) == 0


@pytest.mark.parametrize("seed", range(30), ids=lambda seed: f"seed{seed}")
def test_any_sequence_of_changes_equals_a_dictionary(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(versions, "FLATTEN_ABOVE_ROWS", rng.choice([0, 2, 5, 1024]))
    frozen: list[tuple[FrozenVersion, dict[bytes, bytes]]] = [(EMPTY, {})]
    for _ in range(40):
        start, rows = rng.choice(frozen)
        draft, model = Draft(start), dict(rows)
        for _ in range(rng.randrange(12)):
            key, value = rng.choice(b"abcdefgh").to_bytes(1, "big") + b"x", rng.randbytes(3)
            if rng.random() < 0.6:
                draft.put(key, value)
                model[key] = value
            else:
                assert draft.remove(key) is (model.pop(key, None) is not None)
            if rng.random() < 0.2:
                found = draft.with_prefix(key[:1], first_byte)
                assert dict(found) == {k: v for k, v in model.items() if k[:1] == key[:1]}
        assert dict(draft.items()) == model
        assert len(draft) == len(model)
        frozen.append((draft.freeze(), model))
    for version_found, model in frozen:
        assert dict(version_found.items()) == model
        assert len(version_found) == len(model)
        assert {key: version_found.get(key) for key in model} == model
        exact = FrozenVersion.of(dict(model)).row_bytes
        assert version_found.row_bytes == exact
