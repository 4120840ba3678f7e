# PYTHON_ARGCOMPLETE_OK
"""`python -m lmdbloader` is the `lmdbloader` command."""

import sys

from lmdbloader.cli import main

if __name__ == "__main__":
    sys.exit(main())
