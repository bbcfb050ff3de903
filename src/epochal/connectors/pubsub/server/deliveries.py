"""One subscription's deliveries: what is available, what is leased to whom, what is done.

Every message offered is, until it is settled, in exactly one of two states: available or leased.
A lease ends by an acknowledgement (settled), by a deadline set to zero or by time (available
again, after a backoff if the subscription has one, or buried with the dead letters).

With ordering, the messages of a key form a line. They are leased in order, and only to the consumer
that already holds some of the line. When one comes back, all that were leased after it come back
with it, those acknowledged too: an acknowledgement counts only once all before it have theirs.

What a reader would get wrong: deadlines are kept as ranges of serials per pull, not per message,
and looked at lazily; a lease's own `deadline_us` decides, the heap only says when to look. Time
never passes by itself: every method that depends on it takes `now_us`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from epochal.connectors.pubsub.server.parts import (
    Consumer,
    Entry,
    Line,
    Memory,
    Message,
    Outcome,
    Settings,
)

SLACK = 4096


class Deliveries:
    """The state of one subscription. `rouse` is called when a waiting consumer might get more;
    `bury` takes a message that failed too often, or says that it cannot."""

    def __init__(
        self,
        settings: Settings,
        memory: Memory,
        *,
        rouse: Callable[[], None],
        bury: Callable[[Entry, int], bool],
    ) -> None:
        self.settings = settings
        self.available = 0
        self.outstanding = 0
        self._memory, self._rouse, self._bury = memory, rouse, bury
        self._loose: deque[Entry] = deque()
        self._lines: dict[str, Line] = {}
        self._free: deque[Line] = deque()
        self._leases: dict[int, Entry] = {}
        self._serial = 0
        self._looks: list[tuple[int, int, Sequence[int]]] = []
        self._looked_for = 0
        self._delayed: list[tuple[int, int, Entry | Line]] = []
        self._parked = object()
        self._nobody = Consumer()
        self._order = count()
        self._acked: deque[Message] = deque()

    def offer(self, messages: Sequence[Message]) -> None:
        """Take newly published messages."""
        self._memory.hold(messages)
        self.available += len(messages)
        if not self.settings.ordered:
            self._loose.extend([Entry(message) for message in messages])
        else:
            for message in messages:
                self._line_up(message)
        self._rouse()

    def _line_up(self, message: Message) -> None:
        if not message.key:
            self._loose.append(Entry(message))
            return
        line = self._lines.get(message.key)
        if line is None:
            line = self._lines[message.key] = Line(message.key)
        line.waiting.append(Entry(message, line))
        self._queue(line)

    def pull(
        self,
        limit: int,
        now_us: int,
        *,
        limit_bytes: int = 1 << 62,
        consumer: Consumer | None = None,
        deadline_us: int | None = None,
    ) -> list[Entry]:
        """Lease up to `limit` messages; their entries are valid until the next call.

        No more than `limit_bytes`, but for a single message that is larger: it must come some time.
        """
        self.expire(now_us)
        if consumer is not None:
            if consumer.max_messages:
                limit = min(limit, consumer.max_messages - consumer.messages)
            if consumer.max_bytes:
                limit_bytes = min(limit_bytes, consumer.max_bytes - consumer.size)
        if limit <= 0 or limit_bytes <= 0 or not self.available:
            return []
        taken: list[Entry] = []
        left, horizon_us = limit_bytes, now_us - self.settings.retention_us
        if self._free or (consumer is not None and consumer.lines):
            # Half for the lines, so that neither they nor the loose ones starve the other.
            share = (limit + 1) // 2 if self._loose else limit
            left = self._take_lines(taken, share, left, consumer, horizon_us)
        left = self._take_loose(taken, limit, left, horizon_us)
        if self._free or (consumer is not None and consumer.lines):
            self._take_lines(taken, limit, left, consumer, horizon_us)
        if taken:
            self._lease(taken, now_us + (deadline_us or self.settings.ack_deadline_us), consumer)
        return taken

    def _take_loose(self, taken: list[Entry], limit: int, left: int, horizon_us: int) -> int:
        loose = self._loose
        while loose and left > 0 and len(taken) < limit:
            if taken and left < len(loose[0].message.wire):
                break
            entry = loose.popleft()
            if entry.acked:
                continue
            if entry.message.published_us < horizon_us:
                self._forget(entry)
                continue
            left -= len(entry.message.wire)
            taken.append(entry)
        return left

    def _take_lines(
        self,
        taken: list[Entry],
        limit: int,
        left: int,
        consumer: Consumer | None,
        horizon_us: int,
    ) -> int:
        for queue in (consumer.lines, self._free) if consumer else (self._free,):
            # What a line leaves is queued again, perhaps here: go round once.
            for _ in range(len(queue)):
                if left <= 0 or len(taken) >= limit:
                    return left
                line = queue.popleft()
                if line.place is not queue:
                    continue
                line.place = None
                while line.waiting and left > 0 and len(taken) < limit:
                    if taken and left < len(line.waiting[0].message.wire):
                        break
                    entry = line.waiting.popleft()
                    if entry.message.published_us < horizon_us:
                        self._forget(entry)
                        continue
                    left -= len(entry.message.wire)
                    line.flying.append(entry)
                    taken.append(entry)
                if line.flying:
                    line.holder = consumer or self._nobody
                self._queue(line)
        return left

    def _lease(self, taken: list[Entry], deadline_us: int, consumer: Consumer | None) -> None:
        leases, serial, size = self._leases, self._serial, 0
        first = serial + 1
        for entry in taken:
            if entry.serial:
                leases.pop(entry.serial, None)
            serial += 1
            entry.serial = serial
            entry.deadline_us = deadline_us
            entry.holder = consumer
            entry.attempts += 1
            leases[serial] = entry
            size += len(entry.message.wire)
        self._serial = serial
        self.available -= len(taken)
        self.outstanding += len(taken)
        if consumer is not None:
            consumer.messages += len(taken)
            consumer.size += size
        self._look_at(deadline_us, range(first, serial + 1))

    def ack(self, serials: Iterable[int], now_us: int) -> Outcome:
        """Settle the messages of these leases.

        A late acknowledgement still counts until the message is leased anew, unless the
        subscription promises exactly-once delivery.
        """
        self.expire(now_us)
        outcome = Outcome([], [])
        for serial in serials:
            entry = self._leases.get(serial)
            if entry is None:
                outcome.invalid.append(serial)
                continue
            line = entry.line
            if line is None:
                del self._leases[serial]
                self._settle(entry)
            elif line.flying[0] is not entry and self.settings.exactly_once:
                outcome.unordered.append(serial)
            else:
                self._ack_in_line(line, entry)
        return outcome

    def _ack_in_line(self, line: Line, entry: Entry) -> None:
        entry.acked = True
        done = 0
        for flying in line.flying:
            if not flying.acked:
                break
            done += 1
        settled, line.flying = line.flying[:done], line.flying[done:]
        for each in settled:
            del self._leases[each.serial]
            self._settle(each)
        if not line.flying:
            line.holder = None
            self._queue(line)

    def modify(self, serials: Sequence[int], seconds_us: int, now_us: int) -> Outcome:
        """Let these leases end in `seconds_us`; 0 gives the messages back now."""
        self.expire(now_us)
        outcome = Outcome([], [])
        deadline_us = now_us + seconds_us
        for serial in serials:
            entry = self._leases.get(serial)
            if entry is None or not entry.deadline_us:
                outcome.invalid.append(serial)
            elif entry.acked:
                continue
            elif seconds_us:
                entry.deadline_us = deadline_us
            else:
                self._give_back(entry, now_us, late=False)
        if seconds_us:
            self._look_at(deadline_us, serials)
        return outcome

    def expire(self, now_us: int) -> None:
        """Take back what was leased until now, and let through what was delayed until now."""
        while self._looks and self._looks[0][0] <= now_us:
            _, _, serials = heappop(self._looks)
            self._looked_for -= len(serials)
            for serial in serials:
                entry = self._leases.get(serial)
                if entry is not None and 0 < entry.deadline_us <= now_us and not entry.acked:
                    self._give_back(entry, now_us, late=True)
        while self._delayed and self._delayed[0][0] <= now_us:
            _, _, due = heappop(self._delayed)
            if isinstance(due, Line):
                due.place = None
                self._queue(due)
            else:
                self._loose.append(due)
            self._rouse()
        horizon_us = now_us - self.settings.retention_us
        while self._acked and self._acked[0].published_us < horizon_us:
            self._memory.drop(self._acked.popleft())

    def change(self, settings: Settings) -> None:
        """Go on under other settings; leases that run keep their deadlines."""
        self.settings = settings
        while self._acked and not settings.retain_acked:
            self._memory.drop(self._acked.popleft())

    def next_look_us(self) -> int | None:
        """When `expire` may have something to do."""
        times = [heap[0][0] for heap in (self._looks, self._delayed) if heap]
        return min(times, default=None)

    def unsettled(self) -> list[Message]:
        """Every message that is available or leased, in the order of publication."""
        messages = {e.message.number: e.message for e in self._leases.values()}
        queues = [self._loose, *(line.waiting for line in self._lines.values())]
        delayed = [entry for _, _, entry in self._delayed if isinstance(entry, Entry)]
        for queue in (*queues, delayed):
            messages.update((e.message.number, e.message) for e in queue if not e.acked)
        return [messages[number] for number in sorted(messages)]

    def acked(self) -> list[Message]:
        """The acknowledged messages that are retained."""
        return list(self._acked)

    def reset(self, unsettled: Sequence[Message], acked: Sequence[Message] = ()) -> None:
        """Start again with these messages available; every lease and its id is void."""
        before = [*self.unsettled(), *self._acked]
        for entry in self._leases.values():
            self._release(entry)
        for line in self._lines.values():
            line.place = None  # consumers' queues still hold the line
        for queue in (self._loose, self._free, self._acked):
            queue.clear()
        for container in (self._lines, self._leases):
            container.clear()
        self._looks, self._delayed, self._looked_for = [], [], 0
        self.available = self.outstanding = 0
        self.offer(unsettled)
        if self.settings.retain_acked:
            self._memory.hold(acked)
            self._acked.extend(acked)
        for message in before:
            self._memory.drop(message)

    def _give_back(self, entry: Entry, now_us: int, *, late: bool) -> None:
        if entry.line is not None:
            self._give_back_line(entry.line, entry, now_us)
            return
        self._release(entry)
        if not late or self.settings.exactly_once:
            del self._leases[entry.serial]
            entry.serial = 0
        if self._buried(entry, now_us):
            self._leases.pop(entry.serial, None)
            self._forget(entry)
            return
        wait_us = self._wait_us(entry)
        if wait_us:
            heappush(self._delayed, (now_us + wait_us, next(self._order), entry))
        else:
            self._loose.append(entry)
            self._rouse()

    def _give_back_line(self, line: Line, entry: Entry, now_us: int) -> None:
        place = line.flying.index(entry)
        back, line.flying = line.flying[place:], line.flying[:place]
        for each in back:
            del self._leases[each.serial]
            self._release(each)
            each.serial, each.acked = 0, False
        if self._buried(entry, now_us):
            self._forget(entry)
            back = back[1:]
        line.waiting.extendleft(reversed(back))
        if not line.flying:
            line.holder = None
        wait_us = self._wait_us(entry)
        if wait_us and line.waiting and line.place is not self._parked:
            line.place = self._parked
            heappush(self._delayed, (now_us + wait_us, next(self._order), line))
        else:
            self._queue(line)
        self._rouse()

    def _queue(self, line: Line) -> None:
        """Put a line where the one who may go on with it looks, or away if it is empty."""
        if line.place is self._parked:
            return
        if not line.waiting:
            if not line.flying:
                self._lines.pop(line.key, None)
            return
        if line.holder is self._nobody:
            return
        queue = self._free if line.holder is None else line.holder.lines
        if line.place is not queue:
            line.place = queue
            queue.append(line)
            self._rouse()

    def _buried(self, entry: Entry, now_us: int) -> bool:
        most = self.settings.max_attempts
        return bool(most) and entry.attempts >= most and self._bury(entry, now_us)

    def _wait_us(self, entry: Entry) -> int:
        if self.settings.backoff_us is None:
            return 0
        shortest, longest = self.settings.backoff_us
        return min(longest, shortest << min(entry.attempts - 1, 30))

    def _release(self, entry: Entry) -> None:
        """End the lease: the message is available, or about to be settled."""
        if not entry.deadline_us:
            return
        entry.deadline_us = 0
        self.outstanding -= 1
        self.available += 1
        holder = entry.holder
        if holder is not None:
            entry.holder = None
            if holder.max_messages or holder.max_bytes:
                self._rouse()
            holder.messages -= 1
            holder.size -= len(entry.message.wire)

    def _settle(self, entry: Entry) -> None:
        self._release(entry)
        self.available -= 1
        entry.acked = True
        if self.settings.retain_acked:
            self._acked.append(entry.message)
        else:
            self._memory.drop(entry.message)

    def _forget(self, entry: Entry) -> None:
        """Drop an available message for good, retained or not: it is too old, or buried."""
        self._leases.pop(entry.serial, None)
        self.available -= 1
        entry.acked = True
        self._memory.drop(entry.message)

    def _look_at(self, deadline_us: int, serials: Sequence[int]) -> None:
        heappush(self._looks, (deadline_us, next(self._order), serials))
        self._looked_for += len(serials)
        if self._looked_for > 4 * len(self._leases) + SLACK:
            # Acknowledged leases left their serials behind: keep only those that still count.
            ends: dict[int, list[int]] = {}
            for serial, entry in self._leases.items():
                if entry.deadline_us:
                    ends.setdefault(entry.deadline_us, []).append(serial)
            self._looks = [(end, next(self._order), kept) for end, kept in ends.items()]
            heapify(self._looks)
            self._looked_for = sum(map(len, ends.values()))
