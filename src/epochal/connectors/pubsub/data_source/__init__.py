"""The data source `format("pubsub")` for Spark's own readers and writers."""
