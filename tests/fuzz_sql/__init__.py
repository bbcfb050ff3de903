"""Random SQL: the same expressions and plans on Spark and here must have the same results."""
