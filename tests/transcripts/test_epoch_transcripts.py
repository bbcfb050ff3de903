"""Scenarios of the epoch coordinator as text: `> input`, then what it asks to be done.

The first ten are those of Spark's own EpochCoordinatorSuite. A transcript whose output has changed
on purpose is rewritten by running this file, and reviewed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.epoch.coordinator import EpochCoordinator
from epochal.epoch.effects import (
    Acknowledge,
    CommitSink,
    Decide,
    Effect,
    Fail,
    Finish,
    Hold,
    Limit,
    LogCommit,
    Performed,
    PublishState,
    Push,
    ReadingHeld,
    Tick,
)
from epochal.epoch.epoch_files.state_chain import Publication
from epochal.epoch.event_time.query_watermark import QueryWatermark
from epochal.epoch.messages import (
    CommitPartitionEpoch,
    Done,
    EpochReply,
    EpochStarted,
    GetCurrentEpoch,
    IncrementAndGetEpoch,
    Leave,
    Peers,
    PreparedState,
    RegisterTask,
    ReportPartitionOffset,
    SetReaderPartitions,
    SetWriterPartitions,
    StatePublished,
    StopContinuousExecutionWrites,
    TaskActive,
    TaskFailed,
    TaskReady,
)
from epochal.epoch.open_epoch import Pace
from epochal.errors import EpochError

TRANSCRIPTS = sorted((Path(__file__).parent / "epoch").glob("*.txt"))
ATTEMPT = 3


class Scene:
    """A coordinator that is spoken to in lines."""

    def __init__(self, settings: dict[str, int]) -> None:
        self.readers, self.tasks = settings.get("readers", 0), settings.get("tasks", 0)
        pace = Pace(
            epoch_seconds=1,
            idle_epoch_seconds=settings.get("idle", 10),
            max_backlog=settings.get("backlog", 10_000),
            max_epochs_in_flight=settings.get("in_flight", 8),
            register_seconds=60,
        )
        delays = (settings["delay"],) if "delay" in settings else ()
        self.coordinator = EpochCoordinator(
            attempt=ATTEMPT,
            first_epoch=settings.get("first", 1),
            readers=self.readers,
            tasks=self.tasks,
            watermark=QueryWatermark(highs=(-1,) * len(delays), delays_ms=delays),
            held_at=("start",) * self.readers if "planned" in settings else None,
            pace=pace,
            publication=Publication(
                settings.get("first", 1),
                interval_seconds=10,
                retained=settings.get("retained", 100),
                is_stateful="retained" in settings,
            ),
        )

    def say(self, line: str) -> list[str]:
        """The answer to one input line."""
        word, *words = line.split()
        attempt = ATTEMPT
        if words and words[-1].startswith("attempt="):
            attempt = int(words.pop().removeprefix("attempt="))
        try:
            return self._say(word, words, attempt)
        except EpochError as error:
            return [f"refused: {error}"]

    def _say(self, word: str, words: list[str], attempt: int) -> list[str]:
        step, ask = self.coordinator.step, self.coordinator.ask
        match word, words:
            case "report", [reader, epoch, *rest]:
                position = rest[0] if rest else f"r{reader}@{epoch}"
                report = ReportPartitionOffset(attempt, int(reader), int(epoch), position)
                return shown(step(report))
            case "commit", [task, epoch, *rest]:
                return shown(step(commit_of(attempt, int(task), int(epoch), rest)))
            case "register", [task, *rest]:
                url = rest[0] if rest else f"tcp://t{task}"
                message = RegisterTask(attempt, int(task), url, b"", "host", 1)
                return answered(*ask(message))
            case "ready", [task]:
                return shown(step(TaskReady(attempt, int(task))))
            case "active", [task, epoch]:
                return shown(step(TaskActive(attempt, int(task), int(epoch))))
            case "failed", [task, error]:
                return shown(step(TaskFailed(attempt, int(task), error, "")))
            case "current", []:
                return answered(*ask(GetCurrentEpoch(attempt)))
            case "increment", []:
                return answered(*ask(IncrementAndGetEpoch(attempt)))
            case "readers", [count]:
                return answered(*ask(SetReaderPartitions(attempt, int(count))))
            case "writers", [count]:
                return answered(*ask(SetWriterPartitions(attempt, int(count))))
            case "stop-writes", []:
                return answered(*ask(StopContinuousExecutionWrites(attempt)))
            case "tick", [seconds]:
                return shown(step(Tick(float(seconds))))
            case "committed", [epoch]:
                return shown(step(Performed(LogCommit, int(epoch))))
            case "published", [task, epoch]:
                return shown(step(StatePublished(attempt, int(task), int(epoch))))
            case "hold", []:
                return shown(step(Hold()))
            case "limit", limits:
                ends = (limit.split("=") for limit in limits)
                return shown(step(Limit(tuple((int(reader), end) for reader, end in ends))))
            case "finish", []:
                return shown(step(Finish()))
            case "run", [epochs]:
                return self._run(int(epochs))
        raise AssertionError(f"no such input: {word} {words}")

    def _run(self, epochs: int) -> list[str]:
        """All tasks come, and so many epochs end."""
        for task in range(self.tasks):
            self.say(f"register {task}")
        for task in range(self.tasks):
            self.say(f"ready {task}")
        for _ in range(epochs):
            self.say("increment")
        return [f"epoch {self.coordinator.current} is being read"]


def commit_of(attempt: int, task: int, epoch: int, rest: list[str]) -> CommitPartitionEpoch:
    given = dict(word.split("=") for word in rest)
    message = given.get("message", f"w{task}@{epoch}").encode()
    state = tuple(
        PreparedState(0, int(partition), "default", epoch + 1, f"{epoch + 1}.prepared", 7)
        for partition in given.get("state", "").split(",")
        if partition
    )
    highs = (int(given["high"]),) if "high" in given else ()
    ends = (end.split("@") for end in given.get("ends", "").split(",") if end)
    return CommitPartitionEpoch(
        attempt,
        task,
        epoch,
        message,
        state,
        highs,
        checksum=int(given.get("checksum", -1)),
        positions=tuple((int(reader), position) for reader, position in ends),
        active=int(given.get("active", -1)),
    )


def answered(reply: EpochReply, effects: list[Effect]) -> list[str]:
    return [f"reply {worded(reply)}", *shown(effects)]


def shown(effects: list[Effect]) -> list[str]:
    return [effect_line(effect) for effect in effects]


def effect_line(effect: Effect) -> str:
    match effect:
        case Decide(epoch, positions, messages, state, marks):
            ends, wrote = " ".join(positions), " ".join(each.decode() for each in messages)
            parts = [f"Decide {epoch}: {ends} | {wrote}"]
            parts += [f"state of {', '.join(str(each.partition) for each in state)}"] * bool(state)
            if effect.checksums:
                parts.append(f"version {effect.published} and epoch files {effect.checksums}")
            parts += [f"highs {marks.highs[0]}, watermark {marks.own_ms}"] if marks.highs else []
            return " | ".join(parts)
        case CommitSink(epoch):
            return f"CommitSink {epoch}"
        case PublishState(epoch, state):
            return f"PublishState {epoch}"
        case LogCommit(epoch, next_watermark_ms):
            return f"LogCommit {epoch}" + f", watermark {next_watermark_ms}" * bool(
                next_watermark_ms
            )
        case Acknowledge(epoch):
            return f"Acknowledge {epoch}"
        case ReadingHeld(epoch, positions):
            return f"Held at {epoch}: {' '.join(positions)}"
        case Push(message, task):
            to = "all" if task is None else f"task {task}"
            return f"push to {to}: {worded(message)}"
        case Fail(error):
            return f"Fail: {error}"


def worded(message: EpochReply) -> str:
    match message:
        case Done():
            return "done"
        case Leave():
            return "leave"
        case Peers(peers=peers):
            return f"peers {' '.join(peer.url for peer in peers)}"
        case EpochStarted(epoch=epoch, watermarks=highs, hold=hold, limits=limits):
            text = f"epoch {epoch}" + (
                f", highs {max(highs)}" if max(highs, default=-1) > 0 else ""
            )
            text += ", hold" * hold
            if message.publish >= 0:
                text += f", publish {message.publish}, version {message.floor} is needed"
            return text + (f", limits {dict(limits)}" if limits is not None else "")


def replayed(text: str) -> str:
    """The transcript with the outputs that the coordinator gives today."""
    scene: Scene | None = None
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("#") or not line:
            lines.append(line)
        elif line.startswith("> coordinator"):
            pairs = (word.split("=") for word in line.split()[2:])
            scene = Scene({key: int(value) for key, value in pairs})
            lines.append(line)
        elif line.startswith("> "):
            assert scene is not None, "a transcript begins with `> coordinator`"
            lines += [line, *(f"  {output}" for output in scene.say(line[2:]))]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_coordinator_does_what_the_transcript_says(path: Path) -> None:
    assert replayed(path.read_text()) == path.read_text()


def test_all_scenarios_of_sparks_suite_are_there() -> None:
    numbers = [path.stem[6:8] for path in TRANSCRIPTS if path.stem.startswith("spark_")]
    assert numbers == [f"{number:02}" for number in range(1, 11)]


if __name__ == "__main__":
    for transcript in TRANSCRIPTS:
        transcript.write_text(replayed(transcript.read_text()))
