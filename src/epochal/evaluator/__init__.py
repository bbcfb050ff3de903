"""Spark's own code beside the tasks: expressions and files mean what they mean in Spark."""
