"""Claims: at most one run at a time owns a checkpoint and may write to it.

A run claims a checkpoint by creating the file `.epochal/attempts/N` for the next attempt number N.
Creating is atomic, so of several runs that try the same number exactly one succeeds. The run of the
newest attempt owns the checkpoint. A run that restarts its tasks begins another attempt.

The owner renews its claim every few seconds by rewriting the file `.epochal/lease/RUN`, and deletes
this file when it releases the claim. Another run may take over when the claim is released, when it
expires because the owner has not renewed it for too long, or when the owner's process on this host
has ended. Ages are differences between modification times: a claimant writes its own file first
and compares the two times. Both come from the storage's clock, so the hosts' clocks need not agree.

The owner itself measures the age of its claim with a clock that nobody can set, and that goes on
while the machine is suspended. So a step of the wall clock does not end its claim. (A step of the
storage's clock may make the claim look expired to another run, until the next renewal.)

An owner whose claim has expired must not renew it, because another run may have found it expired
already and be about to publish the next attempt. But it may claim the checkpoint again, like
anybody else: it publishes attempt N + 1 (`next_attempt`).

Why no two runs own a checkpoint:

- Who takes over from attempt N creates the file of attempt N + 1, and this file can be created only
  once. That is so for the expired owner as well as for others. Who fails to create it is fenced,
  or finds a new owner with a fresh claim.
- Whoever claims writes its claim file first. So the loser that looks again finds a fresh claim.
- The owner of attempt N learns of attempt N + 1 before each decision (`still_mine`). If it is taken
  over after that check, its decision still competes with the new owner's for one log entry, which
  too is created only once.

Note: If the owner's claim file is gone, another run took over, or the checkpoint was deleted or
moved. The owner must not write then, because that would create a part of a checkpoint.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections.abc import Collection, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Self, TypeAlias

from epochal.checkpoint.layout import ATTEMPTS, CLAIMS
from epochal.checkpoint.metadata_log import MetadataLog, parse_version, storage_errors
from epochal.checkpoint.spark_json import long_of, parse_object, string_of, text_lines, to_json
from epochal.clock import Clock, SystemClock
from epochal.errors import (
    CheckpointInUseError,
    CheckpointLostError,
    ConcurrentUpdateError,
    MissingBatchError,
    OptionError,
    StorageError,
)
from epochal.files import Files, join_url

logger = logging.getLogger(__name__)

QUERY_PURPOSE = "continuous query"
"""The purpose of a claim that a query holds, and not a tool."""
DEFAULT_CLAIM_SECONDS = 30.0
"""How long a claim lasts after its last renewal: the option `lease` of a query."""
RENEWALS_PER_CLAIM = 6
"""Renewals in that time, so that a few of them may fail."""
ATTEMPTS_KEPT = 100
MAX_CLAIM_ROUNDS = 100
ABANDONED_CLAIM_MS = 24 * 3600 * 1000
"""Claim files of this age are deleted; their runs died before they published an attempt."""

_RELEASED = "it has released its claim"
_held: dict[str, threading.Event] = {}
"""The runs of this process that have not released their claim, with what ends it."""
_RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_ATTEMPT_KEYS = (
    *("runId", "purpose", "host", "machine"),
    *("process", "processStarted", "startedMs", "leaseMs"),
)
"""The fields of an attempt, in their order, as its file names them."""


@dataclass(frozen=True, slots=True)
class ClaimAttempt:
    """The run that claimed the checkpoint, as recorded in `.epochal/attempts/N`."""

    run_id: str
    purpose: str
    host: str
    machine: str
    """The boot id of the kernel and the process namespace of `process`; empty if unknown."""
    process: int
    process_started: int
    """In ticks since boot; 0 if unknown. Process ids are reused; id and start time are not."""
    started_ms: int
    claim_ms: int
    """How long the claim lasts after its last renewal."""


@dataclass(frozen=True, slots=True)
class Free:
    """The checkpoint may be claimed, by publishing this attempt."""

    attempt: int
    stale: ClaimAttempt | None = None
    """The previous owner, if it did not release its claim."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A live run owns the checkpoint."""

    attempt: int
    owner: ClaimAttempt
    silent_ms: int


Decision: TypeAlias = Free | Owned


def decide_claim(
    newest: tuple[int, ClaimAttempt] | None,
    renewals: Mapping[str, int],
    me: ClaimAttempt,
    now_ms: int,
    ended: Collection[str] = (),
) -> Decision:
    """Decide whether `me` may claim the checkpoint.

    `newest` is the newest attempt, and `renewals` when each run last renewed its claim; a run that
    is not in it has released its claim. `ended` are runs whose process is known to have ended.
    """
    if newest is None:
        return Free(0)
    number, owner = newest
    renewed_ms = renewals.get(owner.run_id)
    # The claim was released; or it is this run's own, by a try whose answer was lost.
    if renewed_ms is None or _same_process(owner, me):
        return Free(number + 1)
    silent_ms = max(0, now_ms - renewed_ms)
    if owner.run_id in ended or silent_ms > owner.claim_ms:
        return Free(number + 1, stale=owner)
    return Owned(number, owner, silent_ms)


def _same_process(owner: ClaimAttempt, me: ClaimAttempt) -> bool:
    return (
        owner.run_id == me.run_id
        and owner.machine == me.machine
        and owner.host == me.host
        and (owner.process, owner.process_started) == (me.process, me.process_started)
    )


class AttemptFormat:
    """Version line, then a line of JSON."""

    def serialize(self, entry: ClaimAttempt) -> bytes:
        fields = dict(zip(_ATTEMPT_KEYS, astuple(entry), strict=True))
        return f"v1\n{to_json(fields)}".encode()

    def deserialize(self, data: bytes, path: str) -> ClaimAttempt:
        lines = text_lines(data, path)
        parse_version(lines[0] if lines else "", 1, path)
        fields = parse_object("\n".join(lines[1:]), path)
        return ClaimAttempt(
            run_id=string_of(fields, "runId", path),
            purpose=string_of(fields, "purpose", path),
            host=string_of(fields, "host", path),
            machine=string_of(fields, "machine", path),
            process=long_of(fields, "process", path),
            process_started=long_of(fields, "processStarted", path),
            started_ms=long_of(fields, "startedMs", path),
            claim_ms=long_of(fields, "leaseMs", path),
        )


ATTEMPT_FORMAT = AttemptFormat()


class Claim:
    """This run's claim of a checkpoint. Use it as a context manager, or call `release`."""

    def __init__(
        self,
        files: Files,
        attempt: int,
        me: ClaimAttempt,
        clock: Clock,
        renewed: float,
        stale: ClaimAttempt | None,
    ) -> None:
        self.attempt = attempt
        self.run_id = me.run_id
        self.took_over = stale
        """The previous owner, if it did not release its claim."""
        self._files, self._me, self._clock = files, me, clock
        self._renewed = renewed
        self._lost = ""
        """Why this run can never own the checkpoint again; empty while it can."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        _held[me.run_id] = self._stop

    @classmethod
    def acquire(
        cls,
        files: Files,
        run_id: str,
        *,
        purpose: str,
        clock: Clock | None = None,
        claim_seconds: float = DEFAULT_CLAIM_SECONDS,
        background: bool = True,
    ) -> Claim:
        """Claim the checkpoint at `files`; CheckpointInUseError if a live run owns it.

        The claim expires `claim_seconds` after its last renewal. With `background` a thread renews
        it; without, the caller must call `renew`.
        """
        if not _RUN_ID.fullmatch(run_id):
            raise OptionError(
                f"A run id must have 1 to 128 letters, digits, `_`, `-` and `.`, and must not "
                f"start with `-` or `.`; this one is {run_id!r}."
            )
        clock = clock or SystemClock()
        me = identify(run_id, purpose, clock.now_ms(), round(claim_seconds * 1000))
        claim = _acquire(files, me, clock)
        if background:
            claim._thread = threading.Thread(
                target=claim._keep_renewing, name=f"claim-{run_id}", daemon=True
            )
            claim._thread.start()
        return claim

    def renew(self) -> bool:
        """Renew the claim, unless it has expired already; return whether this run still has it."""
        with self._lock:
            if self._is_over():
                return False
            path = claim_path(self.run_id)
            # To others a missing file means that the claim was released, so it must not come back.
            # If a run that takes over deletes it between this look and the write, the write does no
            # harm: only the claim file of the newest attempt's owner counts, and that is then not
            # this run.
            with storage_errors(join_url(self._files.url, path)):
                if self._files.info(path) is None:
                    self._lost = "its claim file was deleted, with the checkpoint or by another run"
                    return False
            self._renewed = _write_claim_file(self._files, self._me, self._clock)
            return True

    def still_mine(self) -> bool:
        """Whether no other run can have taken over yet. Once False, only `next_attempt` helps."""
        with self._lock:
            if self._is_over():
                return False
            # Whoever takes over must win this very number, so one look by name is enough. A listing
            # costs more, and may lag.
            next_attempt = f"{ATTEMPTS}/{self.attempt + 1}"
            with storage_errors(join_url(self._files.url, next_attempt)):
                if self._files.info(next_attempt) is not None:
                    self._lost = f"another run has begun attempt {self.attempt + 1}"
            return not self._lost

    def next_attempt(self, *, above: int = -1) -> int:
        """Begin another attempt of this run; CheckpointLostError if the run was fenced.

        If the claim has expired and nobody took over, this run claims the checkpoint again.

        `above` is the highest attempt number in the checkpoint's offset log. The new number is
        higher, even if the files of the attempts were lost when the checkpoint was copied.
        """
        with self._lock:
            newest = self._check_newest()
            if self._expired():
                # All who take over from the newest attempt compete for the number that follows it.
                # So that one must be this run's before it may publish a higher one.
                self.attempt = newest
                renewed = _write_claim_file(self._files, self._me, self._clock)
                self._publish_next(newest + 1)
                self._renewed = renewed
                logger.warning(
                    "run %s claims %s again: its claim had expired, and nobody took over",
                    *(self.run_id, self._files.url),
                )
                if self.attempt > above:
                    return self.attempt
            self._publish_next(max(self.attempt, above) + 1)
            return self.attempt

    def _check_newest(self) -> int:
        """Return the newest attempt; CheckpointLostError if it is not this run's."""
        log = MetadataLog(self._files.at(ATTEMPTS), ATTEMPT_FORMAT, read_only=True)
        newest = None if self._lost else log.get_latest()
        if self._stop.is_set():
            self._lost = self._lost or _RELEASED
        elif newest is None:
            self._lost = self._lost or "the checkpoint was deleted or moved"
        elif not _same_process(newest[1], self._me):
            self._lost = f"run {newest[1].run_id} has begun attempt {newest[0]}"
        if self._lost or newest is None:
            raise CheckpointLostError(self._files.url, self.run_id, self._lost)
        return newest[0]

    def _publish_next(self, attempt: int) -> None:
        log = MetadataLog(self._files.at(ATTEMPTS), ATTEMPT_FORMAT)
        me = replace(self._me, started_ms=self._clock.now_ms())
        published = log.latest_batch_id() == self.attempt and _publish(log, attempt, me)
        # An earlier try may have created the file although its answer was lost. Then the newest
        # attempt is already this run's.
        if not published and self._check_newest() != attempt:
            self._lost = f"it could not begin attempt {attempt}"
            raise CheckpointLostError(self._files.url, self.run_id, self._lost)
        self.attempt = attempt
        log.purge(attempt - ATTEMPTS_KEPT)

    def release(self) -> None:
        """Release the claim. A second call does nothing."""
        self._stop.set()
        if _held.get(self.run_id) is self._stop:
            del _held[self.run_id]
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._lock:
            if not self._lost and not self._expired():
                _delete_claim_file(self._files, self.run_id)
            self._lost = self._lost or _RELEASED

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_over(self) -> bool:
        return bool(self._lost) or self._stop.is_set() or self._expired()

    def _expired(self) -> bool:
        silent_ms = (self._clock.uptime() - self._renewed) * 1000
        # `>=` here and `>` in `decide_claim`: the owner stops before another run may take over.
        return silent_ms >= self._me.claim_ms

    def _keep_renewing(self) -> None:
        interval = self._me.claim_ms / 1000 / RENEWALS_PER_CLAIM
        owned = True
        while not self._stop.wait(interval):
            try:
                owned, owned_before = self.renew(), owned
                if owned_before and not owned:
                    logger.warning(
                        "run %s no longer owns %s: %s",
                        self.run_id,
                        self._files.url,
                        self._lost or "its claim has expired",
                    )
                if self._lost:
                    return
            except StorageError as error:
                logger.warning("cannot renew the claim of run %s: %s", self.run_id, error)


def identify(run_id: str, purpose: str, now_ms: int, claim_ms: int) -> ClaimAttempt:
    """Describe this process as the owner of an attempt."""
    process = os.getpid()
    return ClaimAttempt(
        run_id=run_id,
        purpose=purpose,
        host=socket.gethostname(),
        machine=_machine(),
        process=process,
        process_started=_process_started(process) or 0,
        started_ms=now_ms,
        claim_ms=claim_ms,
    )


def _acquire(files: Files, me: ClaimAttempt, clock: Clock) -> Claim:
    log = MetadataLog(files.at(ATTEMPTS), ATTEMPT_FORMAT)
    for _ in range(MAX_CLAIM_ROUNDS):
        # The claim file is written before the attempt. Otherwise a run that reads the attempt in
        # between would find no claim file and conclude that the claim was released.
        renewed = _write_claim_file(files, me, clock)
        try:
            newest = log.get_latest()
        except MissingBatchError:
            continue  # a faster claimant has purged it
        with storage_errors(join_url(files.url, CLAIMS)):
            listed = [info for info in files.list(CLAIMS) if not info.hidden]
        renewals = {info.name: info.modified_ms for info in listed}
        if me.run_id not in renewals:
            continue  # the storage's listing lags behind the write
        ended = [newest[1].run_id] if newest and has_ended(newest[1]) else []
        # This run's own renewal is the current time, by the storage's clock. All other renewals
        # have the time of that clock, too, so the clocks of hosts need not agree.
        decision = decide_claim(newest, renewals, me, renewals[me.run_id], ended)
        if isinstance(decision, Owned):
            # With the same run id, the file is that of the process that has the claim.
            if decision.owner.run_id != me.run_id:
                _delete_claim_file(files, me.run_id)
            evidence = (
                f"{decision.owner.purpose}, attempt {decision.attempt}, process "
                f"{decision.owner.process} on {decision.owner.host}, "
                f"which renewed its claim {decision.silent_ms / 1000:.1f} s ago"
            )
            raise CheckpointInUseError(files.url, me.run_id, decision.owner.run_id, evidence)
        if _publish(log, decision.attempt, me):
            if decision.stale is not None:
                logger.warning(
                    "run %s takes over %s from run %s, which did not release it",
                    *(me.run_id, files.url, decision.stale.run_id),
                )
                _delete_claim_file(files, decision.stale.run_id)
            log.purge(decision.attempt - ATTEMPTS_KEPT)
            for run_id, renewed_ms in renewals.items():
                if renewals[me.run_id] - renewed_ms > ABANDONED_CLAIM_MS:
                    _delete_claim_file(files, run_id)
            return Claim(files, decision.attempt, me, clock, renewed, decision.stale)
    raise StorageError(
        join_url(files.url, ATTEMPTS),
        f"the checkpoint could not be claimed in {MAX_CLAIM_ROUNDS} tries: the storage's listings "
        f"lag, or many other runs claim it too.",
    )


def _publish(log: MetadataLog[ClaimAttempt], attempt: int, me: ClaimAttempt) -> bool:
    # A slow claimant can add a number that others have passed and purged. It has won only if the
    # number is the newest.
    try:
        return log.add(attempt, me) and log.latest_batch_id() == attempt
    except ConcurrentUpdateError:
        return False


def claim_path(run_id: str) -> str:
    """The file that a run rewrites to renew its claim, and deletes to release it."""
    return f"{CLAIMS}/{run_id}"


def _write_claim_file(files: Files, me: ClaimAttempt, clock: Clock) -> float:
    # The clock is read before the write, so that this run never believes that its claim lasts
    # longer than others do.
    renewed = clock.uptime()
    path = claim_path(me.run_id)
    with storage_errors(join_url(files.url, path)):
        files.replace(path, to_json({"renewedMs": clock.now_ms()}).encode())
    return renewed


def _delete_claim_file(files: Files, run_id: str) -> None:
    path = claim_path(run_id)
    with storage_errors(join_url(files.url, path)):
        files.delete(path)


def has_ended(owner: ClaimAttempt) -> bool:
    """Whether the run of an owner is known to have ended; False if it is on another host."""
    if not owner.machine or owner.machine != _machine() or not owner.process_started:
        return False
    if owner.process == os.getpid() and owner.process_started == _process_started(owner.process):
        return owner.run_id not in _held  # it may have failed to delete its claim file
    try:
        os.kill(owner.process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it exists and belongs to another user
    started = _process_started(owner.process)
    return started is not None and started != owner.process_started


def _machine() -> str:
    """An id of the running kernel and process namespace, within which process ids are unique."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot_id:
            return f"{boot_id.read().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _process_started(process: int) -> int | None:
    """When a process started, in ticks since boot; 0 if it has ended, None if unknown."""
    try:
        with open(f"/proc/{process}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
