from __future__ import annotations

import pytest

from epochal.dashboard.query_names import group_of, names_of, place_of, status_of


def test_a_query_is_called_after_its_directory() -> None:
    assert names_of(["/data/orders", "s3://bucket/team/clicks/"]) == {
        "/data/orders": "orders",
        "s3://bucket/team/clicks/": "clicks",
    }


@pytest.mark.parametrize("general", ["checkpoint", "_checkpoint", "checkpoints", "Checkpoint"])
def test_a_general_name_is_left_out(general: str) -> None:
    url = f"/data/orders/{general}"
    assert names_of([url]) == {url: "orders"}
    assert place_of(url) == "/data"


def test_names_that_are_the_same_get_their_parents() -> None:
    urls = ["/a/orders/checkpoint", "/b/orders/checkpoint", "/b/clicks"]
    assert list(names_of(urls).values()) == ["a/orders", "b/orders", "clicks"]


def test_paths_that_differ_only_far_above_still_get_different_names() -> None:
    urls = ["/x/team/orders", "/y/team/orders", "/orders"]
    assert list(names_of(urls).values()) == ["x/team/orders", "y/team/orders", "orders"]


def test_a_checkpoint_at_the_root_keeps_its_name() -> None:
    assert names_of(["/checkpoint"]) == {"/checkpoint": "checkpoint"}
    assert place_of("/checkpoint") == "/"


@pytest.mark.parametrize(
    ("state", "health", "status", "group"),
    [
        ("failed", "healthy", "failed", "attention"),
        ("lost", "unhealthy", "lost", "attention"),
        ("running", "unhealthy", "unhealthy", "attention"),
        ("checkpoint", "unreadable", "unreadable", "attention"),
        ("checkpoint", "missing", "unreadable", "attention"),
        ("running", "missing", "unreadable", "attention"),
        ("failed", "missing", "failed", "attention"),
        ("stopped", "missing", "missing", "idle"),
        ("lost", "missing", "missing", "idle"),
        ("running", "unknown", "running", "running"),
        ("running", "healthy", "running", "running"),
        ("active", "healthy", "active", "running"),
        ("stopped", "healthy", "healthy", "idle"),
        ("checkpoint", "healthy", "healthy", "idle"),
        ("checkpoint", "unknown", "unknown", "unchecked"),
    ],
)
def test_what_needs_attention_comes_before_what_the_query_does(
    state: str, health: str, status: str, group: str
) -> None:
    assert status_of(state, health) == status
    assert group_of(status) == group
