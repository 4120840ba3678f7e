"""Frameworks train with a Loader: they resume, run in two processes, and see as many crops as the Loader gives.

`make test-frameworks` runs this where the frameworks are; elsewhere each test that lacks one is skipped.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.errors import OptionError
from lmdbloader.transforms import CenterCrop, RandomCrop, ToDtype

# Those of frameworks and of what they import.
pytestmark = pytest.mark.filterwarnings("ignore")
COUNT, BATCH, EPOCHS = 22, 4, 5
STEPS = -(-COUNT // BATCH)
NAMES = {"pixel_values": "image", "labels": "label"}
Seen = list[tuple[list[int], bytes]]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("frameworks") / "d.lmdb"
    pictures = np.random.default_rng(0).integers(0, 256, (COUNT, 40, 40, 3), np.uint8)
    lmdbloader.write(({"image": pictures[i], "label": i} for i in range(COUNT)), path)
    return path


def loader_of(path: Path, **options: Any) -> Loader:
    return Loader(
        LMDBDataset(path),
        BATCH,
        transforms=[RandomCrop(8), ToDtype(torch.float32, scale=True)],
        **{"order": "random", "seed": 0, **options},
    )


def without_a_seed(path: Path) -> Loader:
    return loader_of(path, seed=None)


def view_of(path: Path, **options: Any) -> LMDBDataset:
    return LMDBDataset(path, **options).transformed([RandomCrop(8), ToDtype(torch.float32, scale=True)])


def noted(images: torch.Tensor, labels: torch.Tensor) -> tuple[list[int], bytes]:
    return labels.tolist(), images.numpy().tobytes()


def seen_by_the_loader(path: Path, epochs: int) -> Seen:
    loader = loader_of(path)
    return [noted(batch.image, batch.label) for _ in range(epochs) for batch in loader]


def crops(seen: Iterable[tuple[list[int], bytes]]) -> int:
    """Return the number of distinct crops."""
    nbytes = 3 * 8 * 8 * 4
    return len({images[i : i + nbytes] for _, images in seen for i in range(0, len(images), nbytes)})


def check_crops(path: Path, seen: Seen) -> None:
    """Check the bar: 0.99 of the distinct crops that the Loader gives in as many epochs."""
    assert sum(len(labels) for labels, _ in seen) == EPOCHS * COUNT
    assert crops(seen) >= 0.99 * crops(seen_by_the_loader(path, EPOCHS))


class Network(torch.nn.Module):
    """Notes the batches that it is given in training."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Linear(1, 1)
        self.seen: Seen = []

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        found = self.weight(pixel_values.mean((1, 2, 3))[:, None])
        if labels is not None and self.training:
            self.seen.append(noted(pixel_values, labels))
        return {"loss": found.square().mean(), "logits": found}


# Lightning


def lightning_module() -> Any:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = Network()

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss: torch.Tensor = self.network(batch.image, batch.label)["loss"]
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            assert len(batch.label)

        def predict_step(self, batch: Any, number: int) -> torch.Tensor:
            labels: torch.Tensor = batch.label
            return labels

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    return Module()


def fit_lightning(data: Any, folder: Path, *, ckpt_path: Path | None = None, **options: Any) -> Seen:
    module = lightning_module()
    trainer = lightning_trainer(folder, **options)
    trainer.fit(module, data, ckpt_path=ckpt_path)
    seen: Seen = module.network.seen
    return seen


def lightning_trainer(folder: Path, **options: Any) -> Any:
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.callbacks import ModelCheckpoint

    every = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return lightning.Trainer(accelerator="cpu", callbacks=[every], **quiet, **options)


def test_lightning_sees_what_the_loader_gives(path: Path, tmp_path: Path) -> None:
    seen = fit_lightning(loader_of(path), tmp_path, max_epochs=EPOCHS)
    assert seen == seen_by_the_loader(path, EPOCHS)
    check_crops(path, seen)


@pytest.mark.parametrize("way", ["loader", "module"])
def test_lightning_continues_with_the_very_batch(path: Path, tmp_path: Path, way: str) -> None:
    pytest.importorskip("lightning")
    from lmdbloader.integrations.lightning import DataModule

    def data() -> Any:
        steps = [RandomCrop(8), ToDtype(torch.float32, scale=True)]
        if way == "loader":
            return loader_of(path)
        evaluation = [CenterCrop(8), steps[1]]
        return DataModule(path, path, batch_size=BATCH, transforms=steps, eval_transforms=evaluation, seed=0)

    full = fit_lightning(data(), tmp_path, max_epochs=4)
    assert full == seen_by_the_loader(path, 4)
    # In the middle of the first and of another epoch, at the last step of one, and after the first of the next.
    for step in (2, STEPS, STEPS + 1, 2 * STEPS + 3, 3 * STEPS - 1):
        rest = fit_lightning(data(), tmp_path / "again", max_epochs=4, ckpt_path=tmp_path / f"step={step}.ckpt")
        assert rest == full[step:], step


# Fabric


def in_fabric(loader: Loader) -> Any:
    lightning = pytest.importorskip("lightning")
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    return fabric.setup_dataloaders(loader)


def test_fabric_continues_with_the_very_batch(path: Path) -> None:
    full = seen_by_the_loader(path, 5)
    for stop in (2, STEPS, STEPS + 1, 2 * STEPS + 3, 3 * STEPS - 1, 3 * STEPS):
        loader, seen = loader_of(path), []
        for batch in (batch for prepared in [in_fabric(loader)] for _ in range(5) for batch in prepared):
            seen.append(noted(batch.image, batch.label))
            if len(seen) == stop:
                state = loader.state_dict()
                break
        again = loader_of(path)
        prepared = in_fabric(again)
        again.load_state_dict(state)
        while len(seen) < len(full):
            seen += [noted(batch.image, batch.label) for batch in prepared]
        assert seen == full, stop


def test_the_lightning_module_evaluates_without_random_transforms_and_on_the_same_classes(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    from lmdbloader.integrations.lightning import DataModule

    for name, classes in {"train": "abcd", "val": "acd", "same": "abcd"}.items():
        samples = ({"image": np.zeros((16, 16, 3), np.uint8), "label": k} for k in range(len(classes)))
        lmdbloader.write(samples, tmp_path / name, classes={"label": list(classes)})
    train, random = tmp_path / "train", [RandomCrop(8)]
    for role in ("val", "test", "predict"):
        with pytest.raises(OptionError, match=r"RandomCrop.*eval_transforms"):
            DataModule(train, **{role: train}, batch_size=2, transforms=random)  # type: ignore[arg-type]
        other = DataModule(train, **{role: tmp_path / "val"}, batch_size=2, transforms=[CenterCrop(8)])  # type: ignore[arg-type]
        with pytest.raises(OptionError, match=r"the classes of field 'label' differ.*convert SRC OUT --split"):
            getattr(other, f"{role}_dataloader")()
        same = DataModule(train, **{role: tmp_path / "same"}, batch_size=2, transforms=random, eval_transforms=())  # type: ignore[arg-type]
        assert len(getattr(same, f"{role}_dataloader")()) == 2
    DataModule(train, batch_size=2, transforms=random)


# Accelerate


@pytest.mark.parametrize("count", [0, 1, STEPS - 1])
@pytest.mark.parametrize("way", ["prepare", "integration", "no preparation"])
def test_accelerate_skips_batches_without_reading_them(path: Path, count: int, way: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    from lmdbloader.integrations.accelerate import prepare

    accelerator, loader = accelerate.Accelerator(cpu=True), loader_of(path)
    ways: dict[str, Callable[[], Any]] = {
        "prepare": lambda: accelerator.prepare(loader),
        "integration": lambda: prepare(accelerator, loader),
        "no preparation": lambda: loader,
    }
    prepared = ways[way]()
    prepared.set_epoch(2)
    loader.time_stages()
    rest = accelerator.skip_first_batches(prepared, count)
    expected = seen_by_the_loader(path, 3)[2 * STEPS :]
    assert [noted(batch.image, batch.label) for batch in rest] == expected[count:]
    assert loader.stage_times().num_samples == COUNT - count * BATCH


@pytest.mark.parametrize("way", ["prepare", "integration"])
@pytest.mark.parametrize("stop", [1, STEPS, 2 * STEPS + 3])
@pytest.mark.parametrize("make", [loader_of, without_a_seed])
def test_accelerate_saves_the_place_with_its_stateful_loader(
    path: Path, tmp_path: Path, way: str, stop: int, make: Callable[[Path], Loader]
) -> None:
    accelerate = pytest.importorskip("accelerate")
    pytest.importorskip("torchdata")
    from lmdbloader.integrations.accelerate import prepare

    def prepared() -> tuple[Any, Any]:
        config = accelerate.utils.DataLoaderConfiguration(use_stateful_dataloader=True)
        accelerator = accelerate.Accelerator(cpu=True, dataloader_config=config)
        loader = make(path)
        return accelerator, accelerator.prepare(loader) if way == "prepare" else prepare(accelerator, loader)

    accelerator, batches = prepared()
    full: Seen = []
    while len(full) < 4 * STEPS:
        for batch in batches:
            full.append(noted(batch.image, batch.label))
            if len(full) == stop:
                accelerator.save_state(str(tmp_path))
    accelerator, batches = prepared()
    accelerator.load_state(str(tmp_path))
    rest: Seen = []
    while len(rest) < 4 * STEPS - stop:
        rest += [noted(batch.image, batch.label) for batch in batches]
    assert rest == full[stop:]


# Transformers


def fit_transformers(path: Path, folder: Path, way: str, *, epochs: int = 4, resume: Path | None = None) -> Seen:
    transformers = pytest.importorskip("transformers")
    from lmdbloader.integrations.transformers import Trainer

    arguments = transformers.TrainingArguments(
        str(folder), num_train_epochs=epochs, per_device_train_batch_size=BATCH, use_cpu=True, report_to=[],
        disable_tqdm=True, save_strategy="steps", save_steps=1, remove_unused_columns=way == "columns",
    )  # fmt: skip
    network = Network()
    if way in ("loader", "loader without a seed"):
        seed = 0 if way == "loader" else None
        trainer = Trainer(network, arguments, train_dataset=loader_of(path, as_=NAMES, seed=seed))
    else:
        view = view_of(path, as_=NAMES)
        trainer = Trainer(network, arguments, train_dataset=view, data_collator=lmdbloader.collate)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return network.seen


@pytest.mark.parametrize("way", ["loader", "view", "columns"])
def test_transformers_sees_new_crops_in_every_epoch(path: Path, tmp_path: Path, way: str) -> None:
    seen = fit_transformers(path, tmp_path, way, epochs=EPOCHS)
    assert way != "loader" or seen == seen_by_the_loader(path, EPOCHS)
    check_crops(path, seen)


@pytest.mark.parametrize("way", ["loader", "loader without a seed", "view"])
def test_transformers_continues_with_the_augmentation_of_the_epoch(path: Path, tmp_path: Path, way: str) -> None:
    full = fit_transformers(path, tmp_path / "full", way)
    for step in (2, STEPS, 2 * STEPS + 3):
        torch.manual_seed(step)
        again = fit_transformers(path, tmp_path / "again", way, resume=tmp_path / "full" / f"checkpoint-{step}")
        assert again == full[step:], step


# Several processes


@pytest.mark.parametrize("framework", ["lightning", "accelerate", "transformers", "fastai"])
def test_two_processes_share_every_epoch(path: Path, tmp_path: Path, framework: str) -> None:
    ranks = seen_by_ranks(framework, path, tmp_path, shard="auto")
    check_ranks(ranks, [loader_of(path, shard=(rank, 2), pad=True) for rank in (0, 1)])
    first = [labels for seen in ranks for labels, _ in seen[: len(seen) // 2]]
    assert {label for labels in first for label in labels} == {*range(COUNT)}


def test_two_processes_of_fastai_continue_in_the_middle_of_an_epoch(path: Path, tmp_path: Path) -> None:
    options = {"shard": "auto"}
    full = seen_by_ranks("fastai", path, tmp_path, **options)
    again = seen_by_ranks("fastai", path, tmp_path, **options, place=(1, 2 * BATCH))
    assert again == [seen[len(seen) // 2 + 1 :] for seen in full]


@pytest.mark.parametrize("newer", [False, True])
def test_two_processes_of_timm_share_every_epoch_and_resume(path: Path, tmp_path: Path, newer: bool) -> None:
    full = seen_by_ranks("timm", path, tmp_path, newer=newer, start=0)
    num_steps = COUNT // (2 * BATCH)
    for epoch in (0, 1):
        labels = [label for seen in full for labels, _ in seen[epoch * num_steps :][:num_steps] for label in labels]
        assert len(labels) == len({*labels}) == num_steps * 2 * BATCH
    assert len({digest for seen in full for _, digest in seen}) == 2 * 2 * num_steps
    again = seen_by_ranks("timm", path, tmp_path, newer=newer, start=1)
    assert again == [seen[num_steps:] for seen in full]


def seen_by_ranks(framework: str, path: Path, out: Path, **options: Any) -> list[Seen]:
    """Return what each of two processes saw: labels, and digests in place of images."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"needs {framework}")
    child = run_ranks(framework, path, out, **options)
    assert child.returncode == 0, child.stderr
    return [json.loads((out / str(rank)).read_text()) for rank in (0, 1)]


def check_ranks(ranks: list[Seen], loaders: list[Loader]) -> None:
    """Check that each process saw two epochs of a Loader, with its random choices."""
    for seen, loader in zip(ranks, loaders, strict=True):
        batches = [batch for _ in range(2) for batch in loader]
        digests = [hashlib.sha256(batch.image.numpy().tobytes()).hexdigest() for batch in batches]
        expected = [[batch.label.tolist(), digest] for batch, digest in zip(batches, digests, strict=True)]
        assert [[*one] for one in seen] == expected


@pytest.mark.parametrize(
    ("framework", "options", "line"),
    [
        ("lightning", {}, 'Write Loader(..., shard="auto")'),
        ("accelerate", {}, 'Write Loader(..., shard="auto", pad=True)'),
        ("accelerate", {"shard": "auto", "pad": True, "stateful": True}, "accelerator.skip_first_batches(prepared"),
        ("accelerate", {"directly": True}, "lmdbloader.integrations.accelerate.prepare(accelerator, loader)"),
        ("accelerate", {"shard": "auto", "pad": True, "dispatch": True}, "Leave dispatch_batches out"),
        ("transformers", {}, 'Write Loader(..., shard="auto", pad=True)'),
        ("fastai", {}, 'Write Loader(..., shard="auto", pad=True)'),
    ],
)
def test_two_processes_never_read_the_same(
    path: Path, tmp_path: Path, framework: str, options: dict[str, Any], line: str
) -> None:
    pytest.importorskip(framework)
    child = run_ranks(framework, path, tmp_path, **options)
    assert child.returncode and "OptionError" in child.stderr and line in child.stderr, child.stderr


@pytest.mark.parametrize("framework", ["lightning", "accelerate", "transformers", "fastai"])
def test_two_processes_without_a_seed_share_every_epoch(path: Path, tmp_path: Path, framework: str) -> None:
    ranks = seen_by_ranks(framework, path, tmp_path, shard="auto", pad=True, seed=None)
    steps = len(ranks[0]) // 2
    epochs = [[label for seen in ranks for labels, _ in seen[i : i + steps] for label in labels] for i in (0, steps)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == [*range(COUNT)] and epochs[0] != epochs[1]


def run_ranks(framework: str, path: Path, out: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    program = Path(__file__).with_name("framework_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    return subprocess.run(
        [*command, framework, str(path), str(out), json.dumps(options)],
        env={**environment(), "TMPDIR": str(out), "PYTHONPATH": str(Path(lmdbloader.__file__).parent.parent)},
        cwd=out,
        capture_output=True,
        text=True,
        timeout=300,
    )


def environment() -> dict[str, str]:
    import os

    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


# timm


def test_timm_evaluates_as_its_own_loader(path: Path) -> None:
    timm = pytest.importorskip("timm")
    from PIL import Image

    from lmdbloader.integrations.timm import create_loader

    expected = timm.data.create_transform(24, is_training=False, crop_pct=0.9, interpolation="bicubic")
    loader = create_loader(path, (3, 24, 24), BATCH, crop_pct=0.9, interpolation="bicubic", use_prefetcher=False)
    ours = torch.cat([images for images, _ in loader])
    theirs = [expected(Image.fromarray(sample.image.permute(1, 2, 0).numpy())) for sample in LMDBDataset(path)]
    assert float((ours - torch.stack(theirs)).abs().max()) < 0.02  # one level of a pixel
    assert [label for _, labels in loader for label in labels.tolist()] == list(range(COUNT))


def test_timms_policies_are_refused_with_the_nearest_one(path: Path) -> None:
    pytest.importorskip("timm")
    from lmdbloader.integrations.timm import create_loader

    with pytest.raises(OptionError, match="RandAugment") as caught:
        create_loader(path, 24, BATCH, is_training=True, auto_augment="rand-m9-mstd0.5-inc1")
    line = re.search(r"transforms=\[\.\.\., (.*), \.\.\.\]", str(caught.value))
    assert line is not None
    names = {name: getattr(lmdbloader.transforms, name) for name in lmdbloader.transforms.__all__}
    steps = eval(f"[RandomResizedCrop(24), {line[1]}]", names)
    assert len(next(iter(Loader(path, BATCH, shuffle=True, transforms=steps)))[0]) == BATCH


# The others


def keras_model(seen: Seen) -> Any:
    keras = pytest.importorskip("keras")

    class Model(keras.Sequential):  # type: ignore[name-defined,misc]
        def train_step(self, data: Any) -> Any:
            seen.append(noted(*data))
            return super().train_step(data)

    model = Model([keras.Input((3, 8, 8)), keras.layers.Flatten(), keras.layers.Dense(COUNT)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.fixture
def on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("has_callback", [False, True])
def test_keras_fits_a_loader(path: Path, has_callback: bool) -> None:
    seen: Seen = []
    model, loader = keras_model(seen), loader_of(path, as_="tuple")
    from lmdbloader.integrations.keras import Epochs

    model.fit(loader, epochs=EPOCHS, verbose=0, callbacks=[Epochs(loader)] if has_callback else [])
    check_crops(path, seen)
    assert not has_callback or seen == seen_by_the_loader(path, EPOCHS)


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize(("epoch", "num_steps"), [(0, 2), (2, 0), (2, 2), (1, STEPS - 1)])
def test_keras_continues_with_the_very_batch(path: Path, epoch: int, num_steps: int) -> None:
    seen: Seen = []
    model, loader = keras_model(seen), loader_of(path, as_="tuple")
    from lmdbloader.integrations.keras import Epochs

    loader.load_state_dict({**loader.state_dict(), "epoch": epoch, "position": num_steps * BATCH})
    model.fit(loader, initial_epoch=epoch, epochs=3, verbose=0, callbacks=[Epochs(loader)])
    assert seen == seen_by_the_loader(path, 3)[epoch * STEPS + num_steps :]


def flat_layers() -> tuple[torch.nn.Module, torch.nn.Module]:
    """Return the layers of a linear classifier of crops."""
    return torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, COUNT)


def test_fastai_fits_a_loader(path: Path) -> None:
    pytest.importorskip("fastai")
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner

    seen: Seen = []

    def loss(found: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(found, labels)

    def note(batch: Any) -> Any:
        seen.append(noted(batch.image, batch.label))
        return batch

    steps = [RandomCrop(8), ToDtype(torch.float32, scale=True), note]
    train = Loader(LMDBDataset(path), BATCH, order="random", transforms=steps, as_="tuple")
    model = torch.nn.Sequential(*flat_layers())
    Learner(DataLoaders(train, loader_of(path, order="sequential", as_="tuple")), model, loss_func=loss).fit(EPOCHS)
    check_crops(path, seen)


def test_ignite_runs_a_loader(path: Path) -> None:
    pytest.importorskip("ignite")
    from ignite.engine import Engine

    seen: Seen = []
    Engine(lambda engine, batch: seen.append(noted(*batch))).run(loader_of(path, as_="tuple"), max_epochs=EPOCHS)
    check_crops(path, seen)


def test_skorch_fits_a_view(path: Path) -> None:
    skorch = pytest.importorskip("skorch")
    seen: Seen = []

    class Noting(torch.nn.Sequential):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            seen.append(noted(images.detach(), torch.zeros(len(images))))
            found: torch.Tensor = super().forward(images)
            return found

    net = skorch.NeuralNet(
        Noting(*flat_layers()), criterion=torch.nn.CrossEntropyLoss, max_epochs=EPOCHS, batch_size=BATCH,
        train_split=None, verbose=0, iterator_train__collate_fn=lmdbloader.collate,
    )  # fmt: skip
    net.fit(view_of(path, as_="tuple"), y=None)
    check_crops(path, seen)


def test_monai_reads_views_as_dicts(path: Path) -> None:
    monai_data = pytest.importorskip("monai.data")
    loader = monai_data.DataLoader(view_of(path, as_="dict"), batch_size=BATCH, num_workers=0, shuffle=True)
    check_crops(path, [noted(batch["image"], batch["label"]) for _ in range(EPOCHS) for batch in loader])


def test_torchdata_reads_views(path: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    loader = stateful.StatefulDataLoader(view_of(path), BATCH, shuffle=True, collate_fn=lmdbloader.collate)
    check_crops(path, [noted(batch.image, batch.label) for _ in range(EPOCHS) for batch in loader])


def test_composer_sees_what_the_loader_gives_and_continues(path: Path, tmp_path: Path) -> None:
    composer = pytest.importorskip("composer")
    from composer.models import ComposerModel

    class Model(ComposerModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Linear(1, COUNT)
            self.seen: Seen = []

        def forward(self, batch: Any) -> torch.Tensor:
            self.seen.append(noted(*batch))
            found: torch.Tensor = self.weight(batch[0].mean((1, 2, 3))[:, None])
            return found

        def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(outputs, batch[1])

    def fit(**options: Any) -> Seen:
        model, loader = Model(), loader_of(path, as_="tuple")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        options = {"device": "cpu", "progress_bar": False, "optimizers": optimizer, **options}
        composer.Trainer(model=model, train_dataloader=loader, max_duration=f"{EPOCHS}ep", **options).fit()
        return model.seen

    full = fit(save_folder=str(tmp_path), save_interval="1ba")
    assert full == seen_by_the_loader(path, EPOCHS)
    check_crops(path, full)
    for step in (2, STEPS, STEPS + 1):
        (found,) = tmp_path.glob(f"ep*-ba{step}-rank0.pt")
        assert fit(load_path=str(found)) == full[step:]


# Transforms and datasets of others


def flips_of_monai() -> dict[str, Any]:
    transforms = pytest.importorskip("monai.transforms")
    keys = ["image", "mask"]
    steps = [transforms.RandFlipd(keys, prob=0.5, spatial_axis=1), transforms.RandAxisFlipd(keys, prob=0.5)]
    step = transforms.Compose([*steps, transforms.RandSpatialCropd(keys, roi_size=(20, 20), random_size=False)])

    def flipped(sample: Any) -> Any:
        found = step({"image": sample.image, "mask": sample.mask[None]})
        return sample._replace(image=torch.as_tensor(found["image"]), mask=torch.as_tensor(found["mask"])[0])

    return {"transform": flipped}


def flips_of_albumentations() -> dict[str, Any]:
    albumentations = pytest.importorskip("albumentations")
    step = albumentations.ReplayCompose([albumentations.HorizontalFlip(p=0.5), albumentations.RandomCrop(20, 20)])

    class Flipped:
        def __call__(self, sample: Any) -> Any:
            found = step(image=sample.image.permute(1, 2, 0).numpy())
            self.replay = found["replay"]
            image = torch.from_numpy(found["image"].copy()).permute(2, 0, 1).contiguous()
            mask = albumentations.ReplayCompose.replay(self.replay, image=sample.mask.numpy())["image"]
            return sample._replace(image=image, mask=torch.from_numpy(mask.copy()))

    return {"transform": Flipped()}


def flips_of_kornia() -> dict[str, Any]:
    kornia = pytest.importorskip("kornia.augmentation")
    flip = kornia.RandomHorizontalFlip(p=0.5)

    def flipped(batch: Any) -> Any:
        image = flip(batch.image.float())
        return batch._replace(image=image, mask=flip(batch.mask[:, None].float(), flip._params)[:, 0])

    return {"functions": [flipped]}


@pytest.mark.parametrize("flips", [flips_of_monai, flips_of_albumentations, flips_of_kornia])
def test_masks_fit_after_transforms_that_keep_their_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flips: Callable[[], dict[str, Any]]
) -> None:
    given = flips()
    monkeypatch.setattr("lmdbloader.loader.loader.count_cores", lambda: 4)
    masks = np.random.default_rng(0).integers(0, 256, (64, 24, 24), np.uint8)
    samples = ({"image": mask[..., None].repeat(3, 2), "mask": mask} for mask in masks)
    lmdbloader.write(samples, tmp_path / "d", fields={"mask": lmdbloader.fields.Mask()})
    dataset = LMDBDataset(tmp_path / "d", transform=given.get("transform"))
    loader = Loader(dataset, 4, shuffle=True, transforms=given.get("functions", []), repeat=16)
    count = 0
    for image, mask in loader:
        assert torch.equal(image[:, 1], mask)
        count += len(mask)
    assert count == 16 * 64


def test_datasets_of_hugging_face_are_written_and_read(path: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    pictures = [{"image": sample.image.permute(1, 2, 0).numpy(), "label": sample.label} for sample in LMDBDataset(path)]
    names = [f"name {number}" for number in range(COUNT)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    lmdbloader.write(datasets.Dataset.from_list(pictures, features=features), tmp_path / "d.lmdb")
    assert [*LMDBDataset(tmp_path / "d.lmdb").classes] == names
    loader = loader_of(tmp_path / "d.lmdb")
    seen = [noted(batch.image, batch.label) for _ in range(EPOCHS) for batch in loader]
    assert seen == seen_by_the_loader(path, EPOCHS)


def test_two_workers_of_ray_share_an_epoch_and_continue_after_a_failure(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.train.torch")
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    def train(config: dict[str, Any]) -> None:
        import hashlib
        import json
        import tempfile
        from pathlib import Path

        import ray.train.torch
        import torch

        from lmdbloader import LMDBDataset, Loader
        from lmdbloader.transforms import RandomCrop, ToDtype

        steps = [RandomCrop(8), ToDtype(torch.float32, scale=True)]
        options = {"shard": "auto", "pad": True, "device": ray.train.torch.get_device(), "num_threads": 1}
        loader = Loader(LMDBDataset(config["path"]), 4, shuffle=True, seed=0, transforms=steps, **options)
        last, num_steps = ray.train.get_checkpoint(), 0
        if last is not None:
            with last.as_directory() as folder:
                loader.load_state_dict(json.loads(Path(folder, "loader.json").read_text()))
        with Path(config["out"], str(ray.train.get_context().get_world_rank())).open("a") as out:
            while loader.state_dict()["epoch"] < 2:
                for batch in loader:
                    digest = hashlib.sha256(batch.image.numpy().tobytes()).hexdigest()
                    out.write(json.dumps([batch.label.tolist(), digest]) + "\n")
                    num_steps += 1
                    if last is None and num_steps == 4:
                        out.close()
                        with tempfile.TemporaryDirectory() as folder:
                            Path(folder, "loader.json").write_text(json.dumps(loader.state_dict()))
                            ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(folder))
                        raise RuntimeError("a failure after the checkpoint")

    for name, value in {"RAY_USAGE_STATS_ENABLED": "0", **environment()}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(Path(lmdbloader.__file__).parent.parent))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        TorchTrainer(
            train,
            train_loop_config={"path": str(path), "out": str(tmp_path)},
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(tmp_path / "ray"), failure_config=FailureConfig(max_failures=1)),
        ).fit()
    finally:
        ray.shutdown()
    ranks = [[json.loads(line) for line in (tmp_path / str(rank)).read_text().splitlines()] for rank in (0, 1)]
    check_ranks(ranks, [loader_of(path, shard=(rank, 2), pad=True) for rank in (0, 1)])
