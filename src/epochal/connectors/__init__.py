"""Sources and sinks: the contract between connectors and engine, and the built-in connectors."""
