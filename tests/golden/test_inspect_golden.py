"""What the reading tools say of checkpoints that released Sparks wrote, against Spark's account."""

import json
from datetime import datetime
from typing import Any

import pytest
from tests.golden.library import Unpacked, cases, unpack
from tests.unit.checkpoint.trees import digest_of

from epochal.checkpoint.restart import RestartAction
from epochal.files.local import LocalFiles
from epochal.tools.inspect.show import inspect
from epochal.tools.inspect.view_models import BatchView, CheckpointView
from epochal.tools.verify.findings import Depth
from epochal.tools.verify.verify import verify

ARCHIVES = cases()


@pytest.fixture(scope="module", params=ARCHIVES, ids=str)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    return unpack(request.param, tmp_path_factory.mktemp("golden"), relocate=True)


def test_calls_what_spark_wrote_healthy_and_touches_nothing(place: Unpacked) -> None:
    before = digest_of(place.base)
    report = verify(LocalFiles(place.checkpoint), depth=Depth.DEEP, sink=_sink(place))
    assert [each for each in report.findings if each.severity != "info"] == []
    assert report.healthy
    assert digest_of(place.base) == before


def test_shows_what_spark_reported(place: Unpacked) -> None:
    facts = place.facts
    view = inspect(LocalFiles(place.checkpoint))
    assert view.problems == ()
    assert view.query_id == facts["query_id"]
    assert [batch.batch_id for batch in view.batches] == facts["offsets"]
    assert [batch.batch_id for batch in view.batches if batch.committed] == facts["commits"]
    reports = {report["batchId"]: report for report in facts["progress"]}
    told = [batch for batch in view.batches if batch.batch_id in reports]
    assert told, "Spark reported no batch that is in the log"
    for batch in told:
        report = reports[batch.batch_id]
        _agree_on_offsets(batch, [source["endOffset"] for source in report["sources"]])
        if "watermark" in report.get("eventTime", {}):
            assert batch.watermark_ms == _milliseconds(report["eventTime"]["watermark"])
    _agrees_with_state_metadata(view, facts)
    _restarts_where_spark_would(view, facts)


def _sink(place: Unpacked) -> LocalFiles | None:
    has_log = (place.output / "_spark_metadata").is_dir()
    return LocalFiles(place.output) if has_log else None


def _agree_on_offsets(batch: BatchView, reported: list[Any]) -> None:
    if isinstance(batch.offsets, dict):
        # By name, in any order, and a source without an offset is left out.
        known = [offset for offset in reported if offset is not None]
        assert sorted(map(json.dumps, batch.offsets.values())) == sorted(map(json.dumps, known))
    else:
        assert batch.offsets == tuple(reported)


def _milliseconds(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def _agrees_with_state_metadata(view: CheckpointView, facts: dict[str, Any]) -> None:
    shown = {
        (operator.operator_id, operator.name, store)
        for operator in view.operators
        for store in operator.stores
        if operator.name is not None
    }
    rows = facts["state_metadata"] if shown else []
    assert shown == {
        (row["operatorId"], row["operatorName"], row["stateStoreName"]) for row in rows
    }


def _restarts_where_spark_would(view: CheckpointView, facts: dict[str, Any]) -> None:
    newest = facts["offsets"][-1]
    if newest in facts["commits"]:
        assert (view.restart.action, view.restart.batch_id) == (RestartAction.CONTINUE, newest + 1)
    else:
        assert (view.restart.action, view.restart.batch_id) == (RestartAction.RERUN, newest)
