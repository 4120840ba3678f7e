"""The Dockerfile: the files that it copies and the programs that it runs exist, and the image starts the demo."""

from __future__ import annotations

import re
import shlex
import subprocess
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Programs of the base images, of Debian and Ubuntu.
PROGRAMS = {"apt-get", "chown", "echo", "mkdir", "pip", "python3", "rm", "useradd"}
SHELL = {"if", "then", "fi", "!"}


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile and their arguments, lines joined and comments left out."""
    text = re.sub(r"(?m)^\s*#.*\n", "", (ROOT / "Dockerfile").read_text("utf-8"))
    lines = [line for line in re.sub(r"\\\n\s*", "", text).splitlines() if line.strip()]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def arguments(name: str) -> list[str]:
    return [text for instruction, text in instructions() if instruction == name]


def is_sent(path: str) -> bool:
    """Return whether a file is sent to the Docker engine: the last line of .dockerignore that fits it decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!")
            parts = path.split("/")
            begins = ["/".join(parts[: k + 1]) for k in range(len(parts))]
            if pattern.startswith("**/"):
                begins, pattern = parts, pattern[3:]
            if any(fnmatch(begin, pattern) for begin in begins):
                sent = line.startswith("!")
    return sent


def copied() -> list[tuple[list[str], str]]:
    """Return the sources and the target of each COPY out of this folder."""
    found = [shlex.split(text) for text in arguments("COPY") if "--from" not in text]
    return [(words[:-1], words[-1]) for words in found]


def test_everything_that_is_copied_is_there_and_is_sent() -> None:
    assert copied()
    for sources, _ in copied():
        for source in sources:
            assert (ROOT / source).exists(), source
            assert is_sent(source), source
    (other,) = [text for text in arguments("COPY") if "--from" in text]
    assert shlex.split(other)[:2] == ["--from=build", "/wheels"]


def test_every_command_is_one_that_the_images_have() -> None:
    for text in arguments("RUN"):
        subprocess.run(["sh", "-n", "-c", text], check=True)
        for command in re.split(r"&&|;|\$\(", text):
            words = [word for word in shlex.split(command.replace('"', "")) if word not in SHELL]
            assert not words or words[0] in PROGRAMS, command
