"""A world whose query is a tree: joins, unions, a source that is read twice, epoch watermarks."""

from __future__ import annotations

from typing import Any

from tests.simulation.engine_world import World, WorldSource
from tests.simulation.pipeline import EventReaders
from tests.simulation.simulated_driver import visible
from tests.simulation.tree_pipeline import KINDS, PARTITIONS_PER_SOURCE, Kept, Model, tree_plan

from epochal.checkpoint.entries import CommitLog
from epochal.continuous.operators.contract import Row
from epochal.continuous.plan.stages import QueryPlan
from epochal.continuous.tasks.task_stores import StateStart, TaskStores
from epochal.epoch.manifest import manifest_of
from epochal.testing.driver.processes import CHECKPOINT, CONF
from epochal.testing.driver.staged_sink import StagingWriter


class TreeWorld(World):
    """One run of a tree, from one seed."""

    retained = 100_000  # the logs of all epochs are needed to compute what the sink must show
    counts_totals = False
    kind: str

    def _plan(self) -> QueryPlan:
        shape = self.shape
        self.kind = self.chance.choice(KINDS)
        readers = EventReaders(shape.rows, shape.keys, shape.per_read, breathe=True)
        writers: Any = StagingWriter(self.truth, None)  # type: ignore[arg-type]
        return tree_plan(self.kind, writers, readers, shape.state_partitions)

    def _sources(self) -> list[Any]:
        shape, files = self.shape, self.truth
        return [
            WorldSource(
                shape.partitions,
                shape.rows,
                shape.step,
                files,
                self.wrong,
                number * PARTITIONS_PER_SOURCE,
                # Only the first source has a bound; the others are read to their end.
                None if number else shape.whole_bound,
            )
            for number in range(len(self.plan.sources))
        ]

    def _all_committed(self) -> bool:
        """Whether everything was read, and the windows closed that its watermark closes."""
        if not super()._all_committed():
            return False
        entry = self._offsets().get(self._known_ends[0])
        model = Model(self.kind, self.shape.keys)
        model.run(0, self._ids({}, self._everything()), -1, -1)
        return entry is not None and entry.watermark_ms == model.highest_watermark()

    def _everything(self) -> dict[str, str]:
        return {
            name: str(self.shape.rows) for source in self._sources() for name in source.initial()
        }

    def _ids(self, start: dict[str, str], end: dict[str, str]) -> list[int]:
        return [
            int(name) * 1_000_000 + index
            for name in end
            for index in range(int(start.get(name, "0")), int(end[name]))
        ]

    def _check(self) -> None:
        shown, log = visible(self.truth), self._offsets()
        commits = CommitLog(self.truth.at(f"{CHECKPOINT}/commits"), read_only=True)
        model = Model(self.kind, self.shape.keys)
        start: dict[str, str] = {}
        late_ms = 0
        for epoch in log.batch_ids():
            entry, commit = log.get(epoch), commits.get(epoch)
            assert entry is not None
            assert commit is not None
            manifest = manifest_of(entry, "offsets")
            assert manifest is not None
            if len(entry.offsets) != len(self.plan.offset_lines or self.plan.sources):
                self.wrong.append(f"epoch {epoch} has the offsets {entry.offsets}")
            if not late_ms <= entry.watermark_ms <= model.highest_watermark():
                self.wrong.append(
                    f"epoch {epoch} has watermark {entry.watermark_ms}, after {late_ms} and "
                    f"events up to {model.highest_watermark()}"
                )
            ends = {name: at for each in manifest.positions for name, at in each.items()}
            due = model.run(epoch, self._ids(start, ends), late_ms, entry.watermark_ms)
            got = [tuple(row) for row in shown.get(epoch, [])]
            if due != type(due)(got):
                self.wrong.append(f"epoch {epoch} shows {sorted(got)}, not {sorted(due.items())}")
            after = log.get(epoch + 1)
            if after is not None and after.watermark_ms != commit.next_watermark_ms:
                self.wrong.append(f"epoch {epoch} announced watermark {commit.next_watermark_ms}")
            start, late_ms = ends, entry.watermark_ms
        found = self._tree_state(log.batch_ids()[-1] + 1)
        if found != model.state():
            self.wrong.append(f"state is {found}, not {model.state()}")

    def _tree_state(self, version: int) -> dict[int, dict[Row, Row]]:
        """As Spark would find it, under its plain names, by operator."""
        partitions = range(self.shape.state_partitions)
        files = self.truth.at(CHECKPOINT)
        stores = TaskStores(self.plan, partitions, files, CONF, attempt=0, run_id="", writers=1)
        operators = [stage.stateful.open(partitions, len(partitions)) for stage in self.plan.stages]
        stores.load(operators, StateStart(version, None))
        found: dict[int, dict[Row, Row]] = {}
        for stage, operator in zip(self.plan.stages, operators, strict=True):
            assert isinstance(operator, Kept)
            rows = found.setdefault(stage.operator_id, {})
            for of_partition in operator.rows.values():
                rows.update(of_partition)
        return found
