"""State stores: versioned keyed state in Spark's own files."""
