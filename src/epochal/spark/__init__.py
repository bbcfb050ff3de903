"""What we ask of Spark beyond its public API: placement, state next to its partition."""
