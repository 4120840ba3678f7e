"""The `lmdbloader` command: parses, prints, and turns errors into one line and an exit status."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from lmdbloader import __version__
from lmdbloader.base.limits import no_memory, refused_memory
from lmdbloader.base.text import plain
from lmdbloader.cli import bench, convert, doctor, estimate, extract, info, plan, preview, repair, stage, tune, verify
from lmdbloader.cli.saying import say
from lmdbloader.cli.streams import forget, standard_streams
from lmdbloader.errors import LmdbloaderError, OptionError, OutputError

_COMMANDS = (plan, estimate, convert, stage, info, verify, repair, preview, extract, tune, doctor, bench)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 done, 1 refused or found damage, 2 wrong usage, 130 interrupted."""
    with standard_streams():
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    # argparse takes a varying number of paths only up to the next option: `convert SRC --scale 2 OUT`.
    if rest and (not hasattr(options, "paths") or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.paths += rest
    signal.signal(signal.SIGTERM, _stop)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path may hold what the terminal's encoding has not
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except OptionError as error:
        say(f"lmdbloader: {error}", error=True)
        return 2
    except BrokenPipeError:  # the reader of a pipe has gone (`| head`): nothing is left to say
        forget(sys.stdout)
        return 1
    except OutputError as error:
        forget(sys.stdout)
        with contextlib.suppress(OutputError, BrokenPipeError):
            say(f"lmdbloader: {error}", error=True)
        return 1
    except LmdbloaderError as error:
        for line in f"lmdbloader: {error}".split("\n"):  # a worker's error may quote its traceback
            say(line, error=True)
        return 1
    except (OSError, MemoryError, ImportError) as error:
        why = refused_memory(error)
        if why is None and not isinstance(error, OSError):
            raise
        text = error if why is None else no_memory(options.command, why, "Let fewer processes or threads work.")
        say(f"lmdbloader: {text}", error=True)
        return 1
    except KeyboardInterrupt:
        say("lmdbloader: interrupted", error=True)
        return 130


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command."""
    parser = _Parser(
        prog="lmdbloader",
        description="Turn a folder of images into one memory-mapped LMDB dataset, look at it and check it; plan what a "
        "training run needs, tune how batches are loaded, examine what slows them down (doctor), and measure (bench).",
        epilog="lmdbloader COMMAND --help tells what a command does. Start with: lmdbloader convert PHOTOS train.lmdb",
    )
    parser.add_argument("--version", action="version", version=f"lmdbloader {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="command")
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser


class _Parser(argparse.ArgumentParser):
    """A parser that may be given names of files which nobody has looked at, by a shell's `*`."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the words of the command, and leave."""
        super().error(plain(message))


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """Leave as Ctrl-C does, so that what is half-written is removed, or left so that it can be resumed."""
    raise KeyboardInterrupt
