"""Decides whether a query can continue from a checkpoint: the verdict on every difference. Pure.

The rules are those of Spark 4.3's restart, and of our engine's. Where the engine refuses, a
difference has a part of its message. Where it accepts a change that makes results wrong, the
difference says so.
"""

from __future__ import annotations

from epochal.checkpoint.pinned import NEW_QUERY_DEFAULTS, PROVIDER, SOURCE_EVOLUTION, conf_in_force
from epochal.checkpoint.restart import SHUFFLE_PARTITIONS
from epochal.state.store.store_format import format_of_class
from epochal.tools.upgrade.source_rules import compare_names, compare_sources
from epochal.tools.upgrade.state_rules import NO_DELTA, compare_state
from epochal.tools.upgrade.upgrade_findings import (
    EPOCHAL,
    SPARK,
    AfterCommand,
    Impossible,
    Needs,
    Pins,
    Safe,
    UpgradeDifference,
    UpgradeReport,
    edit_command,
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


def compare(pins: Pins, needs: Needs) -> UpgradeReport:
    """Compare what the checkpoint pins with what the query needs."""
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
            AfterCommand(shell_command("checkpoint", "publish", pins.url, "--execute"), why),
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
