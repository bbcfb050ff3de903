"""A model of a subscription that is slow, but so simple that it is obviously correct.

Every message is a record in a list, and every question is answered by scanning the list.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Record:
    number: int
    key: str
    published_us: int
    state: str = "available"
    """available, leased, promised (acknowledged ahead of its turn) or settled"""
    deadline_us: int = 0
    holder: object = None
    serial: int = 0
    late: bool = False
    """Whether an acknowledgement of the last lease still counts."""


@dataclass(slots=True)
class Naive:
    ordered: bool
    exactly_once: bool
    retain_acked: bool
    records: list[Record] = field(default_factory=list)

    def publish(self, number: int, key: str, now_us: int) -> None:
        self.records.append(Record(number, key if self.ordered else "", now_us))

    def pass_time(self, now_us: int) -> None:
        for record in self.records:
            if record.state == "leased" and record.deadline_us <= now_us:
                self._return(record, late=not self.exactly_once)

    def deliverable(self, consumer: object) -> list[int]:
        """Return everything that this consumer (None: a unary pull) may get now."""
        return [r.number for r in self.records if self._may_get(r, consumer)]

    def deliver(self, number: int, serial: int, deadline_us: int, consumer: object) -> None:
        """Check that a delivery is allowed, and record it."""
        record = self._of_number(number)
        assert record.state == "available", f"{number} is {record.state}"
        before = [r for r in self._same_key(record) if r.number < number]
        assert [r.number for r in before if r.state == "available"] == [], "order"
        record.state, record.deadline_us = "leased", deadline_us
        record.holder, record.serial, record.late = consumer, serial, False

    def ack(self, serial: int) -> str:
        record = self._of_serial(serial)
        if record is None:
            return "invalid"
        before = [r for r in self._same_key(record) if r.number < record.number]
        if record.state != "available" and any(r.state != "settled" for r in before):
            if self.exactly_once:
                return "unordered"
            record.state = "promised"
            return "ok"
        record.state = "settled"
        for after in self._same_key(record):
            if after.number > record.number:
                if after.state != "promised":
                    break
                after.state = "settled"
        return "ok"

    def modify(self, serial: int, deadline_us: int | None) -> str:
        """None gives the message back."""
        record = self._of_serial(serial)
        if record is None or record.state == "available":
            return "invalid"
        if record.state == "leased":
            if deadline_us is None:
                self._return(record, late=False)
            else:
                record.deadline_us = deadline_us
        return "ok"

    def seek(self, time_us: int) -> None:
        for record in self.records:
            known = record.state != "settled" or self.retain_acked
            if record.published_us < time_us:
                record.state = "settled"
            elif known:
                record.state, record.late, record.serial = "available", False, 0

    def numbers(self, *states: str) -> set[int]:
        return {r.number for r in self.records if r.state in states}

    def _may_get(self, record: Record, consumer: object) -> bool:
        flying = [r for r in self._same_key(record) if r.state in ("leased", "promised")]
        if record.state != "available":
            return False
        return not flying or (consumer is not None and flying[0].holder is consumer)

    def _return(self, record: Record, *, late: bool) -> None:
        if not record.key:
            record.state, record.late = "available", late
            return
        for each in self._same_key(record):
            if each.number >= record.number and each.state in ("leased", "promised"):
                each.state, each.serial = "available", 0

    def _same_key(self, record: Record) -> list[Record]:
        return [r for r in self.records if record.key and r.key == record.key]

    def _of_number(self, number: int) -> Record:
        return next(r for r in self.records if r.number == number)

    def _of_serial(self, serial: int) -> Record | None:
        for record in self.records:
            if record.serial == serial:
                if record.state in ("leased", "promised"):
                    return record
                return record if record.state == "available" and record.late else None
        return None
