"""`lmdbloader.integrations` without the frameworks: modules load lazily, and stand-ins take BasicSR's dataset type."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Sampler

import lmdbloader
from lmdbloader.errors import OptionError
from lmdbloader.superres.degradations import FAMILIES

COUNT = 20


def test_no_framework_is_imported_with_the_package() -> None:
    code = "import sys, lmdbloader; lmdbloader.integrations; dir(lmdbloader.integrations); print(*sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "lmdbloader.integrations" in child.stdout.split()
    assert {name.partition(".")[0] for name in child.stdout.split()}.isdisjoint(lmdbloader.integrations.__all__)


class Registry(dict[str, Any]):
    """What those programs' registries are, as far as a dataset type needs them."""

    def register(self, kind: Any) -> None:
        assert kind.__name__ not in self
        self[kind.__name__] = kind


def stand_in(program: str, models: str, base: str, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Stand in for a program with its registry, sampler and models, and import the integration."""
    registry, sampler, model = Registry(), type("EnlargedSampler", (Enlarged,), {}), type(base, (Model,), {})
    contents: dict[str, dict[str, Any]] = {
        "": {}, ".utils": {}, ".data": {}, ".models": {}, ".utils.registry": {"DATASET_REGISTRY": registry},
        ".data.data_sampler": {"EnlargedSampler": sampler}, models: {base: model},
    }  # fmt: skip
    for name, attributes in contents.items():
        module = types.ModuleType(program + name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, program + name, module)
    registry |= {"sampler": sampler, "model": model}
    monkeypatch.delitem(sys.modules, "lmdbloader.integrations.basicsr", raising=False)
    importlib.import_module("lmdbloader.integrations.basicsr")
    return registry


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    yield stand_in("basicsr", ".models.base_model", "BaseModel", monkeypatch)
    del sys.modules["lmdbloader.integrations.basicsr"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("basicsr") / "d.lmdb"
    rng = np.random.default_rng(0)
    sizes = ({"lr": (12, 12, 3), "hr": (24, 24, 3)} for _ in range(COUNT))
    lmdbloader.write(
        ({name: rng.integers(0, 256, size, np.uint8) for name, size in pair.items()} for pair in sizes), path
    )
    return path


def options(path: Path, **others: Any) -> dict[str, Any]:
    train = {"phase": "train", "gt_size": 8, "use_hflip": True, "use_rot": True}
    return {"name": "D", "type": "LmdbloaderDataset", "dataroot_gt": str(path), "scale": 2, **train, **others}


class Enlarged(Sampler[Any]):
    """The programs' sampler, which gives every index several times an epoch (BasicSR 8d56e3a, data/data_sampler.py)."""

    def __init__(self, dataset: Any, num_replicas: int, rank: int, ratio: int = 1) -> None:
        self.dataset, self.num_replicas, self.rank, self.epoch = dataset, num_replicas, rank, 0
        self.num_samples = -(-len(dataset) * ratio // num_replicas)
        self.total_size = self.num_samples * num_replicas

    def __iter__(self) -> Iterator[Any]:
        indices = torch.randperm(self.total_size, generator=torch.Generator().manual_seed(self.epoch)) % len(
            self.dataset
        )
        return iter(indices[self.rank : self.total_size : self.num_replicas].tolist())

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Model:
    """The programs' models, which get the saved state when a run resumes (BasicSR 8d56e3a, train.py:124)."""

    def __init__(self, opt: Any) -> None:
        self.opt = opt

    def resume_training(self, resume_state: Any) -> None:
        self.resumed = resume_state


@pytest.mark.parametrize("num_workers", [0, 2])
def test_basicsr_gets_new_crops_for_repeated_indices_and_in_every_epoch(
    registry: Registry, path: Path, num_workers: int
) -> None:
    torch.manual_seed(0)
    dataset = registry["LmdbloaderDataset"](options(path))
    sampler = registry["sampler"](dataset, 1, 0, 3)
    loader = DataLoader(dataset, 4, sampler=sampler, num_workers=num_workers, drop_last=True)
    seen = set()
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for batch in loader:
            assert batch["lq"].shape == (4, 3, 4, 4) and batch["gt"].shape == (4, 3, 8, 8)
            assert batch["gt"].dtype == torch.float32 and float(batch["gt"].max()) <= 1
            seen |= {image.numpy().tobytes() for image in batch["gt"]}
    # 9 * 9 places in 8 ways for each of 20 images, of which each is drawn 15 times.
    assert len(seen) >= 0.96 * 5 * COUNT * 3


def test_of_several_scales_basicsr_reads_that_of_the_configuration(registry: Registry, tmp_path: Path) -> None:
    hr = np.arange(24 * 24 * 3, dtype=np.uint8).reshape(24, 24, 3)
    lmdbloader.write([{f"lr{s}": hr[::s, ::s] for s in (2, 4)} | {"hr": hr}] * 2, tmp_path / "d")
    for scale in (2, 4):
        sample = registry["LmdbloaderDataset"](options(tmp_path / "d", scale=scale, phase="val"))[1]
        assert torch.equal(sample["lq"], sample["gt"][:, ::scale, ::scale])
    with pytest.raises(OptionError, match=r"has lr2, lr4, hr, but pairs of scale"):
        registry["LmdbloaderDataset"](options(tmp_path / "d", scale=3))


def test_basicsr_normalizes_and_flips_as_asked(registry: Registry, path: Path) -> None:
    plain = registry["LmdbloaderDataset"](options(path, phase="val"))[3]["lq"]
    normalized = registry["LmdbloaderDataset"](options(path, phase="val", mean=[0.5] * 3, std=[0.5] * 3))[3]["lq"]
    assert torch.allclose(normalized, (plain - 0.5) / 0.5, atol=1e-6)
    whole = options(path, gt_size=24, use_rot=False)
    ways = {registry["LmdbloaderDataset"](whole)[3]["lq"].numpy().tobytes() for _ in range(40)}
    assert ways == {plain.numpy().tobytes(), plain.flip(2).numpy().tobytes()}


def test_basicsr_validates_with_images_of_different_sizes_in_three_channels(registry: Registry, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def pair(height: int, *channels: int) -> dict[str, Any]:
        return {n: rng.integers(0, 256, (height * k, 9 * k, *channels), np.uint8) for n, k in (("lr", 1), ("hr", 2))}

    pairs = [pair(7, 3), pair(8), pair(9, 3)]  # one of them gray
    lmdbloader.write(pairs, tmp_path / "d.lmdb")
    for mean, std in ((0.0, 1.0), (0.5, 0.25)):
        statistics = {"mean": [mean] * 3, "std": [std] * 3} if mean else {}
        opt = options(tmp_path / "d.lmdb", phase="val", filename_tmpl="{}", **statistics)
        for number, batch in enumerate(DataLoader(registry["LmdbloaderDataset"](opt))):
            for name, stored in (("lq", pairs[number]["lr"]), ("gt", pairs[number]["hr"])):
                expected = (
                    torch.from_numpy(stored / 255).reshape(*stored.shape[:2], -1).permute(2, 0, 1).expand(3, -1, -1)
                )
                assert batch[name].dtype == torch.float32
                assert torch.allclose(batch[name][0].double(), (expected - mean) / std, atol=1e-6)


def test_images_that_are_all_grey_have_three_channels_in_training(registry: Registry, tmp_path: Path) -> None:
    lmdbloader.write(
        ({"lr": np.full((8, 8), k, np.uint8), "hr": np.full((16, 16), k, np.uint8)} for k in range(4)),
        tmp_path / "d.lmdb",
    )
    for sample in map(registry["LmdbloaderDataset"](options(tmp_path / "d.lmdb")).__getitem__, range(4)):
        assert sample["lq"].shape == (3, 4, 4) and sample["gt"].shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("others", "line"),
    [
        ({"dataroot_lq": "lq"}, "dataroot_lq: lq"),
        ({"meta_info_file": "m.txt"}, "meta_info_file: m.txt"),
        ({"color": "y"}, "color: y"),
        ({"num_frame": 7}, "num_frame: 7"),
        ({"filename_tmpl": "{}x2"}, r"filename_tmpl: \{\}x2"),
        ({"lq_resize_mode": "area"}, "lq_resize_mode: area.* Leave it out"),
        ({"mean": [0.5] * 3}, "the option std is missing"),
        ({"use_hflip": None}, "the option use_hflip is missing"),  # a KeyError in the programs
        ({"use_hflip": False}, "needs use_hflip: true"),
        ({"scale": 4}, "has pairs of 12x12 and 24x24, but the configuration has scale: 4. Convert with --scale 4"),
        ({"scale": 1}, "has pairs of 12x12 and 24x24, but the configuration has scale: 1. Convert with --hr and --lr"),
    ],
)
def test_options_of_basicsr_that_are_not_here_are_errors(
    registry: Registry, path: Path, others: dict[str, Any], line: str
) -> None:
    with pytest.raises(OptionError, match=line):
        registry["LmdbloaderDataset"](options(path, **others))


@pytest.mark.parametrize(
    ("program", "models", "base", "steps"),
    [("basicsr", ".models.base_model", "BaseModel", {}), ("neosr", ".models.base", "base", {"accumulate": 2})],
)
def test_a_resumed_run_continues_with_the_next_draw_of_the_epoch(
    program: str, models: str, base: str, steps: dict[str, int], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = stand_in(program, models, base, monkeypatch)
    torch.manual_seed(3)
    train = {**options(path), "batch_size" if program == "neosr" else "batch_size_per_gpu": 4, **steps}
    opt = {"dist": True, "num_gpu": 2, "datasets": {"train": train}}

    def read(first: int, state: dict[str, int] | None) -> list[bytes]:
        dataset = registry["LmdbloaderDataset"](train)
        sampler = registry["sampler"](dataset, 2, 1, 2)
        model = registry["model"](opt)
        if state is not None:
            model.resume_training(state)
            assert model.resumed is state
        loader = DataLoader(dataset, 4, sampler=sampler, drop_last=True)
        found: list[bytes] = []
        for epoch in range(first, 3):
            iter(loader)  # the prefetchers begin before the epoch is set
            sampler.set_epoch(epoch)
            found += [batch["gt"].numpy().tobytes() for batch in loader]
        return found

    full, per_epoch = read(0, None), 20 // 4
    assert len({*full}) == len(full) == 3 * per_epoch
    size = steps.get("accumulate", 1)
    for epoch, batches in ((0, 2), (1, 0), (1, 4), (2, 2), (1, per_epoch)):
        done = epoch * per_epoch + batches
        if done % size == 0:
            assert read(epoch, {"epoch": epoch, "iter": done // size}) == full[done:], (epoch, batches)
    with pytest.warns(UserWarning, match="has 900 batches in epoch 1, but an epoch has 5"):
        assert read(1, {"epoch": 1, "iter": 900 // size}) == full[per_epoch:]
    del sys.modules["lmdbloader.integrations.basicsr"]


def test_a_sampler_of_other_datasets_is_unchanged(registry: Registry) -> None:
    assert [*registry["sampler"](range(7), 1, 0, 2)] == [*Enlarged(range(7), 1, 0, 2)]


def test_neosr_gives_the_patch_size_of_lq_images_and_flips_by_default(registry: Registry, path: Path) -> None:
    # neosr 31c7022: data/paired_dataset.py:141-151, options.py:205-217; train.py:168 sets the default device.
    opt = {"type": "LmdbloaderDataset", "dataroot_gt": str(path), "phase": "train", "scale": 2, "patch_size": 12}
    with torch.device("meta"):
        dataset = registry["LmdbloaderDataset"](opt)
        read = [dataset[0, draw * COUNT] for draw in range(100)]
    assert {(sample["lq"].shape, sample["gt"].shape) for sample in read} == {((3, 12, 12), (3, 24, 24))}
    assert len({sample["gt"].numpy().tobytes() for sample in read}) == 8


class DatasetOptions:
    """The struct of traiNNer-redux (6862931, utils/redux_options.py:16-164), without `get`, with defaults."""

    def __init__(self, **given: Any) -> None:
        defaults = {"filename_tmpl": "{}", "use_hflip": True, "use_rot": True, "meta_info": None, "color": None}
        kernels = {"kernel_list": FAMILIES, "kernel_prob": [0.45, 0.25, 0.12, 0.03, 0.12, 0.03], "sinc_prob": 0.1}
        ranges = {"blur_sigma": (0.2, 2), "betag_range": (0.5, 4), "betap_range": (1, 2), "kernel_range": (5, 17)}
        both = {f"{name}{end}": value for end in ("", "2") for name, value in {**kernels, **ranges}.items()}
        final = {"final_sinc_prob": 0.5, "final_kernel_range": (5, 17), "lq_resize_mode": None, "dataroot_lq": None}
        vars(self).update({**defaults, **both, **final, "phase": "train", "scale": 2, **given})

    @property
    def __struct_fields__(self) -> tuple[str, ...]:
        return tuple(vars(self))


def test_redux_gives_a_struct_with_a_list_of_datasets(registry: Registry, path: Path) -> None:
    # 6862931: train.py:110-122 and :144 (label), utils/options.py:170-178 (lists).
    opt = DatasetOptions(name="D", type="LmdbloaderDataset", dataroot_gt=[str(path)], gt_size=8)
    dataset = registry["LmdbloaderDataset"](opt)
    assert dataset.label == "image pairs" and dataset.opt is opt
    assert dataset[0, 0]["gt"].shape == (3, 8, 8)
    with pytest.raises(OptionError, match="lmdbloader merge a b OUT"):
        registry["LmdbloaderDataset"](DatasetOptions(type="LmdbloaderDataset", dataroot_gt=["a", "b"], gt_size=8))
    with pytest.raises(OptionError, match=r"filename_tmpl: \{\}x2"):
        registry["LmdbloaderDataset"](
            DatasetOptions(type="LmdbloaderDataset", dataroot_gt=[str(path)], gt_size=8, filename_tmpl="{}x2")
        )


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "d.lmdb"
    rng = np.random.default_rng(0)
    lmdbloader.write(({"image": rng.integers(0, 256, (520, 520, 3), np.uint8)} for _ in range(2)), path)
    return path


def test_ground_truth_has_kernels_that_depend_on_the_epoch_and_the_draw(registry: Registry, large: Path) -> None:
    torch.manual_seed(3)
    kind, names = registry["LmdbloaderGtDataset"], ("kernel1", "kernel2", "sinc_kernel")
    struct = DatasetOptions(type="LmdbloaderGtDataset", dataroot_gt=[str(large)], gt_size=64)
    of_basicsr = {name: value for name, value in vars(struct).items() if "_range" not in name or "beta" in name}
    of_basicsr |= {"dataroot_gt": str(large)}
    del of_basicsr["filename_tmpl"], of_basicsr["gt_size"]
    for opt, size in ((struct, 96), (of_basicsr, 400), ({**of_basicsr, "patch_size": 16}, 512)):
        dataset = kind(opt)
        sample = dataset[0, 3]
        assert {*sample} == {"gt", "gt_path", *names}
        assert sample["gt"].shape == (3, size, size) and sample["gt"].dtype == torch.float32
        for name in names:
            assert sample[name].shape == (21, 21) and sample[name].dtype == torch.float32
            assert abs(float(sample[name].sum()) - 1) < 1e-6
        again = DataLoader(kind(opt), 2, sampler=[(0, 1), (0, 3)], num_workers=1)
        assert all(torch.equal(batch[name][1], sample[name]) for batch in again for name in ("gt", *names))
        others = [
            dataset[key][name].numpy().tobytes() for key in ((0, 3), (1, 3), (0, 5), (0, 4), 1) for name in names[:2]
        ]
        assert len({*others}) == len(others)
    plain = kind(DatasetOptions(type="D", dataroot_gt=[str(large)], gt_size=64, lq_resize_mode="area"))
    assert {**plain[0, 0], "gt": 0} == {"gt": 0, "gt_path": "0", "lq_path": "0", "lq_resize_mode": "area"}
    assert plain[0, 0]["gt"].shape == (3, 64, 64)


@pytest.mark.parametrize(
    ("others", "line"),
    [
        ({"phase": "val"}, "LmdbloaderGtDataset is for training"),
        ({"mean": [0.5] * 3, "std": [0.5] * 3}, "mean: .* Leave it out"),
        ({"gt_size": 600}, "a side of 520 pixels, but .* crops 632x632"),
        ({"final_sinc_prob": None}, "the option final_sinc_prob is missing"),
        ({"kernel_list": ["skew"], "kernel_prob": [1]}, "kernel_list=.*skew.*: expected names"),
        ({"kernel_range2": (4, 8)}, "kernel_range2=.*: expected odd"),
        ({"final_kernel_range": (19, 23)}, "final_kernel_range: .* at most 21"),
        ({"blur_sigma": (3, 0.2)}, "blur_sigma"),
        ({"betap_range2": (2, 4)}, "betap_range"),
        ({"kernel_prob": [1.0]}, "as many names as there are probabilities"),
    ],
)
def test_options_of_ground_truth_that_do_not_fit_are_errors(
    registry: Registry, large: Path, others: dict[str, Any], line: str
) -> None:
    given = {"type": "LmdbloaderGtDataset", "dataroot_gt": [str(large)], "gt_size": 64, **others}
    with pytest.raises(OptionError, match=line):
        registry["LmdbloaderGtDataset"](DatasetOptions(**given))


def test_pairs_that_are_none_are_an_error_with_the_type_to_write(registry: Registry, large: Path) -> None:
    with pytest.raises(
        OptionError, match=r"has image, but pairs of scale 2 are hr and lr.*write type: LmdbloaderGtDataset"
    ):
        registry["LmdbloaderDataset"](options(large))


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Return a function that imports an integration with stand-ins of its framework's modules."""
    names: list[str] = []

    def imported(name: str, **modules: Any) -> Any:
        for module, attributes in modules.items():
            stand_in = types.ModuleType(module)
            vars(stand_in).update(attributes)
            monkeypatch.setitem(sys.modules, module, stand_in)
        names.append(f"lmdbloader.integrations.{name}")
        monkeypatch.delitem(sys.modules, names[-1], raising=False)
        return importlib.import_module(names[-1])

    yield imported
    for name in names:
        del sys.modules[name]


def test_epochs_of_keras_begin_where_they_are_said_to(path: Path, imported: Callable[..., Any]) -> None:
    module = imported("keras", keras={"callbacks": types.SimpleNamespace(Callback=object)})
    loader = lmdbloader.Loader(path, 4, shuffle=True)
    loader.load_state_dict({**loader.state_dict(), "epoch": 2, "position": 8})
    callback = module.Epochs(loader)
    for epoch, position in ((2, 8), (3, 0), (2, 0)):
        next(iter(loader))  # an iteration that is not finished
        callback.on_epoch_begin(epoch)
        assert {**loader.state_dict(), "epoch": epoch, "position": position} == loader.state_dict()
    loader.load_state_dict({**loader.state_dict(), "position": 8})
    with pytest.raises(OptionError, match=r"middle of epoch 2, but this is epoch 0.*initial_epoch=2"):
        module.Epochs(loader).on_epoch_begin(0)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "process 1 of 2, and the loader reads share 0 of 1"),
        ({"shard": (1, 2)}, "different numbers of batches"),
        ({"shard": (1, 2), "pad": True}, None),
        ({"shard": (1, 2), "drop_last": True}, None),
    ],
)
def test_fastai_keeps_the_share_of_a_loader_or_says_what_to_write(
    path: Path, imported: Callable[..., Any], options: dict[str, Any], line: str | None
) -> None:
    distributed = types.SimpleNamespace(
        DistributedTrainer=type("DistributedTrainer", (), {"_wrap_dl": lambda self, dl: [dl]}),
        rank_distrib=lambda: 1,
        num_distrib=lambda: 2,
    )
    trainer = imported("fastai", fastai={"distributed": distributed}).DistributedTrainer()
    loader = lmdbloader.Loader(path, 4, shuffle=True, **options)
    if line is None:
        assert trainer._wrap_dl(loader) is loader
    else:
        with pytest.raises(OptionError, match=rf'{line}.*Write Loader\(..., shard="auto", pad=True\)'):
            trainer._wrap_dl(loader)
    assert trainer._wrap_dl("another") == ["another"]
