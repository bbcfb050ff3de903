"""Changes a checkpoint: each edit is a plan that is journaled, applied and undone."""
