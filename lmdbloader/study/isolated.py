"""The program of one process of the isolation test: loads as it is told, until nobody tells it any more."""

from __future__ import annotations

import os
import pickle
import sys
from typing import BinaryIO

from lmdbloader.study.feeds import Material, Setting, open_feed
from lmdbloader.study.turns import take_turn


def serve(commands: BinaryIO, answers: BinaryIO) -> None:
    """Answer every (setting, seconds, seconds after that) with the samples a second, as a line.

    Args:
        commands: Pickles: what is read, then the commands.
        answers: Gets the lines.
    """
    material: Material = pickle.load(commands)
    while True:
        try:
            command: tuple[Setting, float, float] = pickle.load(commands)
        except EOFError:
            return
        setting, seconds, after = command
        with open_feed(material, setting) as feed:
            turn = take_turn(feed, seconds, after_seconds=after)
        answers.write(f"{turn.samples_per_s!r}\n".encode())
        answers.flush()


if __name__ == "__main__":
    # What libraries print must not come between the answers.
    own = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin.buffer, own)
