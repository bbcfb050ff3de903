"""Schemas of values: options, secrets that stay hidden, references, and headers."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable

import pytest
from tests.unit.files.http_stub import Reply, Request, http_stub

from epochal.connectors.schema_registry.registry_client import (
    MOST_REFERENCES,
    RegistryClient,
    header,
    message_indices,
    registry_settings,
    schema_id,
)
from epochal.connectors.schema_registry.value_schemas import (
    SchemaRegistryOptions,
    ValueFormat,
    split_registry_options,
    subject_of,
)
from epochal.errors import OptionError, PayloadError, SchemaRegistryError


def test_options_about_values_are_taken_from_those_of_kafka() -> None:
    found, rest = split_registry_options(
        {
            "kafka.bootstrap.servers": "b:1",
            "VALUEFORMAT": "Avro",
            "schemaregistry.URL": "http://r",
            "topic": "t",
        }
    )
    assert found.value_format is ValueFormat.AVRO
    assert registry_settings(found.schema_registry).urls == ("http://r",)
    assert rest == {"kafka.bootstrap.servers": "b:1", "topic": "t"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subject": "s"}, "subject has no effect without valueFormat"),
        ({"schemaRegistry.url": "http://r"}, "schemaRegistry. has no effect without valueFormat"),
        ({"autoRegister": "false"}, "autoRegister has no effect without valueFormat"),
        ({"valueFormat": "json"}, "must be one of avro, protobuf, not 'json'"),
        ({"valueFormat": "avro", "valueMessage": "M"}, "valueMessage has no effect"),
        (
            {"valueFormat": "avro", "valueSchema": "{}", "schemaVersion": "1"},
            "both say which schema counts",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        split_registry_options(given)


def test_the_subject_follows_the_topic_unless_it_is_given() -> None:
    options = SchemaRegistryOptions(value_format=ValueFormat.AVRO)
    assert subject_of(options, "orders") == "orders-value"
    named = SchemaRegistryOptions(value_format=ValueFormat.AVRO, subject="s")
    assert subject_of(named, None) == "s"
    with pytest.raises(OptionError, match="Set the option subject"):
        subject_of(options, None)


def test_credentials_are_shown_nowhere() -> None:
    found = registry_settings({"url": "https://me:secret@r:8081/base/,http://other"})
    assert found.urls == ("https://r:8081/base", "http://other")
    assert found.authorization == "Basic bWU6c2VjcmV0"
    assert "secret" not in repr(found) + found.shown
    assert "bWU6c2VjcmV0" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found
    given = {"valueFormat": "avro", "schemaRegistry.basic.auth.user.info": "me:secret"}
    assert "secret" not in repr(split_registry_options(given)[0])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "schemaRegistry.url must be"),
        ({"url": "r:8081"}, "schemaRegistry.url must be"),
        ({"url": "ftp://r"}, "schemaRegistry.url must be"),
        ({"url": "http://r", "urls": "x"}, "no option schemaRegistry.urls. Did you mean url?"),
        ({"url": "http://r", "request.timeout.ms": "soon"}, "must be a whole number"),
    ],
)
def test_settings_that_are_wrong_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        registry_settings(given)


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


def test_a_header_is_a_zero_and_four_bytes_of_id() -> None:
    assert header(1) == b"\x00\x00\x00\x00\x01"
    assert header(0x01020304) == b"\x00\x01\x02\x03\x04"
    assert schema_id(b"\x00\x01\x02\x03\x04rest") == 0x01020304


@pytest.mark.parametrize(
    ("indices", "written"),
    [
        ((0,), b"\x00"),
        ((1,), b"\x02\x02"),
        ((0, 0), b"\x04\x00\x00"),
        ((2, 1, 0), b"\x06\x04\x02\x00"),
        ((100,), b"\x02\xc8\x01"),
    ],
)
def test_a_message_is_named_by_its_place_in_the_file(
    indices: tuple[int, ...], written: bytes
) -> None:
    assert header(7, indices) == b"\x00\x00\x00\x00\x07" + written
    value = header(7, indices) + b"payload"
    found, begin = message_indices(value)
    assert (found, value[begin:]) == (indices, b"payload")


@pytest.mark.parametrize("value", [b"", b"\x00\x00\x00\x01", b"\x01\x00\x00\x00\x01{}", b'{"a":1}'])
def test_other_values_are_refused_with_their_first_bytes(value: bytes) -> None:
    with pytest.raises(PayloadError, match="not written with a schema registry"):
        schema_id(value)


@pytest.mark.parametrize(
    "indices", [b"", b"\x04\x00", b"\xff\xff\xff\xff\xff\xff", b"\x01", b"\xfe\x01\x00"]
)
def test_broken_indices_are_refused(indices: bytes) -> None:
    with pytest.raises(PayloadError):
        message_indices(b"\x00\x00\x00\x00\x01" + indices)
