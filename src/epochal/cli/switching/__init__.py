"""The commands `checkpoint clone`, `shadow` and `switch`."""
