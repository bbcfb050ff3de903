"""Decides whether a query can continue from a checkpoint: the verdict on every difference. Pure.

The rules are those of Spark 4.3's restart, and of our engine's. Where the engine refuses, a
difference has a part of its message. Where it accepts a change that makes results wrong, the
difference says so.

Without names, Spark finds the offset of a source by its position and checks only that there are as
many sources as offsets. Two sources that change places, or one that is replaced by another of the
same kind, are accepted: each then reads from the offset of the other. Some sources notice: those of
files, because they read their last files again when they start, and those of Kafka, because the
offset names topics that they do not read. Our engine finds offsets by position only. Its file
source reads no file again.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase as fnmatch

from epochal.checkpoint.restart import (
    NEW_QUERY_DEFAULTS,
    PROVIDER,
    SHUFFLE_PARTITIONS,
    SOURCE_EVOLUTION,
    conf_in_force,
)
from epochal.state.store.store_format import format_of_class
from epochal.tools.upgrade.state_rules import NO_DELTA, compare_state
from epochal.tools.upgrade.upgrade_findings import (
    ACCEPTS,
    EPOCHAL,
    FILE,
    KAFKA,
    NUMBER,
    OTHER,
    RATE,
    RATE_MICRO_BATCH,
    SPARK,
    AfterCommand,
    Impossible,
    Needs,
    Pins,
    Safe,
    SourceFact,
    Unclear,
    UpgradeDifference,
    UpgradeReport,
    UpgradeVerdict,
    edit_command,
    migrate_command,
    report_of,
    shell_command,
)

NOT_RECORDED = (
    "the output mode, except of transformWithState",
    "the delay of watermarks",
    "filters and expressions before an operator",
    "the condition and the kind of a join",
    "the sink",
)
"""What a checkpoint does not contain."""

UNREADABLE_VERSION = "INVALID_LOG_VERSION"
COUNT_CHANGED = "sources requested by the query"
"""A part of Spark's message; this assertion has no condition."""
UNNAMED = "STREAMING_QUERY_EVOLUTION_ERROR.UNNAMED_STREAMING_SOURCES_WITH_ENFORCEMENT"
CANNOT_NAME = "STREAMING_QUERY_EVOLUTION_ERROR.CANNOT_ENABLE_ON_EXISTING_CHECKPOINT"
NO_NAMES = "All sources should be named"
"""A part of Spark's message if the session does not ask for names itself."""
NOT_READABLE = "offset"
"""Spark fails with an error of its JSON parser, which differs from source to source."""
NO_PATH = "No usable value for path"
"""A file source finds the log of a rate source in its directory."""
WRONG_DIRECTORY = "Wrong basePath"
"""At every start a file source reads its last files again, which must be in its directory."""

NO_LOG = "doesn't exist"
"""A part of the message if a file source has an offset, but no log of its files."""
DUPLICATE_NAMES = "STREAMING_QUERY_EVOLUTION_ERROR.DUPLICATE_SOURCE_NAMES"

DATA_LOSS = "have been deleted"
"""A part of the message if a source does not find the topics of its offset."""
MALFORMED = "MALFORMED"
"""Our sources cannot read the log or the offset of another kind of source."""
OUR_COUNT_CHANGED = "it has offsets of"
"""A part of our engine's message."""

FIRST_WITH_NAMES = (4, 2)
_NUMBERS = (RATE, NUMBER)


def compare(pins: Pins, needs: Needs) -> UpgradeReport:
    engine = EPOCHAL if needs.ours else SPARK
    if (refused := _compare_start(pins, needs)) is not None:
        return report_of(pins.url, [refused], (), engine)
    if not pins.sources and not pins.operators:
        return report_of(pins.url, [], (), engine)  # a new checkpoint
    differences = [
        *compare_release(pins, needs),
        *_compare_published(pins, needs),
        *compare_sources(pins, needs),
        *compare_state(pins, needs),
        *compare_settings(pins, needs),
    ]
    return report_of(pins.url, differences, NOT_RECORDED, engine)


def _compare_start(pins: Pins, needs: Needs) -> UpgradeDifference | None:
    """What keeps the query from starting, whatever its operators are."""
    if needs.refused:
        why = f"{EPOCHAL if needs.ours else SPARK} refuses this query on any checkpoint"
        return UpgradeDifference("query", "", needs.refused, Impossible(why), needs.refused)
    if (difference := compare_names(needs)) is not None:
        return difference
    if pins.failure:
        why = f"{pins.failure}. See `epochal checkpoint verify`"
        return UpgradeDifference(
            "checkpoint", pins.failure, "", Impossible(why), pins.failure_condition
        )
    if needs.refused_here:
        why = "the engine cannot continue what this checkpoint has"
        return UpgradeDifference(
            "checkpoint", "", needs.refused_here, Impossible(why), needs.refused_here
        )
    return None


def _compare_published(pins: Pins, needs: Needs) -> list[UpgradeDifference]:
    """State that our engine has not written under Spark's names."""
    if needs.ours or pins.unpublished is None:
        return []
    why = "a continuous query was killed, and Spark's files do not have its newest state"
    return [
        UpgradeDifference(
            "state",
            f"batch {pins.unpublished} in epoch files",
            "Spark's files",
            AfterCommand(why, shell_command("checkpoint", "publish", pins.url, "--execute")),
            NO_DELTA,
        )
    ]


def compare_release(pins: Pins, needs: Needs) -> list[UpgradeDifference]:
    """Log versions that the release of Spark cannot read."""
    release = ".".join(map(str, needs.release))
    differences = []
    if pins.offset_version > 1 and needs.release < (4, 2):
        why = "only Spark 4.2 and later read offset logs of version 2"
        differences.append(
            UpgradeDifference(
                "Spark release", "offset log v2", release, Impossible(why), UNREADABLE_VERSION
            )
        )
    oldest = {1: (3, 5), 2: (4, 0), 3: (4, 2)}[pins.commit_version]
    if needs.release < oldest:
        why = f"commit logs of version {pins.commit_version} need Spark {oldest[0]}.{oldest[1]}"
        was = f"commit log v{pins.commit_version}"
        differences.append(
            UpgradeDifference("Spark release", was, release, Impossible(why), UNREADABLE_VERSION)
        )
    return differences


def compare_settings(pins: Pins, needs: Needs) -> list[UpgradeDifference]:
    """Settings of the session that the checkpoint overrides."""
    in_force = conf_in_force(pins.conf, needs.session)
    differences = []
    for key in sorted(NEW_QUERY_DEFAULTS):
        wanted = needs.session.get(key)
        if wanted is None or wanted == in_force[key] or key == SOURCE_EVOLUTION:
            continue
        why = "the checkpoint's value stays in force"
        verdict = Safe(why, _instead(pins, key, wanted))
        differences.append(UpgradeDifference(key, in_force[key], wanted, verdict))
    return differences


def _instead(pins: Pins, key: str, wanted: str) -> str:
    """The command that puts the session's value in force."""
    store_format = format_of_class(wanted)
    if not pins.operators:
        return ""
    if key == SHUFFLE_PARTITIONS:
        return edit_command("repartition", pins.url, "--partitions", wanted)
    if key == PROVIDER and store_format is not None:
        return edit_command("convert", pins.url, "--to", store_format.name)
    return ""


def compare_sources(pins: Pins, needs: Needs) -> list[UpgradeDifference]:
    """Compare the sources; a named source is found by its name, another by its position."""
    named = [source for source in pins.sources if not source.key.isdigit()]
    asks_names = [source for source in needs.sources if not source.key.isdigit()]
    if named:
        return _compare_named(pins, needs)
    if asks_names:
        return [_naming(pins, needs)]
    if len(pins.sources) != len(needs.sources) and (pins.offset_version == 1 or needs.ours):
        return [_count(pins, needs)]
    if swapped := _compare_order(pins, needs):
        return [swapped]
    return [
        difference
        for was, wants in zip(pins.sources, needs.sources, strict=False)
        if (difference := _compare(was, wants, ours=needs.ours)) is not None
    ]


def compare_names(needs: Needs) -> UpgradeDifference | None:
    """What Spark says of the names, whatever the checkpoint is."""
    names = [source.key for source in needs.sources if not source.key.isdigit()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if needs.ours or not twice:
        return None
    why = (
        "each branch of the plan that reads a source counts as a source, and two must not have the "
        "same name. Read it once for each branch, each time under another name"
    )
    wants = f"{', '.join(twice)} in several branches"
    return UpgradeDifference("sources", "", wants, Impossible(why), DUPLICATE_NAMES)


def _count(pins: Pins, needs: Needs) -> UpgradeDifference:
    was, wants = (f"{len(side)}: {_list_sources(side)}" for side in (pins.sources, needs.sources))
    verdict: UpgradeVerdict
    if needs.ours or needs.release < FIRST_WITH_NAMES:
        verdict = Impossible("offsets belong to sources by position, and their number has changed")
    else:
        names = {index: f"source{index}" for index in range(len(pins.sources))}
        branches = (
            ". Every branch of the plan that reads a source counts as a source, and needs a reader "
            "and a name of its own"
        )
        verdict = AfterCommand(
            "offsets belong to sources by position. With names they belong to sources by name: "
            "choose names, give them to the sources with .name(...), and set "
            "spark.sql.streaming.queryEvolution.enableSourceEvolution to true. A new source then "
            "starts at its beginning" + branches * any(source.shares for source in needs.sources),
            migrate_command(pins.url, names),
        )
    refusal = OUR_COUNT_CHANGED if needs.ours else COUNT_CHANGED
    return UpgradeDifference("sources", was, wants, verdict, refusal)


def _naming(pins: Pins, needs: Needs) -> UpgradeDifference:
    positions = {
        index: source.key for index, source in enumerate(needs.sources) if index < len(pins.sources)
    }
    return UpgradeDifference(
        "sources",
        f"by position: {_list_sources(pins.sources)}",
        f"by name: {', '.join(source.key for source in needs.sources)}",
        AfterCommand(
            "the offset log has version 1, which has no names. Check that each position gets the "
            "name of the source that it belongs to",
            migrate_command(pins.url, positions),
        ),
        CANNOT_NAME if pins.offset_version == 1 else UNNAMED,
    )


def _compare_named(pins: Pins, needs: Needs) -> list[UpgradeDifference]:
    had, asked = ({source.key: source for source in side} for side in (pins.sources, needs.sources))
    if unnamed := [source for source in needs.sources if source.key.isdigit()]:
        why = "the checkpoint finds offsets by name. Give each source its name with .name(...)"
        enforced = needs.session.get(SOURCE_EVOLUTION, "false").lower() == "true"
        refusal = UNNAMED if enforced else NO_NAMES
        return [
            UpgradeDifference(
                "sources", ", ".join(had), _list_sources(unnamed), Impossible(why), refusal
            )
        ]
    differences = []
    for name in sorted(had.keys() | asked.keys()):
        if name not in asked:
            why = "the source is not read any more; rows that it has not delivered yet are lost"
            differences.append(
                UpgradeDifference(f"source {name}", str(had[name]), "gone", Unclear(why))
            )
        elif name not in had:
            why = "the source is new and starts at its beginning"
            differences.append(
                UpgradeDifference(f"source {name}", "absent", str(asked[name]), Safe(why))
            )
        elif (difference := _compare(had[name], asked[name], ours=needs.ours)) is not None:
            differences.append(difference)
    return differences


def _compare_order(pins: Pins, needs: Needs) -> UpgradeDifference | None:
    """Sources that are the same all together, but not one by one."""
    are_comparable = all(
        source.places or source.pattern for source in (*pins.sources, *needs.sources)
    )
    pairs = list(zip(pins.sources, needs.sources, strict=False))
    wrong = [(was, wants) for was, wants in pairs if not covers(wants, was)]
    if not are_comparable or not wrong:
        return None
    if not all(any(covers(wants, was) for wants in needs.sources) for was in pins.sources):
        return None
    refusals = [_refusal(was, wants, ours=needs.ours) for was, wants in wrong]
    return UpgradeDifference(
        "sources",
        _list_sources(pins.sources),
        _list_sources(needs.sources),
        Impossible(
            "the sources have changed places, so each would continue from the offset of another. "
            "Put them back into the order of the checkpoint"
        ),
        next(filter(None, refusals), ACCEPTS),
    )


def _compare(was: SourceFact, wants: SourceFact, *, ours: bool) -> UpgradeDifference | None:
    subject = f"source {wants.key}"
    if not same_kind(was.kind, wants.kind):
        why = f"an offset of {was.kind} means nothing to {wants.kind}. Use a new checkpoint"
        refusal = MALFORMED if ours else NOT_READABLE
        if wants.kind == FILE and not ours:
            refusal = {RATE: NO_PATH, NUMBER: ACCEPTS}.get(was.kind, NOT_READABLE)
        return UpgradeDifference(subject, str(was), str(wants), Impossible(why), refusal)
    if was.shares and wants.kind == FILE and not (wants.shares or ours):
        why = (
            "the checkpoint has one log of files for several branches of the plan, and none for "
            "this one. Read the directory once, and use that DataFrame in all of these branches"
        )
        was_text, wants_text = "read together with an earlier branch", f"{wants}, read by itself"
        return UpgradeDifference(subject, was_text, wants_text, Impossible(why), NO_LOG)
    is_known = bool(was.places and (wants.places or wants.pattern))
    if is_known and not covers(wants, was):
        return _moved(subject, was, wants, ours=ours)
    if is_known and wants.kind == KAFKA and wants.places - was.places:
        why = "new topics are read from their first record, whatever startingOffsets says"
        return UpgradeDifference(subject, str(was), str(wants), Safe(why))
    return None


def _moved(subject: str, was: SourceFact, wants: SourceFact, *, ours: bool) -> UpgradeDifference:
    """A source of the same kind that reads from another place."""
    refusal = _refusal(was, wants, ours=ours)
    verdict: UpgradeVerdict
    if refusal == WRONG_DIRECTORY:
        verdict = Impossible(
            "a file source reads its last files again when it starts, and they are not in the new "
            "directory. Read a pattern that matches both directories, or use a new checkpoint"
        )
    elif wants.kind == KAFKA:
        verdict = Unclear(
            "topics of the checkpoint are not read any more, and rows of them that were not "
            "processed yet are lost. If that is right, set failOnDataLoss to false for one start"
        )
    else:
        verdict = Unclear(
            "the source reads from other places, all of which counts as new. What is left in the "
            "old places is not read"
        )
    return UpgradeDifference(subject, str(was), str(wants), verdict, refusal)


def _refusal(was: SourceFact, wants: SourceFact, *, ours: bool) -> str:
    """With what a source refuses to continue at a place that it does not read."""
    is_pattern = any(set("*?[{") & set(place) for place in wants.places)
    if wants.kind == FILE and not is_pattern and not ours:
        return WRONG_DIRECTORY
    if KAFKA in (was.kind, wants.kind) and wants.fails_on_loss:
        return DATA_LOSS
    return ACCEPTS


def covers(wants: SourceFact, was: SourceFact) -> bool:
    """Whether a source reads the places that the checkpoint's source has read."""
    if wants.pattern:
        return all(re.fullmatch(wants.pattern, place) for place in was.places)
    return all(any(_is_in(place, asked) for asked in wants.places) for place in was.places)


def _is_in(place: str, asked: str) -> bool:
    return place == asked or place.startswith(f"{asked}/") or fnmatch(place, asked)


def same_kind(was: str, wants: str) -> bool:
    """Whether a source of the kind `wants` can read an offset of the kind `was`."""
    if OTHER in (was, wants):
        return True  # not known
    if was == NUMBER:
        return wants not in (FILE, KAFKA, RATE_MICRO_BATCH)
    return was == wants or (was in _NUMBERS and wants in _NUMBERS)


def _list_sources(sources: tuple[SourceFact, ...] | list[SourceFact]) -> str:
    return "; ".join(str(source) for source in sources) or "none"
