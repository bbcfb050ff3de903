"""Changes checkpoints. Each edit is a plan that is journaled, applied, and can be undone."""
