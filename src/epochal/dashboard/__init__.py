"""The web page that shows queries and checkpoints. It reads, and has no way to write."""
