"""One writer at a time: a run owns a checkpoint from its claim until it ends, dies or falls silent.

A claim is a numbered attempt, created if absent: of all who race for a number one wins, and the
newest attempt is the owner. A run that restarts its tasks begins a further attempt of its own. The
owner shows that it lives by rewriting its lease every few seconds. Ages are compared by the
storage's own clock (a claimant writes a lease too and compares the two times of modification), so
the clocks of hosts need not agree.

What a reader would get wrong: an owner that was silent for longer than its lease has lost the
checkpoint even if nobody has claimed it yet. It may not renew and carry on, because somebody may
be between finding the lease stale and publishing the next attempt.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

from epochal.checkpoint.layout import ATTEMPTS, LEASES
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

DEFAULT_LEASE_SECONDS = 30.0
RENEWALS_PER_LEASE = 6
ATTEMPTS_KEPT = 100
MAX_CLAIM_ROUNDS = 100
FORGOTTEN_LEASE_MS = 24 * 3600 * 1000
"""Left by a claimant that died before its claim was decided."""

_RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class Attempt:
    """Who claimed the checkpoint, as recorded in `.epochal/attempts/N`."""

    run_id: str
    purpose: str
    host: str
    machine: str
    """The boot of the kernel and the process namespace that `process` counts in; may be empty."""
    process: int
    process_started: int
    """In ticks since boot; 0 if unknown. Process numbers are reused, this pair is not."""
    started_ms: int
    lease_ms: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """The checkpoint is free: publish this attempt."""

    attempt: int
    stale: Attempt | None = None
    """Whose claim ended without being released."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The checkpoint is owned."""

    attempt: int
    owner: Attempt
    silent_ms: int


Decision: TypeAlias = Claimed | Refused


def decide_claim(
    newest: tuple[int, Attempt] | None,
    leases: Mapping[str, int],
    me: Attempt,
    now_ms: int,
    gone: Collection[str] = (),
) -> Decision:
    """Whether `me` may claim, given the newest attempt and when each run renewed its lease.

    A run without a lease has released it. `gone` are runs whose process is known to have ended.
    """
    if newest is None:
        return Claimed(0)
    number, owner = newest
    renewed_ms = leases.get(owner.run_id)
    if renewed_ms is None or _same_process(owner, me):
        return Claimed(number + 1)
    silent_ms = max(0, now_ms - renewed_ms)
    if owner.run_id in gone or silent_ms > owner.lease_ms:
        return Claimed(number + 1, stale=owner)
    return Refused(number, owner, silent_ms)


def _same_process(owner: Attempt, me: Attempt) -> bool:
    return (
        owner.run_id == me.run_id
        and owner.machine == me.machine
        and owner.host == me.host
        and (owner.process, owner.process_started) == (me.process, me.process_started)
    )


class AttemptFormat:
    """Version line, then a line of JSON."""

    def serialize(self, entry: Attempt) -> bytes:
        found = {
            "runId": entry.run_id,
            "purpose": entry.purpose,
            "host": entry.host,
            "machine": entry.machine,
            "process": entry.process,
            "processStarted": entry.process_started,
            "startedMs": entry.started_ms,
            "leaseMs": entry.lease_ms,
        }
        return f"v1\n{to_json(found)}".encode()

    def deserialize(self, data: bytes, path: str) -> Attempt:
        lines = text_lines(data, path)
        parse_version(lines[0] if lines else "", 1, path)
        found = parse_object("\n".join(lines[1:]), path)
        return Attempt(
            run_id=string_of(found, "runId", path),
            purpose=string_of(found, "purpose", path),
            host=string_of(found, "host", path),
            machine=string_of(found, "machine", path),
            process=long_of(found, "process", path),
            process_started=long_of(found, "processStarted", path),
            started_ms=long_of(found, "startedMs", path),
            lease_ms=long_of(found, "leaseMs", path),
        )


ATTEMPT_FORMAT = AttemptFormat()


class Guard:
    """A claim that was won. Use as a context manager, or call `release`."""

    def __init__(
        self,
        files: Files,
        attempt: int,
        me: Attempt,
        clock: Clock,
        renewed: tuple[float, int],
        stale: Attempt | None,
    ) -> None:
        self.attempt = attempt
        self.run_id = me.run_id
        self.took_over = stale
        """The run that had not released the checkpoint, if there was one."""
        self._files, self._me, self._clock = files, me, clock
        self._renewed = renewed
        self._lost = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def acquire(
        cls,
        files: Files,
        run_id: str,
        *,
        purpose: str,
        clock: Clock | None = None,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        background: bool = True,
    ) -> Guard:
        """Claim the checkpoint at `files`; CheckpointInUseError if a live run owns it.

        With `background` a thread renews the lease; without, the caller must call `renew`.
        """
        if not _RUN_ID.fullmatch(run_id):
            raise OptionError(f"A run id is letters, digits, `-`, `_` and `.`, not {run_id!r}.")
        clock = clock or SystemClock()
        me = identify(run_id, purpose, clock.now_ms(), round(lease_seconds * 1000))
        guard = _claim(files, me, clock)
        if background:
            guard._start()
        return guard

    def renew(self) -> bool:
        """Rewrite the lease, unless it has run out already; returns whether it is still held."""
        with self._lock:
            if self._lapsed() or self._stop.is_set():
                return False
            self._renewed = _write_lease(self._files, self._me, self._clock)
            return True

    def still_mine(self) -> bool:
        """Whether no other run can have taken over. Once False, it stays False."""
        with self._lock:
            if self._lapsed() or self._stop.is_set():
                return False
            following = f"{ATTEMPTS}/{self.attempt + 1}"
            with storage_errors(join_url(self._files.url, following)):
                self._lost = self._files.info(following) is not None
            return not self._lost

    def next_attempt(self, *, above: int = -1) -> int:
        """Begin another attempt of this run; CheckpointLostError if the run was fenced.

        `above` is the newest attempt that the checkpoint's decisions name: numbers must not be
        used again, even if the record of them was lost on the way to another disk.
        """
        with self._lock:
            if self._lapsed() or self._stop.is_set():
                raise self._fenced("it was silent for longer than its lease, or has released it")
            attempt = max(self.attempt, above) + 1
            log = MetadataLog(self._files.at(ATTEMPTS), ATTEMPT_FORMAT)
            if not self._record(log, attempt):
                self._lost = True
                owner = log.get_latest()
                assert owner is not None
                raise self._fenced(f"run {owner[1].run_id} has begun attempt {owner[0]}")
            self.attempt = attempt
            log.purge(attempt - ATTEMPTS_KEPT)
            return attempt

    def _record(self, log: MetadataLog[Attempt], attempt: int) -> bool:
        me = replace(self._me, started_ms=self._clock.now_ms())
        if log.latest_batch_id() in (None, self.attempt) and _publish(log, attempt, me):
            return True
        # The answer to an earlier try may have been lost: what is there can be ours.
        newest = log.get_latest()
        return newest is not None and newest[0] == attempt and _same_process(newest[1], self._me)

    def _fenced(self, reason: str) -> CheckpointLostError:
        return CheckpointLostError(self._files.url, self.run_id, reason)

    def release(self) -> None:
        """Give the checkpoint up. Does nothing the second time."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._lock:
            if not self._lapsed():
                _delete_lease(self._files, self.run_id)
            self._lost = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _lapsed(self) -> bool:
        monotonic, now_ms = self._renewed
        silent_seconds = self._clock.monotonic() - monotonic
        # Monotonic time stands still while a machine sleeps; wall time does not.
        silent_ms = max(silent_seconds * 1000, self._clock.now_ms() - now_ms)
        self._lost = self._lost or silent_ms >= self._me.lease_ms
        return self._lost

    def _start(self) -> None:
        self._thread = threading.Thread(
            target=self._keep_renewing, name=f"lease-{self.run_id}", daemon=True
        )
        self._thread.start()

    def _keep_renewing(self) -> None:
        interval = self._me.lease_ms / 1000 / RENEWALS_PER_LEASE
        while not self._stop.wait(interval):
            try:
                if not self.renew():
                    logger.warning("run %s lost %s", self.run_id, self._files.url)
                    return
            except StorageError as error:
                logger.warning("lease of run %s not renewed: %s", self.run_id, error)


def identify(run_id: str, purpose: str, now_ms: int, lease_ms: int) -> Attempt:
    """This process, as an attempt would record it."""
    process = os.getpid()
    return Attempt(
        run_id=run_id,
        purpose=purpose,
        host=socket.gethostname(),
        machine=_machine(),
        process=process,
        process_started=_process_started(process) or 0,
        started_ms=now_ms,
        lease_ms=lease_ms,
    )


def _claim(files: Files, me: Attempt, clock: Clock) -> Guard:
    log = MetadataLog(files.at(ATTEMPTS), ATTEMPT_FORMAT)
    for _ in range(MAX_CLAIM_ROUNDS):
        # The lease comes before the attempt: whoever sees the attempt must find its owner alive.
        renewed = _write_lease(files, me, clock)
        try:
            newest = log.get_latest()
        except MissingBatchError:
            continue  # purged by a faster claimant
        leases = _leases(files)
        if me.run_id not in leases:
            continue  # listed too early by a storage that lags
        gone = [newest[1].run_id] if newest and _has_ended(newest[1], me) else []
        decision = decide_claim(newest, leases, me, leases[me.run_id], gone)
        if isinstance(decision, Refused):
            if decision.owner.run_id != me.run_id:
                _delete_lease(files, me.run_id)
            raise _in_use(files.url, me, decision)
        if _publish(log, decision.attempt, me):
            if decision.stale is not None:
                logger.warning(
                    "run %s takes %s over from run %s", me.run_id, files.url, decision.stale.run_id
                )
                _delete_lease(files, decision.stale.run_id)
            _tidy(files, log, decision.attempt, leases, leases[me.run_id])
            return Guard(files, decision.attempt, me, clock, renewed, decision.stale)
    raise StorageError(join_url(files.url, ATTEMPTS), "no claim came through; storage is unstable")


def _publish(log: MetadataLog[Attempt], attempt: int, me: Attempt) -> bool:
    try:
        return log.add(attempt, me) and log.latest_batch_id() == attempt
    except ConcurrentUpdateError:
        return False


def _tidy(
    files: Files, log: MetadataLog[Attempt], attempt: int, leases: Mapping[str, int], now_ms: int
) -> None:
    log.purge(attempt - ATTEMPTS_KEPT)
    for run_id, renewed_ms in leases.items():
        if now_ms - renewed_ms > FORGOTTEN_LEASE_MS:
            _delete_lease(files, run_id)


def _in_use(url: str, me: Attempt, refused: Refused) -> CheckpointInUseError:
    owner = refused.owner
    evidence = (
        f"{owner.purpose}, attempt {refused.attempt}, process {owner.process} on {owner.host}, "
        f"last heard of {refused.silent_ms / 1000:.1f} s ago"
    )
    return CheckpointInUseError(url, me.run_id, owner.run_id, evidence)


def _lease_path(run_id: str) -> str:
    return f"{LEASES}/{run_id}"


def _write_lease(files: Files, me: Attempt, clock: Clock) -> tuple[float, int]:
    renewed = clock.monotonic(), clock.now_ms()
    path = _lease_path(me.run_id)
    with storage_errors(join_url(files.url, path)):
        files.replace(path, to_json({"renewedMs": renewed[1]}).encode())
    return renewed


def _delete_lease(files: Files, run_id: str) -> None:
    path = _lease_path(run_id)
    with storage_errors(join_url(files.url, path)):
        files.delete(path)


def _leases(files: Files) -> dict[str, int]:
    with storage_errors(join_url(files.url, LEASES)):
        return {info.name: info.modified_ms for info in files.list(LEASES) if not info.hidden}


def _has_ended(owner: Attempt, me: Attempt) -> bool:
    if not owner.machine or owner.machine != me.machine or not owner.process_started:
        return False
    try:
        os.kill(owner.process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # another user's, and alive
    started = _process_started(owner.process)
    return started is not None and started != owner.process_started


def _machine() -> str:
    """The running kernel and process namespace: the same for all who see the same processes."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot_id:
            return f"{boot_id.read().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _process_started(process: int) -> int | None:
    """When a process started, in ticks since boot; 0 if it has ended, None if nobody says."""
    try:
        with open(f"/proc/{process}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
