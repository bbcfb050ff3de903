"""Checks a query against a checkpoint: `epochal.check(query, checkpoint)`."""

from __future__ import annotations

from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from epochal.checkpoint.restart import SHUFFLE_PARTITIONS
from epochal.errors import OptionError, UnsupportedPlanError
from epochal.files import Files, open_files
from epochal.tools.upgrade.checkpoint_facts import read_pins
from epochal.tools.upgrade.spark_facts import needs_of_frame
from epochal.tools.upgrade.upgrade_findings import Needs, UpgradeReport, pins_of
from epochal.tools.upgrade.upgrade_rules import compare

if TYPE_CHECKING:
    from epochal.continuous.api.stream import Stream


def check(
    query: Any,
    checkpoint: str | Files | None = None,
    *,
    before: Any = None,
    output_mode: str | None = None,
) -> UpgradeReport:
    """Say whether a query can continue from a checkpoint. Nothing is started or changed.

    `query` is a streaming DataFrame, a Stream, or the writer of one that has not been started. The
    output mode is the writer's; without a writer it is append unless `output_mode` is given.
    Without a checkpoint, `before` is the query that would have left it.
    """
    if (checkpoint is None) == (before is None):
        raise OptionError("Give either a checkpoint or the query before the change.")
    if checkpoint is None:
        return check_after(query, needs_of(before, output_mode), output_mode)
    files = open_files(checkpoint) if isinstance(checkpoint, str) else checkpoint
    if files.info("") is None:
        raise OptionError(f"There is no checkpoint {files.url}. Correct the path.")
    pins = read_pins(files)
    return compare(pins, _needs(query, pins.conf or None, files, output_mode))


def needs_of(query: Any, output_mode: str | None = None) -> Needs:
    """What a query needs, and would pin in a new checkpoint."""
    with TemporaryDirectory(prefix="epochal-check-") as empty:
        return _needs(query, None, open_files(empty), output_mode)


def check_after(query: Any, before: Needs, output_mode: str | None = None) -> UpgradeReport:
    """Say whether a query can continue from a checkpoint of another one."""
    if before.refused:
        raise OptionError(f"The query before the change cannot run: {before.refused}")
    pins = pins_of(before)
    with TemporaryDirectory(prefix="epochal-check-") as empty:
        return compare(pins, _needs(query, pins.conf, open_files(empty), output_mode))


def _needs(
    query: Any, pinned: Mapping[str, str] | None, files: Files, output_mode: str | None
) -> Needs:
    module, name = type(query).__module__, type(query).__name__
    if module.startswith("pyspark.sql.connect"):
        raise OptionError(
            "The query is of a Spark Connect session, whose plans are on the server. Check it in a "
            "classic session: SparkSession.builder.master(...)."
        )
    match name:
        case "DataFrame":
            return needs_of_frame(query, output_mode=output_mode or "append", pinned=pinned)
        case "DataStreamWriter":
            mode = output_mode or written_mode(query)
            return needs_of_frame(query._df, output_mode=mode, pinned=pinned)
        case "DataFrameWriter" if module.startswith("epochal."):
            return _frame_needs(query._frame, files, output_mode or query._mode, pinned)
        case "StreamWriter" if module.startswith("epochal."):
            return _stream_needs(query.stream, files, output_mode or query.mode, query.given or {})
        case "Stream" if module.startswith("epochal."):
            return _stream_needs(query, files, output_mode or "append", {})
    raise OptionError(
        f"A stream or its writer can be checked, not {name}. Pass df.writeStream... before start()."
    )


def _frame_needs(df: Any, files: Files, mode: str, pinned: Mapping[str, str] | None) -> Needs:
    """What a DataFrame needs that our engine runs."""
    from epochal.continuous.catalyst.releases import release_of
    from epochal.continuous.catalyst.translation import read_plan
    from epochal.continuous.run.take_over import FRAME_KEYS, session_settings
    from epochal.tools.upgrade.spark_facts import needs_of_tree

    release, session = release_of(df.sparkSession), session_settings(df.sparkSession, FRAME_KEYS)
    try:
        plan = read_plan(df, output_mode=mode, pinned=pinned, runs_jobs=False)
    except UnsupportedPlanError as error:
        return Needs(release, (), {}, session, mode, ours=True, refused=str(error))
    return needs_of_tree(
        plan.tree,
        files,
        release=release,
        session=session,
        output_mode=mode,
        is_frame=True,
        lines=plan.occurrences,
    )


def _stream_needs(stream: Stream, files: Files, mode: str, settings: Mapping[str, str]) -> Needs:
    """What a query of our own builder needs."""
    from epochal.continuous.catalyst.releases import release_of
    from epochal.continuous.run.take_over import session_settings
    from epochal.tools.upgrade.spark_facts import needs_of_tree

    session = session_settings(stream.spark)
    partitions = {key.lower(): value for key, value in settings.items()}.get("statepartitions")
    if partitions is not None:
        session[SHUFFLE_PARTITIONS] = partitions
    return needs_of_tree(
        stream.tree,
        files,
        release=release_of(stream.spark),
        session=session,
        output_mode=mode,
        is_frame=False,
    )


def written_mode(writer: Any) -> str:
    """The output mode of Spark's writer."""
    return str(java_field(writer, "outputMode").toString()).lower()


def written_options(writer: Any) -> dict[str, str]:
    """The options of Spark's writer, with lower-case names."""
    from epochal.evaluator.spark_classes import texts_of

    options = texts_of(java_field(writer, "extraOptions"))
    return {key.lower(): value for key, value in options.items()}


def java_field(writer: Any, name: str) -> Any:
    """A private field of Spark's writer, which has no public way to read it."""
    java = writer._jwrite
    field = java.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(java)
