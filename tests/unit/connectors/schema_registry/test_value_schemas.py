"""Options about schemas of values: which go together, and that secrets stay hidden."""

from __future__ import annotations

import pickle

import pytest

from epochal.connectors.schema_registry.registry_client import registry_settings
from epochal.connectors.schema_registry.value_schemas import (
    SchemaRegistryOptions,
    ValueFormat,
    split_registry_options,
    subject_of,
)
from epochal.errors import OptionError


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
