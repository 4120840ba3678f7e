"""One of two processes of a framework: trains for two epochs and writes the labels that it saw. torchrun starts it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from lmdbloader import LMDBDataset, Loader
from lmdbloader.transforms import RandomCrop, ToDtype

NAMES = {"pixel_values": "image", "labels": "label"}
EPOCHS = 2


class Network(torch.nn.Module):
    """Remembers the labels that it was given in training."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return a loss, as the models of Transformers."""
        self.seen.append(labels.tolist())
        return {"loss": self.weight(pixel_values.mean((1, 2, 3))[:, None]).square().mean()}


def with_lightning(path: str, options: dict[str, Any]) -> list[list[int]]:
    """Fit with Lightning's DDP."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = Network()

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            return self.network(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    module, quiet = Module(), {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=EPOCHS, enable_checkpointing=False, **quiet
    )
    trainer.fit(module, loader_of(path, options))
    return module.network.seen


def with_accelerate(path: str, options: dict[str, Any]) -> list[list[int]]:
    """Fit with Accelerate."""
    from accelerate import Accelerator

    from lmdbloader.integrations.accelerate import prepare

    accelerator, network = Accelerator(cpu=True), Network()
    model, optimizer = accelerator.prepare(network, torch.optim.SGD(network.parameters(), 0.1))
    loader = loader_of(path, options)
    loader = accelerator.prepare(loader) if options.pop("directly", False) else prepare(accelerator, loader)
    for _ in range(EPOCHS):
        for batch in loader:
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
    ordered = loader_of(path, {**options, "order": "sequential"})
    gathered = [accelerator.gather_for_metrics(batch["labels"]) for batch in prepare(accelerator, ordered)]
    assert sorted(torch.cat(gathered).tolist()) == list(range(len(ordered.dataset)))
    return network.seen


def with_transformers(path: str, options: dict[str, Any]) -> list[list[int]]:
    """Fit with the Trainer of Transformers."""
    from transformers import TrainingArguments

    from lmdbloader.integrations.transformers import Trainer

    network, folder = Network(), os.environ["TMPDIR"]
    arguments = TrainingArguments(
        folder, num_train_epochs=EPOCHS, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no"
    )
    Trainer(network, arguments, train_dataset=loader_of(path, options)).train()
    return network.seen


def loader_of(path: str, options: dict[str, Any]) -> Loader:
    """Return the Loader of the dataset; a list in `options` is a tuple that went through JSON."""
    steps = [RandomCrop(8), ToDtype(torch.float32, scale=True)]
    given = {name: value for name, value in options.items() if name != "directly"}
    return Loader(LMDBDataset(path), 4, as_=NAMES, transforms=steps, num_threads=1, **{"order": "random", **given})


if __name__ == "__main__":
    framework, path, out, options = sys.argv[1:]
    seen = globals()[f"with_{framework}"](path, json.loads(options))
    Path(out, os.environ["RANK"]).write_text(json.dumps(seen))
