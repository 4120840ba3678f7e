# PYTHON_ARGCOMPLETE_OK
"""The `lmdbloader` command: finds its commands, parses, and turns errors into one line and an exit status.

Every file in here without a leading underscore is a command, called like the file. It has

- `HELP`: one line in the list of commands, and `DESCRIPTION`: the start of its own help;
- `add_arguments(parser)`: adds its arguments;
- `run(options)`: does the work and returns the exit status; `options.parser` is the parser, for wrong usage;
- and optionally `ORDER`: the place in the list of commands; `USAGE` and `EPILOG`: other parts of the help; `COMMON`:
  the names of the arguments in `--help`, with `SHORT_DESCRIPTION` and `SHORT_EPILOG`; `--help-all` shows all arguments.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib
import math
import os
import pkgutil
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType, ModuleType
from typing import Any, NoReturn

from lmdbloader import __version__
from lmdbloader.base.limits import has_address_limit, no_memory, refused_memory
from lmdbloader.base.option_names import naming_flags
from lmdbloader.base.text import plain
from lmdbloader.cli._streams import forget, say, standard_streams
from lmdbloader.errors import LmdbloaderError, OptionError, OutputError

_LAST = 1000
_SAME_SIGNAL_SECONDS = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 done, 1 refused or found damage, 2 wrong usage, 130 interrupted."""
    with standard_streams():
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = make_parser(words[0] if words else None)
    if "_ARGCOMPLETE" in os.environ:  # argcomplete's shell function asks for completions
        import argcomplete

        argcomplete.autocomplete(parser)
    if not words:
        parser.print_help(sys.stderr)
        parser.exit(2)
    options, rest = parser.parse_known_args(words)
    # argparse takes a varying number of paths only up to the next option: `convert SRC --scale 2 OUT`.
    if rest and (not hasattr(options, "paths") or any(word.startswith("-") for word in rest)):
        options.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.paths += rest
    signal.signal(signal.SIGTERM, _Stop())
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path may hold characters that the encoding lacks
    try:
        with naming_flags(_flags_of(options.parser)):
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
        text = error if why is None else no_memory(options.command, why, "Use fewer processes or threads.")
        say(f"lmdbloader: {text}", error=True)
        if why is not None and has_address_limit():
            atexit.register(_leave)
        return 1
    except KeyboardInterrupt:
        say("lmdbloader: interrupted", error=True)
        return 130


def _leave() -> NoReturn:
    """End the process now: a library that was refused memory while it was loaded may crash when it is unloaded."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(1)


def make_parser(command_name: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the whole command.

    Args:
        command_name: The only command to load, which saves time; all are loaded if it is not one of them.
    """
    parser = _Parser(
        prog="lmdbloader",
        description="Turn a folder of images into one memory-mapped LMDB dataset, look at it and check it; plan what a "
        "training run needs, tune how batches are loaded, find what slows loading down (doctor), and measure its speed "
        "(bench).",
        epilog="lmdbloader COMMAND --help explains a command. Start with: lmdbloader convert PHOTOS train.lmdb",
    )
    parser.add_argument("--version", action="version", version=f"lmdbloader {__version__}")
    commands: argparse._SubParsersAction[_Parser] = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, dest="command"
    )
    for name, module in _commands(command_name):
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.DESCRIPTION,
            epilog=getattr(module, "EPILOG", None),
            usage=getattr(module, "USAGE", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,  # --crop is not --crop-to-scale
        )
        module.add_arguments(command)
        if hasattr(module, "COMMON"):
            command.shorten(module.COMMON, module.SHORT_DESCRIPTION, module.SHORT_EPILOG)
        command.set_defaults(run=module.run, parser=command)
    return parser


def _commands(only: str | None) -> list[tuple[str, ModuleType]]:
    """Return the names and modules of the commands, or of one of them, in the order of the help."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    found = [(name, importlib.import_module(f"{__name__}.{name}")) for name in ([only] if only in names else names)]
    return sorted(found, key=lambda item: getattr(item[1], "ORDER", _LAST))


def _flags_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return the names of a command's arguments in messages, by their Python names."""
    found = {}
    for action in parser._actions:
        if action.option_strings:
            found[action.dest] = action.option_strings[-1]
        elif isinstance(action.metavar, str):
            found |= {action.dest: action.metavar, **{word.lower(): word for word in action.metavar.split()}}
    return found


class _Parser(argparse.ArgumentParser):
    """A parser whose arguments may be names of files that nobody has looked at, from a shell's `*`."""

    _short: tuple[Sequence[str], str, str] | None = None

    def shorten(self, common: Sequence[str], description: str, epilog: str) -> None:
        """Let --help show only some arguments, with texts of its own, and --help-all everything.

        Args:
            common: Names of the arguments in --help, besides the positional ones.
            description: Its first paragraphs.
            epilog: Its last ones.
        """
        self._short = common, description, epilog
        self.add_argument("--help-all", action=_HelpAll, nargs=0, help="show all options, and exit")

    def format_all_help(self) -> str:
        """Return the help with everything, as --help-all prints it."""
        return super().format_help()

    def format_help(self) -> str:
        """Return the help, without rare options."""
        if self._short is None:
            return super().format_help()
        common, *texts = self._short
        rare = [action for action in self._actions if action.option_strings and action.dest not in common]
        before = [action.help for action in rare], self.description, self.epilog
        try:
            self.description, self.epilog = texts
            for action in rare:
                action.help = argparse.SUPPRESS
            return super().format_help()
        finally:
            helps, self.description, self.epilog = before
            for action, text in zip(rare, helps, strict=True):
                action.help = text

    def error(self, message: str) -> NoReturn:
        """Print the error in the arguments, and exit."""
        super().error(plain(message))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and refuse an option that is given twice with different values: argparse would take the last one."""
        self._given: dict[str, Any] = {}
        return super().parse_known_args(args, namespace)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        is_one = action.option_strings and not isinstance(action, argparse._AppendAction)
        if is_one and self._given.setdefault(action.dest, arg_strings) != arg_strings:
            raise argparse.ArgumentError(action, "given twice, with different values. Give it once")
        return super()._get_values(action, arg_strings)


class _HelpAll(argparse.Action):
    """Prints the help with the rare options, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """Print it."""
        assert isinstance(parser, _Parser)
        parser._print_message(parser.format_all_help(), sys.stdout)
        parser.exit()


class _Stop:
    """Handles SIGTERM as Ctrl-C, so that a half-written file is removed, or left so that it can be resumed."""

    def __init__(self) -> None:
        self._last = -math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Interrupt the command, unless it is ending because of a signal a moment before."""
        before, self._last = self._last, time.monotonic()
        # A job that is cancelled gets the signal from its batch script too: it must not interrupt what the first one
        # has started. One that comes later is meant.
        if self._last - before > _SAME_SIGNAL_SECONDS:
            raise KeyboardInterrupt
