"""What a source or a sink must be described by: `epochal.connectors.registry` has the table.

A format of your own needs no entry there. Pass its record to `format(...)`:

    INVOICES = SinkFormat("invoices", open_invoices)
    write_stream.format(INVOICES)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from epochal.connectors.contract import Sink, Source
from epochal.errors import OptionError
from epochal.files import Files
from epochal.options import option_name, read_options

T = TypeVar("T")

APPEND, COMPLETE = "append", "complete"


@dataclass(frozen=True, slots=True)
class SourceRequest:
    format: str
    options: Mapping[str, str] = field(repr=False)
    schema: pa.Schema | None
    checkpoint: Files
    index: int
    parallelism: int
    spark: Any = None
    """The user's session, whose settings decide how files are read."""

    def read_options(self, kind: type[T]) -> T:
        return read_options(kind, self.options, of=self.format)


@dataclass(frozen=True, slots=True)
class SinkRequest:
    """Everything needed to open a sink."""

    format: str
    options: Mapping[str, str] = field(repr=False)
    schema: pa.Schema
    output_mode: str
    partition_by: tuple[str, ...]
    checkpoint: Files
    query_id: str
    dead_letter_topic: str | None = None

    def read_options(self, kind: type[T]) -> T:
        """Return the options of a sink as its dataclass."""
        return read_options(kind, self.options, of=self.format)

    def check_no_options(self) -> None:
        """Raise OptionError if the sink was given options, for one that has none."""
        refuse_options(self.format, self.options)


SchemaOf: TypeAlias = Callable[[str, Mapping[str, str], pa.Schema | None], pa.Schema]
"""Returns a source's schema for its name, its options and the user's schema, if there is one."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The columns that identify a row of a source that may redeliver, and how long to keep them.

    `version` is the column, if any, that tells apart rows with the same values in `columns`.
    """

    columns: tuple[str, ...]
    version: str | None
    window_ms: int


@dataclass(frozen=True, slots=True)
class SourceFormat:
    """How a source is opened."""

    name: str
    schema: SchemaOf
    open: Callable[[SourceRequest], Source]
    identity: Callable[[Mapping[str, str]], Identity | None] = lambda _: None
    """How the query recognises redelivered rows, if the source's options ask for that."""
    pin: Callable[[Mapping[str, str]], dict[str, str]] = dict
    """Fixes what the options leave to the moment, such as the latest version of a schema."""


@dataclass(frozen=True, slots=True)
class SinkFormat:
    """How a sink is opened, and what it can do."""

    name: str
    open: Callable[[SinkRequest], Sink]
    lasts: bool = False
    """Its output outlives the query, so its checkpoint must too. Others need none, as in Spark."""
    partitions: bool = False
    """It takes `partitionBy`."""
    replaces: bool = False
    """In output mode complete, an epoch's output replaces all rows."""
    counts: bool = False
    """It takes rows without columns."""
    has_letter_topic: bool = False
    """It writes dead letters to a topic, with the rows of their epoch."""


def open_lazily(place: str, extra: str = "") -> Any:
    """Return a function that imports the function at `module:name` when it is called.

    So a connector is imported, with the packages that it needs, only if a query uses it. `extra`
    names our extra that installs them.
    """
    module, _, name = place.partition(":")

    def call(*arguments: Any) -> Any:
        try:
            function = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            if not extra:
                raise
            raise OptionError(
                f"{extra}: the package {error.name} is not installed. Run `pip install "
                f"'epochal[{extra}]'`."
            ) from error
        return function(*arguments)

    return call


def refuse_options(name: str, options: Mapping[str, str]) -> None:
    if options:
        raise OptionError(
            f"{name} takes no options, but was given {', '.join(sorted(options))}. Remove them."
        )


def check_positive(name: str, **numbers: int | None) -> None:
    """Raise OptionError if one of these options is not positive."""
    for option, value in numbers.items():
        if value is not None and value <= 0:
            raise OptionError(f"{name}: {option_name(option)} must be positive, not {value}.")


def check_intervals(name: str, **intervals: timedelta | None) -> None:
    """Raise OptionError if one of these options is no time at all."""
    for option, interval in intervals.items():
        if interval is not None and interval <= timedelta():
            raise OptionError(f"{name}: {option_name(option)} must be longer than nothing.")
