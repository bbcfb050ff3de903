"""Runs PySpark's StatefulProcessor on Epochal's state stores."""
