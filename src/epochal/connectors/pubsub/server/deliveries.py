"""The deliveries of one subscription: which messages are available, leased or settled. Pure.

Until it is settled, every message is in one of two states: available or leased. An acknowledgement
ends a lease and settles the message. A nack (a deadline of zero) or an expired deadline also ends
it. Then the message is available again, after a backoff if the subscription has one, or it moves to
the dead-letter topic.

With ordering, the messages of a key form a line. They are leased in order. While some are leased,
only the same consumer gets more of the line. When one is given back, all messages leased after it
are given back too, even acknowledged ones: an acknowledgement takes effect only when all messages
before it are acknowledged.

Note: the heap of deadlines has one entry per pull, with the range of its serials, not one per
message. It only tells when to look at these leases; each lease's own `deadline_us` decides. Time is
always an argument, `now_us`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from epochal.connectors.pubsub.server.parts import (
    AckRefusals,
    Consumer,
    Entry,
    Line,
    Memory,
    PublishedMessage,
    Settings,
)

SLACK = 4096
"""How many stale serials the heap of deadlines may have before it is rebuilt; see `_watch`."""


class Deliveries:
    """The state of one subscription.

    `wake` is called when a waiting consumer might get messages. `to_dead_letters` moves a message
    with too many attempts to the dead-letter topic, and returns False if it cannot.
    """

    def __init__(
        self,
        settings: Settings,
        memory: Memory,
        *,
        wake: Callable[[], None],
        to_dead_letters: Callable[[Entry, int], bool],
    ) -> None:
        self.settings = settings
        self.available = 0
        self.outstanding = 0
        self._memory, self._wake, self._to_dead_letters = memory, wake, to_dead_letters
        # Available entries without a line: they have no key, or the subscription is not ordered.
        self._unordered: deque[Entry] = deque()
        self._lines: dict[str, Line] = {}
        # Lines with messages to deliver and no holder.
        self._free: deque[Line] = deque()
        self._leases: dict[int, Entry] = {}
        self._serial = 0
        # (deadline, tie-breaker, serials), and how many serials there are in total.
        self._deadlines: list[tuple[int, int, Sequence[int]]] = []
        self._watched = 0
        # (time, tie-breaker, what waits for its backoff).
        self._delayed: list[tuple[int, int, Entry | Line]] = []
        # The `queue` of a line that waits for its backoff.
        self._parked = object()
        # The holder of lines whose messages went to a unary Pull, which has no consumer.
        self._no_stream = Consumer()
        self._order = count()
        self._acked: deque[PublishedMessage] = deque()

    def offer(self, messages: Sequence[PublishedMessage]) -> None:
        self._memory.hold(messages)
        self.available += len(messages)
        if not self.settings.ordered:
            self._unordered.extend([Entry(message) for message in messages])
        else:
            for message in messages:
                if not message.key:
                    self._unordered.append(Entry(message))
                    continue
                line = self._lines.get(message.key)
                if line is None:
                    line = self._lines[message.key] = Line(message.key)
                line.waiting.append(Entry(message, line))
                self._enqueue(line)
        self._wake()

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

        They have at most `limit_bytes`, unless a single message is larger: it must be delivered
        at some time.
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
            # Half for the lines, so that neither they nor the unordered entries starve the other.
            share = (limit + 1) // 2 if self._unordered else limit
            left = self._take_lines(taken, share, left, consumer, horizon_us)
        left = self._take(self._unordered, taken, limit, left, horizon_us)
        if self._free or (consumer is not None and consumer.lines):
            self._take_lines(taken, limit, left, consumer, horizon_us)
        if taken:
            self._lease(taken, now_us + (deadline_us or self.settings.ack_deadline_us), consumer)
        return taken

    def _take(
        self, entries: deque[Entry], taken: list[Entry], limit: int, left: int, horizon_us: int
    ) -> int:
        """Move entries to `taken` while they fit; return how many bytes are left."""
        while entries and left > 0 and len(taken) < limit:
            if taken and left < len(entries[0].message.wire):
                break
            entry = entries.popleft()
            if entry.acked:
                continue
            if entry.message.published_us < horizon_us:
                self._forget(entry)
                continue
            left -= len(entry.message.wire)
            taken.append(entry)
        return left

    def _take_lines(
        self, taken: list[Entry], limit: int, left: int, consumer: Consumer | None, horizon_us: int
    ) -> int:
        for queue in (consumer.lines, self._free) if consumer else (self._free,):
            # A line with messages left is enqueued again, perhaps here, so go round only once.
            for _ in range(len(queue)):
                if left <= 0 or len(taken) >= limit:
                    return left
                line = queue.popleft()
                if line.queue is not queue:
                    continue
                line.queue = None
                before = len(taken)
                left = self._take(line.waiting, taken, limit, left, horizon_us)
                line.flying += taken[before:]
                if line.flying:
                    line.holder = consumer or self._no_stream
                self._enqueue(line)
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
        self._watch(deadline_us, range(first, serial + 1))

    def ack(self, serials: Iterable[int], now_us: int) -> AckRefusals:
        """Settle the messages of these leases.

        A late acknowledgement still counts until the message is leased again, unless the
        subscription has exactly-once delivery.
        """
        self.expire(now_us)
        outcome = AckRefusals([], [])
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
        for other in settled:
            del self._leases[other.serial]
            self._settle(other)
        if not line.flying:
            line.holder = None
            self._enqueue(line)

    def modify(self, serials: Sequence[int], seconds_us: int, now_us: int) -> AckRefusals:
        """Make these leases end in `seconds_us`; 0 gives the messages back now."""
        self.expire(now_us)
        outcome = AckRefusals([], [])
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
            self._watch(deadline_us, serials)
        return outcome

    def expire(self, now_us: int) -> None:
        """End the leases whose deadline has passed, and make delayed messages available."""
        while self._deadlines and self._deadlines[0][0] <= now_us:
            _, _, serials = heappop(self._deadlines)
            self._watched -= len(serials)
            for serial in serials:
                entry = self._leases.get(serial)
                if entry is not None and 0 < entry.deadline_us <= now_us and not entry.acked:
                    self._give_back(entry, now_us, late=True)
        while self._delayed and self._delayed[0][0] <= now_us:
            _, _, due = heappop(self._delayed)
            if isinstance(due, Line):
                due.queue = None
                self._enqueue(due)
            else:
                self._unordered.append(due)
            self._wake()
        horizon_us = now_us - self.settings.retention_us
        while self._acked and self._acked[0].published_us < horizon_us:
            self._memory.drop(self._acked.popleft())

    def change(self, settings: Settings) -> None:
        """Replace the settings. Existing leases keep their deadlines."""
        self.settings = settings
        while self._acked and not settings.retain_acked:
            self._memory.drop(self._acked.popleft())

    def next_expiry_us(self) -> int | None:
        """Return when `expire` may next have something to do; None if never."""
        times = [heap[0][0] for heap in (self._deadlines, self._delayed) if heap]
        return min(times, default=None)

    def unsettled(self) -> list[PublishedMessage]:
        """Return every message that is available or leased, in the order of publication."""
        messages = {e.message.number: e.message for e in self._leases.values()}
        queues = [self._unordered, *(line.waiting for line in self._lines.values())]
        delayed = [entry for _, _, entry in self._delayed if isinstance(entry, Entry)]
        for queue in (*queues, delayed):
            messages.update((e.message.number, e.message) for e in queue if not e.acked)
        return [messages[number] for number in sorted(messages)]

    def acked(self) -> list[PublishedMessage]:
        """Return the acknowledged messages that are retained."""
        return list(self._acked)

    def reset(
        self, unsettled: Sequence[PublishedMessage], acked: Sequence[PublishedMessage] = ()
    ) -> None:
        """Start over with these messages available. All leases and their ids become invalid."""
        before = [*self.unsettled(), *self._acked]
        for entry in self._leases.values():
            self._release(entry)
        for line in self._lines.values():
            line.queue = None  # consumers' queues still contain the line; this makes it stale there
        for queue in (self._unordered, self._free, self._acked):
            queue.clear()
        for container in (self._lines, self._leases):
            container.clear()
        self._deadlines, self._delayed, self._watched = [], [], 0
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
        # After an expired deadline the old id stays valid for a late ack; see `ack`.
        if not late or self.settings.exactly_once:
            del self._leases[entry.serial]
            entry.serial = 0
        if self._moved_to_dead_letters(entry, now_us):
            self._leases.pop(entry.serial, None)
            self._forget(entry)
            return
        wait_us = self._wait_us(entry)
        if wait_us:
            heappush(self._delayed, (now_us + wait_us, next(self._order), entry))
        else:
            self._unordered.append(entry)
            self._wake()

    def _give_back_line(self, line: Line, entry: Entry, now_us: int) -> None:
        index = line.flying.index(entry)
        back, line.flying = line.flying[index:], line.flying[:index]
        for waiting in back:
            del self._leases[waiting.serial]
            self._release(waiting)
            waiting.serial, waiting.acked = 0, False
        if self._moved_to_dead_letters(entry, now_us):
            self._forget(entry)
            back = back[1:]
        line.waiting.extendleft(reversed(back))
        if not line.flying:
            line.holder = None
        wait_us = self._wait_us(entry)
        if wait_us and line.waiting and line.queue is not self._parked:
            line.queue = self._parked
            heappush(self._delayed, (now_us + wait_us, next(self._order), line))
        else:
            self._enqueue(line)
        self._wake()

    def _enqueue(self, line: Line) -> None:
        """Put a line into the queue of its holder, or of free lines; delete it if it is empty."""
        if line.queue is self._parked:
            return
        if not line.waiting:
            if not line.flying:
                self._lines.pop(line.key, None)
            return
        if line.holder is self._no_stream:
            return
        queue = self._free if line.holder is None else line.holder.lines
        if line.queue is not queue:
            line.queue = queue
            queue.append(line)
            self._wake()

    def _moved_to_dead_letters(self, entry: Entry, now_us: int) -> bool:
        most = self.settings.max_attempts
        return bool(most) and entry.attempts >= most and self._to_dead_letters(entry, now_us)

    def _wait_us(self, entry: Entry) -> int:
        if self.settings.backoff_us is None:
            return 0
        shortest, longest = self.settings.backoff_us
        return min(longest, shortest << min(entry.attempts - 1, 30))

    def _release(self, entry: Entry) -> None:
        """End a lease, if there is one. The message then counts as available."""
        if not entry.deadline_us:
            return
        entry.deadline_us = 0
        self.outstanding -= 1
        self.available += 1
        holder = entry.holder
        if holder is not None:
            entry.holder = None
            if holder.max_messages or holder.max_bytes:
                self._wake()
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
        """Drop an available message for good, because it is too old or was dead-lettered."""
        self._leases.pop(entry.serial, None)
        self.available -= 1
        entry.acked = True
        self._memory.drop(entry.message)

    def _watch(self, deadline_us: int, serials: Sequence[int]) -> None:
        heappush(self._deadlines, (deadline_us, next(self._order), serials))
        self._watched += len(serials)
        if self._watched > 4 * len(self._leases) + SLACK:
            # Most serials in the heap are of leases that have ended. Rebuild it from live leases.
            ends: dict[int, list[int]] = {}
            for serial, entry in self._leases.items():
                if entry.deadline_us:
                    ends.setdefault(entry.deadline_us, []).append(serial)
            self._deadlines = [(end, next(self._order), leases) for end, leases in ends.items()]
            heapify(self._deadlines)
            self._watched = sum(map(len, ends.values()))
