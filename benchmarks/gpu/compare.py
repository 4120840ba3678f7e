"""Stage (f): the comparison that everybody can repeat, scripts/compare_training.py, for a classifier and for SRCNN."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from stage import parse_stage, what_failed

ROOT = Path(__file__).resolve().parent.parent.parent
# Share of the time, model and images; in a rehearsal a tiny model stands in for the ResNet.
_PARTS = (("resnet18", "photos", 0.65), ("srcnn", "div2k", 0.35))


def main() -> None:
    """Run it for each model, and keep its results."""
    stage = parse_stage("compare", __doc__)
    sys.path.insert(0, str(ROOT / "scripts"))
    import compare_training

    for model, images, share in _PARTS:
        chosen = "tiny" if stage.small and model == "resnet18" else model
        out = stage.data / "comparison" / model
        minutes = share * stage.seconds / 60
        options = ["--models", chosen, "--minutes", f"{minutes:.2f}", "--out", str(out), "--batch-size", "64"]
        if stage.small:
            options += ["--samples", "16", "--batch-size", "8", "--size", "32", "--seeds", "1", "--minutes", "0.05"]
        out.mkdir(parents=True, exist_ok=True)
        try:
            status = compare_training.main([str(stage.data / images), *options])
        except Exception as error:
            stage.leave_out(model, what_failed(error))
            continue
        if status:
            stage.leave_out(model, f"exit status {status}")
        else:
            stage.put(model, json.loads((out / "results.json").read_text("utf-8")))


if __name__ == "__main__":
    main()
