"""Tools on checkpoints and state. They need neither Spark nor a JVM."""
