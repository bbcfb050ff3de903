"""What a plan contains that cannot run, and what the plan's operators are, for `explain`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from epochal.errors import OptionError
from epochal.errors.query import Refusal

USE_A_FUNCTION = "compute it in a Python UDF, mapInPandas or mapInArrow"
JVM_ONLY = "it runs in the JVM only; write the function in Python"


@dataclass(frozen=True, slots=True)
class Operator:
    """A node of Spark's plan, and where it runs."""

    depth: int
    text: str
    runs: str


@dataclass(slots=True)
class Findings:
    """What the readers of one plan have found."""

    refusals: list[Refusal] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def refuse(self, operator: str, what: str, instead: str) -> None:
        found = Refusal(operator, what, instead)
        if found not in self.refusals:
            self.refusals.append(found)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    @contextmanager
    def around(self, operator: str, instead: str = USE_A_FUNCTION) -> Iterator[None]:
        """Turn the OptionErrors of other modules into refusals of this operator."""
        try:
            yield
        except OptionError as error:
            self.refuse(operator, str(error).rstrip("."), instead)
