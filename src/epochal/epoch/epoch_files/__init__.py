"""The state of epochs that Spark's files do not contain yet: one file per task and epoch."""
