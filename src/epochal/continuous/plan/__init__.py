"""A query as stages of operators, and the parts of it that a checkpoint pins."""
