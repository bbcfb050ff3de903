"""The web page that shows queries and checkpoints. It is read-only."""
