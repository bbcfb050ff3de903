"""Column expressions: their trees, and their evaluation over Arrow with Spark's semantics."""
