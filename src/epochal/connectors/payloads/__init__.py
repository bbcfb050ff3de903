"""Payloads of messages: Avro and Protobuf, to and from Arrow columns."""
