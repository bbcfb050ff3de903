"""Checks the files of a RocksDB database without RocksDB: tables and the MANIFEST."""
