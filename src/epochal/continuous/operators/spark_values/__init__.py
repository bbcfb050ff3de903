"""Single values as Spark's JVM reads, prints and converts them. Needs no Spark."""
