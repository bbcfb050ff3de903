"""Schemas of Kafka values that are kept in a schema registry, in Confluent's wire format."""
