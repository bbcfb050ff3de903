"""The epoch protocol: what is decided when, in which order, and how a restart recovers."""
