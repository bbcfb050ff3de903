"""A Delta sink on storage that fails: clear errors, nothing lost; and drivers that race on S3."""

from __future__ import annotations

import json
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.contract.delta_rig import QUERY, Rig, row
from tests.rigs.s3 import S3
from tests.spark.releases import ROOT, run_module

from epochal.errors import EpochalError, StorageError


def survived(fault: str, folder: Path) -> dict[str, Any]:
    folder.chmod(0o777)
    for parent in list(folder.parents)[:3]:  # another user must be able to get there
        if parent.owner() == folder.owner() and parent != Path("/tmp"):
            parent.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    said = run_module("tests.contract.delta_faults", fault, folder, env=environment)
    found: dict[str, Any] = json.loads(said)
    return found


@pytest.mark.parametrize(("fault", "words"), [("full", "File too large"), ("denied", "denied")])
def test_a_failing_disk_is_a_storage_error_and_the_epoch_is_finished_later(
    tmp_path: Path, fault: str, words: str
) -> None:
    folder = tmp_path / "place"
    folder.mkdir()
    found = survived(fault, folder)
    prepared, committed = found["failures"]
    assert prepared.startswith("StorageError: ")
    assert committed.startswith("StorageError: ")
    assert words in prepared
    assert words in committed
    assert found["rows"] == [row(0), row(1), row(2)]
    assert found["files"] == 3


def s3_path(s3: S3) -> str:
    return f"s3://{s3.bucket}/{uuid.uuid4()}/table"


def test_credentials_that_s3_refuses_are_an_error_and_create_nothing(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = s3_path(s3)
    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
        with pytest.raises((EpochalError, OSError)) as error:
            Rig(tmp_path / "a", path=path).open()
    assert isinstance(error.value, StorageError)
    assert "wrong-secret" not in str(error.value)
    with pytest.raises(Exception, match=r"No files in log segment|not a Delta table|no log"):
        DeltaTable(path, storage_options={"allow_http": "true"})


def test_drivers_that_race_on_s3_commit_each_epoch_once(s3: S3, tmp_path: Path) -> None:
    rig = Rig(tmp_path, path=s3_path(s3))
    rivals = [rig.open() for _ in range(3)]
    with ThreadPoolExecutor(len(rivals)) as pool:
        for epoch in range(6):
            messages = rig.prepare(rivals[0], epoch, [row(epoch)])
            rig.decide(epoch, messages)
            for done in [pool.submit(each.real.commit, epoch, messages) for each in rivals]:
                done.result()
    assert rig.rows() == [row(epoch) for epoch in range(6)]
    table = DeltaTable(rig.path, storage_options={"allow_http": "true"})
    assert table.transaction_version(QUERY) == 5
    assert len(table.file_uris()) == 6
