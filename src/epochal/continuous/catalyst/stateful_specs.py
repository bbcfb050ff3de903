"""Looks up the specs of stateful operators, which other packages define.

A spec that this installation does not have is described only: a plan with it can be read and
explained, but not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any

import pyarrow as pa

from epochal.continuous.operators.contract import StatefulOperator, StoreSchema

_OPERATORS = "epochal.continuous.operators"


@dataclass(frozen=True, slots=True)
class Described:
    """The fields of a spec that does not exist."""

    name: str
    output_schema: pa.Schema
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        return ((),)

    @property
    def stores(self) -> tuple[StoreSchema, ...]:
        return ()

    def open(self, partitions: Sequence[int] = (), state_partitions: int = 0) -> StatefulOperator:
        raise AssertionError(f"{self.name} is only described")


def spec(place: str, name: str, output: pa.Schema, **given: Any) -> Any:
    """Make `name` of the module `place`, or describe it. `output` is the schema of its rows."""
    try:
        made = getattr(import_module(f"{_OPERATORS}.{place}"), name)
    except (ImportError, AttributeError):
        return Described(name, output, given)
    if set(given) - {each.name for each in fields(made)}:
        return Described(name, output, given)
    return made(**given)
