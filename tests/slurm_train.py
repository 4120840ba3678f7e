"""`torchrun` on the stand-in for a cluster: a loop of six steps that saves as the training scripts do."""

import json
import os
import signal
import sys
import time
from pathlib import Path

NUM_STEPS, SAVE_EACH = 6, 3


def main() -> int:
    """Train; SIGTERM lets a step end, saves, and stops; at step WAIT_AT_STEP of this process it is waited for."""
    cluster, words = Path(os.environ["CLUSTER"]), sys.argv[1:]
    (cluster / "given").write_text(json.dumps(words))
    checkpoint = Path(words[words.index("--checkpoint") + 1])
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    first = int(checkpoint.read_text()) if "--resume" in words else 0
    for number, step in enumerate(range(first, NUM_STEPS), start=1):
        with open(cluster / "steps", "a") as file:
            file.write(f"{step} ")
        if number == int(os.environ.get("WAIT_AT_STEP", 0)):
            (cluster / "there").touch()
            while not stopped:
                time.sleep(0.01)
        if (stopped and "SAVES_NOTHING" not in os.environ) or (step + 1) % SAVE_EACH == 0:
            checkpoint.with_suffix(".new").write_text(str(step + 1))
            checkpoint.with_suffix(".new").replace(checkpoint)
        if stopped:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
