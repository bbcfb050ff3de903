"""`python -m epochal` is the `epochal` command."""

import sys

from epochal.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
