"""The `lmdbloader` command on the stand-in for a cluster: small parts, and a stop where the test wants it."""

import os
import sys
import time
from pathlib import Path

import lmdbloader.cli
from lmdbloader.base import system
from lmdbloader.conversion import parts, pool


def watch(event: str, arguments: tuple[object, ...]) -> None:
    """Note which images are opened; stop at one, once a part is complete, until a signal comes."""
    if event != "open" or not isinstance(arguments[0], str | bytes):
        return
    name = os.path.basename(os.fsdecode(arguments[0]))
    if not name.endswith(".png"):
        return
    cluster = Path(os.environ["CLUSTER"])
    with open(cluster / "opened", "a") as file:
        file.write(f"{name}\n")
    begun = any(path.stat().st_size for path in cluster.rglob("*.partial/part-*/facts.json"))
    if name == os.environ.get("STOP_AT") and (begun or "STOP_EARLY" in os.environ):
        (cluster / "there").touch()
        time.sleep(1000)


if __name__ == "__main__":
    pool.TASK_NBYTES, parts.PART_NBYTES = 2**13, 2**16
    # Every node is a machine of its own, which does not see the processes and locks of the others.
    system.boot_id = lambda: os.environ["NODE"]
    sys.addaudithook(watch)
    sys.exit(lmdbloader.cli.main())
