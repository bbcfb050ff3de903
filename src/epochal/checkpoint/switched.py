"""The file `metadata` of a checkpoint whose query now runs elsewhere.

Switching to another checkpoint takes the query's id out of `metadata` and says there where the
query went. Without an id no release of Spark starts, and Epochal refuses with the reason. Spark's
error quotes what it finds in place of the id, so the file says it there, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from epochal.checkpoint.spark_json import long_of, object_of, parse_object, string_of, to_json

SWITCHED = "switched"


@dataclass(frozen=True, slots=True)
class Switched:
    """Where the query of a checkpoint went."""

    to: str
    """The checkpoint on which it goes on."""
    epoch: int
    """The last epoch here."""
    new_epoch: int
    """The epoch of the other checkpoint after which it went on."""
    query_id: str
    """The id that was in the file."""

    def serialize(self) -> bytes:
        """The bytes of the file."""
        fields = {
            "to": self.to,
            "epoch": self.epoch,
            "newEpoch": self.new_epoch,
            "queryId": self.query_id,
        }
        notice = {f"The query was switched after epoch {self.epoch}. It goes on at": self.to}
        return to_json({SWITCHED: fields, "id": notice}).encode()


def parse_switched(data: bytes, path: str) -> Switched | None:
    """Parse the bytes of `metadata`; None if the query has not gone elsewhere."""
    if not data.startswith(f'{{"{SWITCHED}":'.encode()):
        return None
    fields = object_of(parse_object(data.decode(errors="replace"), path), SWITCHED, path)
    return Switched(
        string_of(fields, "to", path),
        long_of(fields, "epoch", path),
        long_of(fields, "newEpoch", path),
        string_of(fields, "queryId", path),
    )
