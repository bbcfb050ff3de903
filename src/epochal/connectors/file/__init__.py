"""File source and file sink, compatible with Spark's logs."""
