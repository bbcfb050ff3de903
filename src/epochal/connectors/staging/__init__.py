"""How exactly-once sinks pass output from tasks to the driver, and know what is committed."""
