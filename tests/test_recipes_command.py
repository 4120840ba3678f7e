"""The recipe "Add a command": one file in lmdbloader/cli, and the command is there."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmdbloader import cli

Capture = pytest.CaptureFixture[str]
FOO = '''
"""`lmdbloader foo`: the number of samples of a dataset."""

from lmdbloader.cli._streams import say
from lmdbloader.errors import OptionError

ORDER = 55
HELP = "count samples"
DESCRIPTION = "Count the samples of a dataset."


def add_arguments(parser):
    parser.add_argument("dataset", metavar="DB", help="the dataset's folder")
    parser.add_argument("--at-most", type=int, metavar="N", help="refuse more")


def run(options):
    from lmdbloader.base.arguments import whole
    from lmdbloader.store import read_manifest

    if options.at_most is not None:
        whole("at_most", options.at_most, 1)
    say(f"{read_manifest(options.dataset).num_samples} samples")
    return 0
'''


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A second folder of commands, in which `foo` is a command and `_helper` is not."""
    before = signal.getsignal(signal.SIGTERM)
    folder = tmp_path / "commands"
    folder.mkdir()
    (folder / "foo.py").write_text(FOO, "utf-8")
    (folder / "_helper.py").write_text("raise AssertionError('a helper is no command')", "utf-8")
    monkeypatch.setattr(cli, "__path__", [*cli.__path__, str(folder)])
    yield folder
    sys.modules.pop("lmdbloader.cli.foo", None)
    signal.signal(signal.SIGTERM, before)


def test_a_new_command_runs(commands: Path, photos: Path, tmp_path: Path, capsys: Capture) -> None:
    assert cli.main(["convert", str(photos), str(tmp_path / "db"), "--quiet", "--workers", "1"]) == 0
    capsys.readouterr()
    assert cli.main(["foo", str(tmp_path / "db")]) == 0
    assert capsys.readouterr().out.endswith(" samples\n")


def test_a_new_command_is_in_the_help_at_its_place(commands: Path) -> None:
    text = cli.make_parser().format_help()
    assert "count samples" in text
    assert text.index("\n    info ") < text.index("\n    foo ") < text.index("\n    verify ")


def test_its_messages_name_its_options(commands: Path, capsys: Capture) -> None:
    assert cli.main(["foo", "db", "--at-most", "0"]) == 2
    assert capsys.readouterr().err == "lmdbloader: --at-most 0: expected a whole number of at least 1\n"


def test_every_file_without_an_underscore_is_a_command() -> None:
    folder = Path(cli.__path__[0])
    files = {path.stem for path in folder.glob("*.py") if not path.name.startswith("_")}
    parser = cli.make_parser()
    (commands,) = [action for action in parser._actions if action.dest == "command"]
    assert set(commands.choices or ()) == files
