"""Rows as Arrow columns: the two directions under one name."""

from epochal.state.rows.column_decoder import ROWS_AT_ONCE, decode_rows, validate_rows
from epochal.state.rows.column_encoder import encode_rows

__all__ = ["ROWS_AT_ONCE", "decode_rows", "encode_rows", "validate_rows"]
