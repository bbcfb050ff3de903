"""`python -m epochal` is the `epochal` command.

The command itself is imported inside, so that Ctrl-C during its import ends without a traceback.
"""

import sys


def main() -> int:
    """Run the command line of this process; return its exit status."""
    try:
        from epochal.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("epochal: Interrupted. Nothing was changed.\n")
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
