"""Functions of structs, arrays and maps, and functions that take lambdas."""
