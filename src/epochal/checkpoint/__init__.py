"""A query's checkpoint: its logs, how they are read, verified and changed."""
