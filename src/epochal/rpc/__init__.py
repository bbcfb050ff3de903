"""Messages between the driver and its tasks: named endpoints, one-way `send`, two-way `ask`."""
