"""Functions of numbers: arithmetic, decimals, mathematics."""
