"""Spark's bounds of a batch of Kafka records, as bounds of an epoch. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from epochal.connectors.kafka.offsets import KafkaPartition
from epochal.errors import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBounds:
    """How many records an epoch has at most, and at least."""

    most: int | None = None
    least: int | None = None
    max_delay: timedelta = timedelta(minutes=15)
    """How long fewer records than `least` may wait."""

    def __post_init__(self) -> None:
        for name, value in (
            ("maxOffsetsPerTrigger", self.most),
            ("minOffsetsPerTrigger", self.least),
        ):
            if value is not None and value <= 0:
                raise OptionError(f"kafka: {name} must be positive, not {value}.")
        if self.most is not None and self.least is not None and self.least > self.most:
            raise OptionError(
                f"kafka: minOffsetsPerTrigger ({self.least}) must not be greater than "
                f"maxOffsetsPerTrigger ({self.most})."
            )

    @property
    def are_set(self) -> bool:
        return self.most is not None or self.least is not None

    def waits(
        self,
        at: Mapping[KafkaPartition, int],
        until: Mapping[KafkaPartition, int],
        waited: timedelta,
    ) -> bool:
        """Whether an epoch must wait for more records, after it has waited for so long."""
        if self.least is None or waited >= self.max_delay:
            return False
        return sum(max(0, until[tp] - offset) for tp, offset in at.items()) < self.least

    def ends(
        self, at: Mapping[KafkaPartition, int], until: Mapping[KafkaPartition, int]
    ) -> dict[KafkaPartition, int]:
        """Return where an epoch ends that starts at `at`, of records up to `until`.

        Each partition gets a share of the epoch in proportion to the records that wait in it, and
        at least one record.
        """
        sizes = {tp: max(0, until[tp] - offset) for tp, offset in at.items()}
        total = sum(sizes.values())
        if self.most is None or not total:
            return {tp: offset + sizes[tp] for tp, offset in at.items()}
        ends = {}
        for tp, offset in at.items():
            share = self.most * (sizes[tp] / total)
            ends[tp] = offset + min(sizes[tp], math.ceil(share) if share < 1 else math.floor(share))
        return ends
