"""The cluster id with which a broker's storage is formatted."""

from __future__ import annotations

import uuid

import pytest

from epochal.testing import kafka


def test_no_cluster_id_looks_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    for first in range(256):
        drawn = uuid.UUID(bytes=bytes([first, *range(15)]))
        monkeypatch.setattr(uuid, "uuid4", lambda drawn=drawn: drawn)
        made = kafka._cluster_id()
        assert not made.startswith("-")
        assert len(made) == 22
