"""One of two processes of a framework: trains for two epochs and writes what it saw. torchrun starts it."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from lmdbloader import LMDBDataset, Loader
from lmdbloader.transforms import RandomCrop, ToDtype

Seen = list[tuple[list[int], str]]
NAMES = {"pixel_values": "image", "labels": "label"}
EPOCHS = 2


def noted(images: torch.Tensor, labels: torch.Tensor) -> tuple[list[int], str]:
    """Return the labels of a batch and a digest of its images."""
    return labels.tolist(), hashlib.sha256(images.numpy().tobytes()).hexdigest()


class Network(torch.nn.Module):
    """Remembers the batches that it was given in training."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Linear(1, 1)
        self.seen: Seen = []

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return a loss, as the models of Transformers."""
        self.seen.append(noted(pixel_values, labels))
        return {"loss": self.weight(pixel_values.mean((1, 2, 3))[:, None]).square().mean()}


def with_lightning(path: str, options: dict[str, Any]) -> Seen:
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


def with_accelerate(path: str, options: dict[str, Any]) -> Seen:
    """Fit with Accelerate."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    from lmdbloader.integrations.accelerate import prepare

    config = DataLoaderConfiguration(
        use_stateful_dataloader=options.pop("stateful", False), dispatch_batches=options.pop("dispatch", None)
    )
    accelerator, network = Accelerator(cpu=True, dataloader_config=config), Network()
    model, optimizer = accelerator.prepare(network, torch.optim.SGD(network.parameters(), 0.1))
    loader = loader_of(path, options)
    loader = accelerator.prepare(loader) if options.pop("directly", False) else prepare(accelerator, loader)
    for _ in range(EPOCHS):
        for batch in loader:
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
    if config.dispatch_batches:
        return network.seen
    ordered = loader_of(path, {**options, "order": "sequential"})
    gathered = [accelerator.gather_for_metrics(batch["labels"]) for batch in prepare(accelerator, ordered)]
    assert sorted(torch.cat(gathered).tolist()) == list(range(len(ordered.dataset)))
    return network.seen


def with_transformers(path: str, options: dict[str, Any]) -> Seen:
    """Fit with the Trainer of Transformers."""
    from transformers import TrainingArguments

    from lmdbloader.integrations.transformers import Trainer

    network, folder = Network(), os.environ["TMPDIR"]
    arguments = TrainingArguments(
        folder, num_train_epochs=EPOCHS, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no"
    )
    Trainer(network, arguments, train_dataset=loader_of(path, options)).train()
    return network.seen


def with_timm(path: str, options: dict[str, Any]) -> Seen:
    """Train with timm's `create_loader` and the loop of its train.py, from the epoch `start` on."""
    from lmdbloader.integrations.timm import create_loader

    torch.distributed.init_process_group("gloo")
    torch.manual_seed(42 + torch.distributed.get_rank())  # as train.py does
    network = Network()
    model = torch.nn.parallel.DistributedDataParallel(network)
    # Newer versions of train.py set the epoch of a dataset, if it has one; older ones that of the sampler.
    dataset: Any = LMDBDataset(path) if options["newer"] else path
    train = create_loader(dataset, 8, 4, True, re_prob=0.5, distributed=True, device="cpu")
    evaluation = create_loader(path, 8, 4, distributed=True, device="cpu")
    for epoch in range(options["start"], EPOCHS):
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        else:
            train.sampler.set_epoch(epoch)
        for images, labels in train:
            model(images, labels)["loss"].backward()
    labels = torch.cat([labels for _, labels in evaluation])
    found = [torch.empty_like(labels) for _ in range(2)]
    torch.distributed.all_gather(found, labels)
    assert {*torch.cat(found).tolist()} == {*range(len(evaluation.dataset))}
    return network.seen


def with_fastai(path: str, options: dict[str, Any]) -> Seen:
    """Fit with fastai's Learner, from `place` on: an epoch and a position."""
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner

    from lmdbloader.integrations.fastai import DistributedTrainer

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.seen = torch.nn.Linear(1, 1), []

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            self.images = images
            return self.weight(images.mean((1, 2, 3))[:, None])

    network, (epoch, position) = Flat(), options.pop("place", (0, 0))

    def loss(found: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if network.training:
            network.seen.append(noted(network.images, labels))
        return found.square().mean()

    os.environ["ACCELERATE_USE_CPU"] = "1"
    callback = DistributedTrainer(sync_bn=False)
    train, val = loader_of(path, options, "tuple"), loader_of(path, {**options, "order": "sequential"}, "tuple")
    train.load_state_dict({**train.state_dict(), "epoch": epoch, "position": position})
    Learner(DataLoaders(train, val), network, loss_func=loss, cbs=callback).fit(EPOCHS, 0.1, start_epoch=epoch)
    return network.seen


def loader_of(path: str, options: dict[str, Any], as_: Any = NAMES) -> Loader:
    """Return the Loader of the dataset."""
    steps = [RandomCrop(8), ToDtype(torch.float32, scale=True)]
    given = {name: value for name, value in options.items() if name != "directly"}
    return Loader(
        LMDBDataset(path), 4, as_=as_, transforms=steps, num_threads=1, **{"order": "random", "seed": 0, **given}
    )


if __name__ == "__main__":
    framework, path, out, options = sys.argv[1:]
    seen = globals()[f"with_{framework}"](path, json.loads(options))
    Path(out, os.environ["RANK"]).write_text(json.dumps(seen))
