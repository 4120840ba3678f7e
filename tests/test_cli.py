"""The `lmdbloader` command itself: its parser, its exit statuses, and that starting it costs little."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import lmdbloader
from lmdbloader import cli
from lmdbloader.errors import CorruptError, ImageError, OptionError

ROOT = Path(__file__).resolve().parent.parent
Capture = pytest.CaptureFixture[str]
COMMANDS = (
    "plan",
    "estimate",
    "convert",
    "stage",
    "merge",
    "append",
    "subset",
    "recode",
    "info",
    "verify",
    "repair",
    "preview",
    "extract",
    "tune",
    "doctor",
    "bench",
)


def test_the_version(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"lmdbloader {lmdbloader.__version__}\n"


def test_the_help_lists_every_command(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert [
        line.split()[0] for line in text.splitlines() if line.startswith("    ") and line.split()[0] in COMMANDS
    ] == [*COMMANDS]
    assert "lmdbloader convert PHOTOS train.lmdb" in " ".join(text.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_fits_80_columns(
    command: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: lmdbloader {command}")
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "COMMAND"),
        (["konvert", "a", "b"], "konvert"),
        (["extract", "a", "b", "--form", "png"], "--form"),
        (["stage", "a", "b", "--timeout", "10m"], "argument --timeout: '10m': expected a number such as"),
        (["convert", "--hr", "a", "--lr", "X2", "b", "--hr", "c"], "argument --hr: given twice"),
        (["bench", "a", "--crops", "8", "9", "--crops", "7"], "argument --crops: given twice"),
        (["verify", "a", "--quick"], "unrecognized arguments: --quick"),
    ],
)
def test_wrong_usage_is_status_two(words: list[str], message: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
    text = capsys.readouterr().err
    assert text.startswith("usage: lmdbloader") and message in text


def raising(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (OptionError("bad option"), 2, "lmdbloader: bad option\n"),
        (ImageError("a.png", "is empty"), 1, "lmdbloader: a.png: is empty\n"),
        (CorruptError("cut"), 1, "lmdbloader: cut\n"),
        (PermissionError(13, "Permission denied", "/x"), 1, "lmdbloader: [Errno 13] Permission denied: '/x'\n"),
        (KeyboardInterrupt(), 130, "lmdbloader: interrupted\n"),
    ],
)
def test_errors_become_one_line_and_a_status(
    error: BaseException, status: int, line: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmdbloader.cli.verify.run", raising(error))
    assert cli.main(["verify", "x"]) == status
    assert capsys.readouterr() == ("", line)


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmdbloader.cli.verify.run", raising(ZeroDivisionError("a bug")))
    with pytest.raises(ZeroDivisionError):
        cli.main(["verify", "x"])


def python(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, **options)  # type: ignore[call-overload, no-any-return]


def test_a_closed_pipe_is_not_an_error(photos: Path, tmp_path: Path) -> None:
    lmdbloader.convert(photos, tmp_path / "made", workers=1)
    command = f"'{sys.executable}' -m lmdbloader verify '{tmp_path / 'made'}' | true; echo ${{PIPESTATUS[0]}} >&2"
    # `true` may end before or after the line is written; in neither case may there be a traceback.
    child = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert child.stderr in ("0\n", "1\n")


def test_help_needs_none_of_the_heavy_libraries() -> None:
    code = (
        "import sys\nfrom lmdbloader.cli import make_parser\nmake_parser().format_help()\n"
        "print([name for name in ('torch', 'numpy', 'numba', 'pyarrow', 'lmdb', 'PIL') if name in sys.modules])"
    )
    assert python("-c", code).stdout == "[]\n"


def test_the_help_of_convert_fits_two_screens(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    texts = []
    for word in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as caught:
            cli.main(["convert", word])
        assert caught.value.code == 0
        texts.append(capsys.readouterr().out)
        assert max(map(len, texts[-1].splitlines())) <= 80
    short, everything = texts
    assert len(short.splitlines()) <= 110
    examples = [text.partition("examples:\n")[2].split("\n")[0].strip() for text in texts]
    assert examples == ["lmdbloader convert photos train.lmdb --scale 2"] * 2
    convert = cli.make_parser("convert")._subparsers._group_actions[0].choices["convert"]  # type: ignore[union-attr, index]
    assert everything == convert.format_all_help()
    assert short == convert.format_help()
    flags = {flag for action in convert._actions for flag in action.option_strings}
    assert all(flag in everything for flag in flags)
    assert "--bicubic" not in short and "--help-all" in short


def test_the_command_alone_prints_its_commands(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([])
    assert caught.value.code == 2
    assert capsys.readouterr() == ("", cli.make_parser().format_help())


@pytest.mark.parametrize(
    ("line", "expected"), [("lmdbloader con", "convert"), ("lmdbloader convert --pat", "--patch-size")]
)
def test_a_shell_completes_commands_and_options(line: str, expected: str, tmp_path: Path) -> None:
    pytest.importorskip("argcomplete")
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "found"),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    code = "import sys\nfrom lmdbloader.cli import main\ntry: main()\nfinally: print('torch' in sys.modules)"
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), **asked},
        capture_output=True,
        timeout=60,
    )
    assert (tmp_path / "found").read_text().split() == [expected]
