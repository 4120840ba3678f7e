"""Stage (f): the comparison that everybody can repeat, scripts/compare_training.py, for a classifier and for SRCNN."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from stage import Stage, parse_stage, what_failed

ROOT = Path(__file__).resolve().parent.parent.parent
# Model, images, and share of the time, of which some is left for starting and for plans that take longer than planned.
_PARTS = (("resnet18", "photos", 0.58), ("srcnn", "div2k", 0.32))


def main() -> None:
    """Run it for each model, and keep its results."""
    stage = parse_stage("compare", __doc__)
    for model, images, share in _PARTS:
        compare(stage, model, images, share * stage.seconds / 60)


def compare(stage: Stage, model: str, images: str, minutes: float) -> None:
    """Compare the sources for one model; what it has when it fails is kept, too."""
    sys.path.insert(0, str(ROOT / "scripts"))
    import compare_training
    import torch

    out = stage.data / "comparison" / model
    # In a rehearsal a tiny model stands in for the ResNet.
    chosen = "tiny" if stage.small and model == "resnet18" else model
    options = ["--models", chosen, "--minutes", f"{minutes:.2f}", "--out", str(out), "--batch-size", "64"]
    if stage.small:
        torch.set_num_threads(1)  # on a busy machine, threads of such small networks mostly wait for each other
        options += ["--samples", "16", "--batch-size", "8", "--size", "32", "--seeds", "1", "--minutes", "0.9"]
        options += ["--sweeps", "patch" if model == "srcnn" else "precision"]  # those of the fewest values
    out.mkdir(parents=True, exist_ok=True)
    try:
        status = compare_training.main([str(stage.data / images), *options])
        reason = f"exit status {status}" if status else ""
    except Exception as error:
        reason = what_failed(error)
    found = out / "results.json"
    if found.exists():
        stage.put(model, without_paths(json.loads(found.read_text("utf-8")), images))
    if reason:
        stage.leave_out(model if not found.exists() else f"{model}: the rest", reason)


def without_paths(results: dict[str, Any], images: str) -> dict[str, Any]:
    """Return results in which the source is named by its last part, since these figures are published."""
    facts = [row for row in results["facts"] if row[0] not in ("source", "command")]
    return {**results, "wanted": {**results["wanted"], "source": images}, "facts": facts}


if __name__ == "__main__":
    main()
