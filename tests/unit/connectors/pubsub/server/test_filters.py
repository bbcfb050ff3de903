"""The filter language: which messages pass, and which filters are refused."""

from __future__ import annotations

import pytest

from epochal.connectors.pubsub.server.filters import parse_filter
from epochal.errors import PubSubRefusedError

MESSAGE = {"domain": "com", "lang": "en", "a b": 'say "hi"', "empty": ""}


def passes(text: str) -> bool:
    predicate = parse_filter(text)
    assert predicate is not None
    return predicate(MESSAGE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("attributes:domain", True),
        ("attributes:missing", False),
        ("attributes:empty", True),
        ('attributes:"a b"', True),
        ('attributes.domain = "com"', True),
        ('attributes.domain="org"', False),
        ('attributes.domain = "COM"', False),
        ('attributes.missing = ""', False),
        ('attributes.domain != "org"', True),
        ('attributes.domain != "com"', False),
        ('attributes.missing != "x"', True),
        ('hasPrefix(attributes.domain, "co")', True),
        ('hasPrefix(attributes.domain, "o")', False),
        ('hasPrefix(attributes.missing, "")', False),
        ('attributes."a b" = "say \\"hi\\""', True),
        ('attributes.lang = "\\x65\\u006e"', True),
        ('attributes.lang = "\\145n"', True),
        ("NOT attributes:domain", False),
        ("NOT attributes:missing", True),
        ("-attributes:missing", True),
        ("NOT NOT attributes:domain", True),
        ('attributes:domain AND attributes.lang = "en"', True),
        ("attributes:domain AND attributes:missing", False),
        ("attributes:missing OR attributes:domain", True),
        ("attributes:missing OR attributes:other", False),
        ("attributes:missing OR attributes:other OR attributes:lang", True),
        ("(attributes:missing OR attributes:lang) AND attributes:domain", True),
        ("NOT (attributes:missing OR attributes:lang)", False),
        ("((attributes:domain))", True),
        ("  attributes:domain\n", True),
    ],
)
def test_a_filter_decides_by_attributes_alone(text: str, expected: bool) -> None:
    assert passes(text) is expected


@pytest.mark.parametrize("text", ["", "   "])
def test_an_empty_filter_passes_every_message(text: str) -> None:
    assert parse_filter(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "hello(((",
        "attributes",
        "attributes:",
        "attributes.domain",
        "attributes.domain = com",
        'attributes.domain > "com"',
        'attributes.domain = "com',
        'data = "x"',
        "(attributes:domain",
        "attributes:domain)",
        "attributes:domain attributes:lang",
        "attributes:domain AND",
        "NOT",
        "attributes:a AND attributes:b OR attributes:c",
        "hasPrefix(attributes:domain, 'x')",
        'hasPrefix("x", attributes.domain)',
        "attributes:a & attributes:b",
        "(" * 120 + "attributes:a" + ")" * 120,
    ],
)
def test_a_malformed_filter_is_refused_as_an_invalid_argument(text: str) -> None:
    with pytest.raises(PubSubRefusedError) as refused:
        parse_filter(text)
    assert refused.value.code == "INVALID_ARGUMENT"


def test_a_filter_has_at_most_256_bytes() -> None:
    assert parse_filter(f'attributes.k = "{"x" * 239}"') is not None
    with pytest.raises(PubSubRefusedError, match="257 bytes"):
        parse_filter(f'attributes.k = "{"x" * 240}"')
