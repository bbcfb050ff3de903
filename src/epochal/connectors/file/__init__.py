"""File source and file sink, with Spark's own logs."""
