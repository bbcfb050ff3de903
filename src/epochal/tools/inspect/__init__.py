"""Shows what a checkpoint contains. These tools are read-only."""
