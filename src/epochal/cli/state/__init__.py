"""`epochal state`: reading and editing operator state from the command line."""
