"""What a task tells the process that hands its messages back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from epochal.connectors.pubsub.pull.ack_leases import id_rows
from epochal.connectors.pubsub.pull.hand_back import decode_ids, encode_ids


@pytest.mark.parametrize("ids", [["one", "two"], ["one", "three"], ["", ""], ["x" * 180] * 100])
def test_ids_survive_the_pipe(ids: list[str]) -> None:
    rows = id_rows(pa.array(ids))
    found = decode_ids(encode_ids(rows))
    assert type(found) is type(rows)
    assert np.array_equal(found, rows)
