"""A thin launcher of `lmdbloader convert`, for a checkout that is not installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lmdbloader.cli import main

if __name__ == "__main__":
    sys.exit(main(["convert", *sys.argv[1:]]))
