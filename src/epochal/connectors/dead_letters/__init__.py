"""Dead letters: rows that a sink refuses are written elsewhere, with the reason."""
