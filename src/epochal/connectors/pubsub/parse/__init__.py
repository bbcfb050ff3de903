"""Message payloads (JSON, Avro, Protobuf) to columns."""
