"""Checks a checkpoint against every rule that Spark relies on."""
