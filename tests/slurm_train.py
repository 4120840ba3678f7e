"""`torchrun` on the stand-in for a cluster: one process that trains, and waits for a signal where the test wants it."""

import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    """Train, or wait as a program of the user would."""
    cluster = Path(os.environ["CLUSTER"])
    at = sys.argv.index(os.environ["SCRIPT"])
    (cluster / "given").write_text(json.dumps(sys.argv[1:]))
    if os.environ["SCRIPT"].endswith("train_classifier.py") and os.path.exists(os.environ["SCRIPT"]):
        sys.path.insert(0, os.path.dirname(os.environ["SCRIPT"]))
        import train_classifier
        from classification import ResNet

        forward, steps = ResNet.forward, 0

        def watched(self, images):
            nonlocal steps
            steps += self.training
            with open(cluster / "steps", "a") as file:
                file.write("x" * self.training)
            if self.training and steps == int(os.environ.get("WAIT_AT_STEP", 0)):
                (cluster / "there").touch()
                while not (cluster / "cancelled").exists():
                    time.sleep(0.01)
            return forward(self, images)

        ResNet.forward = watched
        sys.exit(train_classifier.main(sys.argv[at + 1 :]))
    elif "WAIT_AT_STEP" in os.environ:
        (cluster / "there").touch()
        time.sleep(1000)


if __name__ == "__main__":
    main()
