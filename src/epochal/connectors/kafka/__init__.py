"""Kafka: the source and sink of continuous queries, and the offset committer for Spark queries."""
