"""The epoch protocol: what is decided when, in which order, and what a restart makes of it."""
