"""State on local disk, for tasks whose state does not fit into memory."""
