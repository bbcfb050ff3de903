"""A query as stages of operators, and what of it may not change."""
