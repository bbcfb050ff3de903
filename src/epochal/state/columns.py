"""Rows as Arrow columns: the two directions under one name."""

from epochal.state.column_decoder import decode_rows, validate_rows
from epochal.state.column_encoder import encode_rows

__all__ = ["decode_rows", "encode_rows", "validate_rows"]
