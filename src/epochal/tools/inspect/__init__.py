"""Shows what a checkpoint holds. These tools are read-only."""
