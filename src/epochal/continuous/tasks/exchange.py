"""Flow control and epoch alignment between tasks: who may send, and what may be processed. Pure.

A query is a tree of stages. An edge leads from one producer of rows, the sources or a stage, to an
input of a stage. Each edge has a channel from every task to every task. The frames of a channel are
numbered. A frame that was seen before is dropped; a missing one ends the attempt, because rows are
lost. A sender may have 8 data frames or 1 MB unacknowledged, whichever comes first. Further frames
wait here, and a producer with waiting output processes no more input. Frames that go the other way
acknowledge what was processed; a frame of its own, a credit, is sent only if there are none.

A marker ends the sender's rows of an epoch. Frames behind it are held back until the marker has
arrived on all channels of all edges that lead to the stage. The stage is aligned then: it has
processed all rows of the epoch and none of the next, so its state is exactly that of the epoch.

Where several producers feed the sink, it is aligned in the same way. Its edges are local: rows stay
in their task, but one channel per producer holds back the rows of a later epoch.

Why this cannot deadlock. Let `e` be the oldest epoch that has not ended everywhere. A marker needs
no credit, and blocked sources still end their epoch when the driver says so. So it is enough that
all rows of `e` get processed. Whoever receives such a row is in epoch `e` as well: it cannot be
behind, because `e` is the oldest, nor ahead, because the sender's marker of `e` is still to come.
So it never holds the row back. It may be blocked itself, by rows of `e` that it has sent; but the
same holds for their receiver, and so on to the sink, which is never blocked. Hence all rows of `e`
are processed and their credits return. Only frames behind a marker are held back, at most as many
as the credits of their channel allow. So a slow producer delays the others but cannot block them.
(The sources may be blocked on one edge by rows of a later epoch, and so send nothing on another;
those rows are of a later epoch too. Their markers are not blocked.)

Note: a task also sends to itself. Its own rows skip the socket but not the alignment: those after
the cut are held back like any others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from epochal.continuous.plan.stages import Edge
from epochal.continuous.tasks.frames import Frame, FrameKind, Runs
from epochal.errors import ExchangeError

MAX_UNACKED_FRAMES = 8
MAX_UNACKED_BYTES = 1 << 20
CREDIT_FRAMES = MAX_UNACKED_FRAMES // 2
CREDIT_BYTES = MAX_UNACKED_BYTES // 16
"""Processed frames or bytes before a credit is sent. A credit per frame would wake the sender as
often as frames wake the receiver. Both are well below what a sender may have unacknowledged, so
that it never waits for a credit that its receiver withholds."""

_CARRIED_FRAMES = CREDIT_FRAMES // 2
"""Processed frames before a frame that goes the other way carries the credit."""


@dataclass(slots=True)
class ExchangeCounters:
    """Numbers of refused frames, by reason."""

    stale_attempt: int = 0
    unknown_channel: int = 0
    duplicates: int = 0


@dataclass(slots=True)
class _Outgoing:
    """The sending end of a channel."""

    waiting: deque[Frame] = field(default_factory=deque)
    unacked: deque[Frame] = field(default_factory=deque)
    unacked_bytes: int = 0
    last_seq: int = 0
    sent_seq: int = 0


class Outbox:
    """The channels of one edge by which one task reaches others; the edge is known by number."""

    def __init__(self, edge: int, task: int, targets: Iterable[int], attempt: int) -> None:
        self._edge, self._task, self._attempt = edge, task, attempt
        self._channels = {target: _Outgoing() for target in targets}
        self._data_waiting = 0

    @property
    def blocked(self) -> bool:
        """Whether rows wait for credit. The task must not produce more of them until they left."""
        return self._data_waiting > 0

    def add(
        self,
        target: int,
        batch: pa.RecordBatch,
        runs: Runs,
        *,
        epoch: int,
        highs: tuple[int, ...],
        size: int,
    ) -> None:
        channel = self._channels[target]
        channel.last_seq += 1
        self._data_waiting += 1
        kind, seq = FrameKind.DATA, channel.last_seq
        frame = Frame(
            kind, self._attempt, self._edge, self._task, epoch, seq, highs, runs, batch, size
        )
        channel.waiting.append(frame)

    def mark(self, epoch: int, highs: tuple[int, ...]) -> None:
        for channel in self._channels.values():
            channel.last_seq += 1
            kind, seq = FrameKind.MARKER, channel.last_seq
            frame = Frame(kind, self._attempt, self._edge, self._task, epoch, seq, highs)
            channel.waiting.append(frame)

    def acknowledge(self, target: int, seq: int) -> None:
        """Process a credit: the task has processed its channel up to `seq`. May be repeated."""
        channel = self._channels[target]
        if seq > channel.last_seq:
            reason = f"it acknowledged frame {seq} of {channel.last_seq}"
            raise ExchangeError(self._edge, target, reason)
        # Credits count up, so a later one makes up for one that was lost.
        while channel.unacked and channel.unacked[0].seq <= seq:
            channel.unacked_bytes -= channel.unacked.popleft().size

    def flush(self) -> list[tuple[int, Frame]]:
        """Return the frames that may be sent now, as (target, frame)."""
        leaving = []
        for target, channel in self._channels.items():
            while channel.waiting:
                frame = channel.waiting[0]
                if frame.kind is FrameKind.DATA:
                    # Without the size of this frame: a channel with nothing unacknowledged sends a
                    # frame of any size, so none waits forever. A marker is not held up by credit,
                    # only by rows before it, which it must not overtake.
                    unacked, size = len(channel.unacked), channel.unacked_bytes
                    if unacked >= MAX_UNACKED_FRAMES or size >= MAX_UNACKED_BYTES:
                        break
                    channel.unacked.append(frame)
                    channel.unacked_bytes += frame.size
                    self._data_waiting -= 1
                leaving.append((target, channel.waiting.popleft()))
                channel.sent_seq = frame.seq
        return leaving

    def pulse(self) -> list[tuple[int, Frame]]:
        """Return a frame per channel that tells how much was sent on it, as (target, frame)."""
        origin = FrameKind.PULSE, self._attempt, self._edge, self._task
        return [(to, Frame(*origin, 0, sent.sent_seq)) for to, sent in self._channels.items()]


HELD = -2
"""The highest event time of a sender that has sent none yet because rows wait in its sources."""


@dataclass(slots=True)
class _Incoming:
    """The receiving end of a channel."""

    queue: deque[Frame] = field(default_factory=deque)
    received: int = 0
    processed: int = 0
    owed_frames: int = 0
    owed_bytes: int = 0
    """Processed since the last credit."""
    repeat: bool = False
    """Whether the last credit must be sent again."""
    marked: bool = False
    """Its marker of the current epoch has arrived, so further frames are held back."""
    data: int = 0
    """Data frames in the queue."""
    highs: tuple[int, ...] = ()

    def credit(self) -> int:
        """Return up to where the channel is processed; the sender will hear of it now."""
        self.owed_frames = self.owed_bytes = 0
        self.repeat = False
        return self.processed


class Inbox:
    """The channels that lead to one stage, or the sink, of one task, aligned epoch by epoch."""

    def __init__(
        self, channels: Iterable[tuple[int, int]], epoch: int, counters: ExchangeCounters
    ) -> None:
        """`channels` are (edge, sender)."""
        self.epoch = epoch
        self._counters = counters
        self._of = {channel: _Incoming() for channel in channels}
        self._channels = list(self._of.values())

    def knows(self, frame: Frame) -> bool:
        return (frame.edge, frame.sender) in self._of

    def receive(self, frame: Frame) -> None:
        """Queue a frame; ExchangeError if one before it is missing."""
        channel = self._of[frame.edge, frame.sender]
        if frame.seq <= channel.received:
            if frame.kind is FrameKind.PULSE:
                channel.repeat = True  # nothing is missing here, but our credit may be lost
            else:
                self._counters.duplicates += 1
            return
        if frame.kind is FrameKind.PULSE or frame.seq != channel.received + 1:
            gap = f"it is at frame {frame.seq}, and only {channel.received} came before: frames in "
            raise ExchangeError(frame.edge, frame.sender, gap + "between are lost")
        # Numbers without a gap: so the marker of an epoch comes after all its rows and before any
        # row of the next, and `take` may rely on it.
        channel.received += 1
        if frame.kind is FrameKind.DATA:
            channel.data += 1
            if channel.data > MAX_UNACKED_FRAMES:
                reason = f"{channel.data} frames wait, but it may send only {MAX_UNACKED_FRAMES}"
                raise ExchangeError(frame.edge, frame.sender, reason)
        channel.queue.append(frame)

    def take(self) -> list[Frame]:
        """Return the data frames of the current epoch that have arrived since the last call."""
        taken = []
        for (edge, sender), channel in self._of.items():
            while channel.queue and not channel.marked:
                frame = channel.queue.popleft()
                if frame.epoch != self.epoch:
                    reason = f"a frame of epoch {frame.epoch} came in epoch {self.epoch}"
                    raise ExchangeError(edge, sender, reason)
                channel.processed = frame.seq
                channel.highs = frame.highs
                if frame.kind is FrameKind.MARKER:
                    channel.marked = True
                else:
                    # Owed now, told at the end of the turn, in which the rows are processed. A
                    # frame that is held back is not owed, so not more than the credits wait here.
                    channel.data -= 1
                    channel.owed_frames += 1
                    channel.owed_bytes += frame.size
                    taken.append(frame)
        return taken

    @property
    def waiting(self) -> bool:
        """Whether `take` or `advance` has something to do."""
        aligned = True
        for channel in self._channels:
            if not channel.marked:
                if channel.queue:
                    return True
                aligned = False
        return aligned

    @property
    def aligned(self) -> bool:
        return all(channel.marked for channel in self._channels)

    def advance(self) -> None:
        """Move to the next epoch: frames that were held back may be taken."""
        assert self.aligned
        # All channels at once. No frame behind a marker was taken, so none can have mixed rows of
        # two epochs into the state.
        self.epoch += 1
        for channel in self._channels:
            channel.marked = False

    def highs(self, watermarks: int) -> tuple[int, ...]:
        """Return, per watermark, the lowest of the channels' highest event times; -1 if none.

        A channel that has brought no event time is left out. Otherwise a task without input would
        hold the watermark back forever. One that brings `HELD` is not: rows wait there.
        """
        lowest = []
        for index in range(watermarks):
            seen = [c.highs[index] for c in self._channels if c.highs and c.highs[index] != -1]
            lowest.append(min(seen) if seen else -1)
        return tuple(lowest)

    def ack_for(self, edge: int, sender: int) -> int:
        """Return the credit that a frame to the sender can carry, which then is sent; 0 if none."""
        channel = self._of[edge, sender]
        if channel.owed_frames < _CARRIED_FRAMES and channel.owed_bytes < CREDIT_BYTES:
            return 0
        return channel.credit()

    def acknowledgements(self) -> list[tuple[int, int, int]]:
        """Return (edge, sender, seq) of the channels that are owed a credit."""
        owed = []
        for (edge, sender), channel in self._of.items():
            is_owed = channel.owed_frames >= CREDIT_FRAMES or channel.owed_bytes >= CREDIT_BYTES
            if is_owed or channel.repeat:
                owed.append((edge, sender, channel.credit()))
        return owed


class Exchange:
    """All channels of a task: an outbox per edge, and an inbox per stage.

    If edges lead to the sink, it has an inbox too, after those of the stages.
    """

    def __init__(
        self, *, edges: Sequence[Edge], task: int, tasks: int, attempt: int, epoch: int
    ) -> None:
        self.counters = ExchangeCounters()
        self.task, self.tasks, self.attempt = task, tasks, attempt
        peers = [(task,) if edge.is_local else range(tasks) for edge in edges]
        self.outboxes = [
            Outbox(number, task, targets, attempt) for number, targets in enumerate(peers)
        ]
        self.into: list[list[int]] = [[] for _ in {edge.to.stage for edge in edges}]
        """The edges that lead to each inbox."""
        for number, edge in enumerate(edges):
            self.into[edge.to.stage].append(number)
        self.inboxes = [
            Inbox([(edge, sender) for edge in into for sender in peers[edge]], epoch, self.counters)
            for into in self.into
        ]
        self._inbox_of = [self.inboxes[edge.to.stage] for edge in edges]

    def receive(self, frames: Iterable[Frame]) -> None:
        """Process frames that have arrived; those of another attempt are counted and dropped."""
        for frame in frames:
            if frame.attempt != self.attempt:
                self.counters.stale_attempt += 1
            elif frame.edge >= len(self.outboxes) or not self._inbox_of[frame.edge].knows(frame):
                self.counters.unknown_channel += 1
            elif frame.kind is FrameKind.CREDIT:
                self.outboxes[frame.edge].acknowledge(frame.sender, frame.seq)
            else:
                if frame.ack:
                    self.outboxes[frame.edge].acknowledge(frame.sender, frame.ack)
                self._inbox_of[frame.edge].receive(frame)

    def flush(self, inbox: int, send: Callable[[int, Frame], None]) -> None:
        """Send the frames for an inbox that may leave: own rows to our own, others to `send`."""
        for edge in self.into[inbox]:
            for target, frame in self.outboxes[edge].flush():
                if target == self.task:  # through the inbox, so that alignment holds for it too
                    self.inboxes[inbox].receive(frame)
                else:
                    send(target, frame)

    def flush_blocked(self, inbox: int, send: Callable[[int, Frame], None]) -> None:
        """Flush if rows wait: the task's own may have credit by now."""
        for edge in self.into[inbox]:
            if self.outboxes[edge].blocked:
                self.flush(inbox, send)
                return

    def pulse(self, send: Callable[[int, Frame], None]) -> None:
        """Let peers check whether they have received everything.

        Normally the next frame reveals a lost one. This is for channels without a next frame.
        """
        for outbox in self.outboxes:
            for target, frame in outbox.pulse():
                if target != self.task:
                    send(target, frame)

    def acknowledge(self, inbox: int, leaving: list[tuple[int, Frame]]) -> None:
        """Acknowledge what a stage, or the sink, has processed.

        `leaving` are the frames of this turn, as (target, frame). Those on the stage's own edges
        carry the credits; for senders that get none of them, credits are added.
        """
        box = self.inboxes[inbox]
        for at, (target, frame) in enumerate(leaving):
            if self._inbox_of[frame.edge] is box and frame.kind is FrameKind.DATA:
                ack = box.ack_for(frame.edge, target)
                if ack:
                    leaving[at] = target, replace(frame, ack=ack)
        for edge, sender, seq in box.acknowledgements():
            if sender == self.task:
                self.outboxes[edge].acknowledge(sender, seq)
            else:
                credit = Frame(FrameKind.CREDIT, self.attempt, edge, self.task, box.epoch, seq)
                leaving.append((sender, credit))
