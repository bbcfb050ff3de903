"""`python -m epochal` is the `epochal` command."""

from epochal.cli.main import main

if __name__ == "__main__":
    main()
