"""Parses message payloads (JSON, Avro, Protobuf) into columns."""
