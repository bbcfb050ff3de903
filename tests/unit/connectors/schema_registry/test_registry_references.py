"""Schemas that refer to others: they end, whatever a registry answers."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tests.unit.files.http_stub import Reply, Request, http_stub

from epochal.connectors.schema_registry.registry_client import (
    MOST_REFERENCES,
    RegistryClient,
    registry_settings,
)
from epochal.errors import SchemaRegistryError


def schema(*names: str) -> Reply:
    references = [{"name": name, "subject": name, "version": 1} for name in names]
    return Reply(200, json.dumps({"schema": "{}", "references": references}).encode())


def names_behind(answer: Callable[[str], Reply]) -> list[str]:
    """Ask a registry that answers by subject; the names of the schemas that the first one needs."""

    def serve(request: Request) -> Reply:
        return answer(request.path.split("/")[2] if "subjects" in request.path else "")

    with http_stub(serve) as address:
        client = RegistryClient(registry_settings({"url": f"http://{address}"}))
        return [name for name, _ in client.schema(1).references]


def test_what_several_schemas_need_is_asked_for_once_and_comes_first() -> None:
    needs = {"": ("a", "b"), "a": ("c",), "b": ("c",), "c": ()}
    assert names_behind(lambda subject: schema(*needs[subject])) == ["c", "a", "b"]


def test_schemas_that_refer_to_each_other_in_a_circle_are_an_error() -> None:
    needs = {"": ("a",), "a": ("b",), "b": ("a",)}
    with pytest.raises(SchemaRegistryError, match="refer to each other in a circle, at a"):
        names_behind(lambda subject: schema(*needs[subject]))


def test_schemas_that_never_end_are_an_error() -> None:
    with pytest.raises(SchemaRegistryError, match=f"more than {MOST_REFERENCES} times"):
        names_behind(lambda subject: schema(f"{subject}x"))
