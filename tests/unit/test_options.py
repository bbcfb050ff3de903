from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

import pytest

from epochal.errors import OptionError
from epochal.options import OptionInfo, options_of, parse_duration, read_options


class Mode(StrEnum):
    FAST = "fast"
    SAFE = "safe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    topic_name: str
    max_rows: int = 10
    ratio: float | None = None
    eager: bool = False
    max_age: timedelta = timedelta(days=7)
    mode: Mode = Mode.SAFE
    columns: tuple[str, ...] = ()
    num_partitions: int = field(default=1, metadata={"also": ("numFetchPartitions",)})
    client: Mapping[str, str] = field(default_factory=dict, metadata={"prefix": "client."})


def read(**given: str) -> Sample:
    return read_options(Sample, {"topicname": "t", **given}, of="sample")


def test_names_are_camel_case_and_case_does_not_matter() -> None:
    assert read(MAXROWS="5", Eager="True") == Sample(topic_name="t", max_rows=5, eager=True)


def test_every_type_is_read_from_text() -> None:
    assert read(ratio="0.5", maxAge="100 milliseconds", mode="FAST", columns="a, b") == Sample(
        topic_name="t",
        ratio=0.5,
        max_age=timedelta(milliseconds=100),
        mode=Mode.FAST,
        columns=("a", "b"),
    )


def test_another_name_of_an_option_is_its_equal() -> None:
    assert read(numFetchPartitions="3").num_partitions == 3
    with pytest.raises(OptionError, match="numFetchPartitions and numPartitions are names of"):
        read(numFetchPartitions="3", numPartitions="3")


def test_options_with_a_prefix_are_passed_on_without_it() -> None:
    assert read(**{"client.security.protocol": "SSL"}).client == {"security.protocol": "SSL"}


def test_an_unknown_option_is_an_error_that_suggests_a_known_one() -> None:
    with pytest.raises(OptionError, match=r"no option 'maxRow'.*Did you mean maxRows\?"):
        read(maxRow="5")


def test_a_required_option_must_be_given() -> None:
    with pytest.raises(OptionError, match="sample: option topicName must be given"):
        read_options(Sample, {}, of="sample")


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("maxRows", "many", "sample: maxRows must be a whole number, not 'many'"),
        ("ratio", "x", "must be a number"),
        ("eager", "yes", "must be true or false, not 'yes'"),
        ("maxAge", "100", "a duration with its unit"),
        ("maxAge", "1 fortnight", "a duration with its unit"),
        ("maxAge", "", "a duration with its unit"),
        ("mode", "slow", "must be one of fast, safe, not 'slow'"),
    ],
)
def test_a_value_that_cannot_be_read_is_an_error_with_both_values(
    key: str, text: str, said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        read(**{key: text})


@pytest.mark.parametrize(
    ("text", "ms"),
    [("7d", 604_800_000), ("1 minute 30 seconds", 90_000), ("250us", 0.25), ("1.5 s", 1500)],
)
def test_durations_are_read_as_spark_writes_them(text: str, ms: float) -> None:
    assert parse_duration(text, "it") == timedelta(milliseconds=ms)


def test_options_tell_their_names_and_defaults() -> None:
    assert options_of(Sample)[:2] == [
        OptionInfo("topicName", (), True, "", False),
        OptionInfo("maxRows", (), False, "10", False),
    ]
    assert [(o.name, o.default) for o in options_of(Sample)][4:] == [
        ("maxAge", "604800000 ms"),
        ("mode", "safe"),
        ("columns", ""),
        ("numPartitions", "1"),
        ("client.", ""),
    ]
