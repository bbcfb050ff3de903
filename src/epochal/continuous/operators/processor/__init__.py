"""PySpark's StatefulProcessor, run over our state stores."""
