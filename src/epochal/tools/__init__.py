"""Tools that read, verify and edit checkpoints and state. They need neither Spark nor a JVM."""
