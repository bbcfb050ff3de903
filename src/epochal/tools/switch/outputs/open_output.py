"""Opens the output of a query, whatever kind it is."""

from __future__ import annotations

from collections.abc import Mapping

from epochal.checkpoint.layout import SINK_LOG
from epochal.errors import OptionError
from epochal.files import open_files
from epochal.tools.switch.output_contract import Output

DELTA_LOG = "_delta_log"


def open_output(
    location: str, query_id: str, catalog: Mapping[str, str], *, header: bool = False
) -> Output:
    """Open an output: a directory or URL, or one of the schemes of other systems below."""
    if location.startswith("iceberg:"):
        from epochal.connectors.iceberg.iceberg_options import IcebergSinkOptions
        from epochal.tools.switch.outputs.iceberg_output import IcebergOutput

        options = IcebergSinkOptions(table=location.removeprefix("iceberg:"), catalog=catalog)
        return IcebergOutput(options, query_id)
    if location.startswith(("postgres://", "postgresql://")):
        from epochal.tools.switch.outputs.postgres_output import PostgresOutput

        return PostgresOutput(location)
    if location.startswith("kafka://"):
        from epochal.tools.switch.outputs.kafka_output import KafkaOutput

        return KafkaOutput(location)
    files = open_files(location)
    if files.info(DELTA_LOG) is not None:
        from epochal.tools.switch.outputs.delta_output import DeltaOutput

        return DeltaOutput(files, query_id)
    from epochal.tools.switch.outputs.file_output import FileOutput, PlainOutput

    if files.info(SINK_LOG) is not None:
        return FileOutput(files, header=header)
    if files.info("") is None:
        raise OptionError(f"There is no output at {location}. Check the path.")
    return PlainOutput(files, header=header)
