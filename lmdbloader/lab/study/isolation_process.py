"""The program of one process of the isolation test: loads on command until the connection is closed."""

from __future__ import annotations

import sys
from multiprocessing import current_process
from multiprocessing.connection import Connection

from lmdbloader.base import system
from lmdbloader.lab.study.endless_loader import BenchData, LoaderSetting, open_endless, take_turn


def serve(connection: Connection) -> None:
    """Answer commands until the other end is closed.

    To (setting, seconds, seconds after that) the answer is None, once it has been loaded before in this process; to the
    None that then says go, the samples a second.

    Args:
        connection: Gives the key of the other process, the data, then the commands.
    """
    try:
        current_process().authkey = connection.recv()
        material: BenchData = connection.recv()
        known: set[LoaderSetting] = set()
        while True:
            command: tuple[LoaderSetting, float, float] = connection.recv()
            setting, seconds, after = command
            with open_endless(material, setting) as feed:
                if setting not in known:
                    take_turn(feed, seconds)
                    known.add(setting)
                connection.send(None)
                connection.recv()
                turn = take_turn(feed, seconds, after_seconds=after)
            connection.send(turn.samples_per_s)
    except (EOFError, ConnectionError):
        return


if __name__ == "__main__":
    serve(system.connect(int(sys.argv[1])))
