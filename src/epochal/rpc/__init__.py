"""Messages between the driver and its tasks: one-way `send`, `ask` with a reply, and pushes."""
