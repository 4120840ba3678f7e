"""What users of other libraries write means the same here, or is an error: nothing is silently different."""

from __future__ import annotations

import copy
import inspect
import pickle
import shlex
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from PIL import Image
from torch.utils.data import DataLoader

import lmdbloader
from lmdbloader import LMDBDataset, Loader
from lmdbloader.cli import main
from lmdbloader.errors import LmdbloaderError, OptionError, SourceError

LABELS = [2, 0, 0, 1, 1, 0, 2, 1, 0, 2, 2, 1]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with datasets of 12 images of 32 x 32 in 3 classes and of pairs, and with images and tars."""
    folder = tmp_path_factory.mktemp("habits")
    # Of squares, so that each LR image is the mean of its HR image however that is turned.
    images = np.random.default_rng(0).integers(0, 256, (12, 4, 4, 3), np.uint8).repeat(8, 1).repeat(8, 2)
    samples = ({"image": image, "label": label} for image, label in zip(images, LABELS, strict=True))
    lmdbloader.write(samples, folder / "train.lmdb")
    pairs = ({"lr": np.ascontiguousarray(image[::2, ::2]), "hr": image} for image in images)
    lmdbloader.write(pairs, folder / "pairs.lmdb")
    for number, image in enumerate(images[:6]):
        for name, pixels in (
            (f"photos/{'cats' if number < 3 else 'dogs'}", image), ("hr", image), ("lr", image[::2, ::2])
        ):  # fmt: skip
            (folder / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.ascontiguousarray(pixels)).save(folder / name / f"{number}.png")
    for split in ("train", "val"):
        shutil.copytree(folder / "photos", folder / "imagenet" / split)
    Image.fromarray(images[0]).save(folder / "photo.jpg")
    (folder / "shards").mkdir()
    for shard in range(2):
        with tarfile.open(folder / "shards" / f"x-{shard}.tar", "w") as tar:
            for number in (2 * shard, 2 * shard + 1):
                tar.add(folder / "hr" / f"{number}.png", f"{number}.png")
                (folder / "label").write_text(str(number))
                tar.add(folder / "label", f"{number}.cls")
    return folder


@pytest.fixture
def names(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names that a habit's code finds; it runs in a folder that holds the datasets of `place`."""
    for part in place.iterdir():
        (tmp_path / part.name).symlink_to(part)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {"lmdbloader": lmdbloader, "np": np, "torch": torch, "copy": copy, "pickle": pickle}
    for module in (torch.utils.data, lmdbloader.transforms):
        found |= {name: getattr(module, name) for name in module.__all__}
    found |= {name: getattr(lmdbloader, name) for name in ("LMDBDataset", "Loader", "dataloader")}
    found |= {"ds": LMDBDataset("train.lmdb"), "pairs": LMDBDataset("pairs.lmdb"), "Path": Path, "LABELS": LABELS}
    found["labels"] = lambda loader: [label for batch in loader for label in batch[1].tolist()]
    found["images"] = np.zeros((2, 8, 8, 3), np.uint8)
    yield found


def carry_out(code: str, names: dict[str, Any]) -> None:
    """Run Python code, or a command, which must succeed."""
    if code.startswith("lmdbloader "):
        assert main(shlex.split(code)[1:]) == 0
    else:
        exec(code, names)


SCALED = "ToDtype(torch.float32, scale=True)"
# A line of another library, and what is true after it.
SAME = [
    ("loader = DataLoader(ds, batch_size=4, shuffle=True)", "sorted(labels(loader)) == sorted(LABELS)"),
    ("loader = DataLoader(ds, batch_size=4, num_workers=2, persistent_workers=True)", "labels(loader) == LABELS"),
    ("loader = DataLoader(ds, 5, drop_last=True)", "len(loader) == len(Loader(ds, 5, drop_last=True)) == 2"),
    (
        "loader = DataLoader(ds, batch_sampler=BatchSampler(SequentialSampler(ds), 5, drop_last=False))",
        "[len(y) for _, y in loader] == [5, 5, 2] and labels(loader) == LABELS",
    ),
    (
        "loader = DataLoader(ds, 3, sampler=DistributedSampler(ds, 2, 1, shuffle=False))",
        "labels(loader) == LABELS[1::2]",
    ),
    ("loader = DataLoader(ds, batch_size=None)", "[sample.label for sample in loader] == LABELS"),
    ("loader = DataLoader(ds, 4, collate_fn=list)", "[s.label for batch in loader for s in batch] == LABELS"),
    ("a, b = random_split(ds, [9, 3])", "(len(a), len(b)) == (9, 3) and labels(Loader(b)) == [s.label for s in b]"),
    ("loader = DataLoader(Subset(ds, [7, 2, 5]), batch_size=3)", "labels(loader) == [1, 0, 0]"),
    ("both = ConcatDataset([ds, ds])", "len(both) == len(ds + ds) == 24 and both[13].label == LABELS[1]"),
    (
        "class Wrapped(Dataset):\n"
        "    def __len__(self):\n        return len(ds)\n"
        "    def __getitem__(self, index):\n        image, label = ds[index]\n        return image, label\n"
        "loader = DataLoader(Wrapped(), batch_size=4)",
        "labels(loader) == LABELS",
    ),
    (
        "loader = DataLoader(ds, 4, shuffle=True, generator=torch.Generator().manual_seed(0))\n"
        "numbers = DataLoader(range(12), 4, shuffle=True, generator=torch.Generator().manual_seed(0))",
        "labels(loader) == [LABELS[i] for some in numbers for i in some]",
    ),
    (
        "copied = pickle.loads(pickle.dumps(ds)); deep = copy.deepcopy(ds)",
        "[*copied.targets] == [*deep.targets] == LABELS",
    ),
    ("some, others, odd = ds[2:5], ds[[3, 1]], ds[np.arange(12) % 2 == 1]", "[*odd.targets] == LABELS[1::2]"),
    ("last, first = ds[-1], ds[torch.tensor(0)]", "(last.label, first.label) == (LABELS[-1], LABELS[0])"),
    ("loader = Loader('train.lmdb', batch_size=4)", "labels(loader) == LABELS"),
    ("loader = Loader(ds)", "loader.batch_size == DataLoader(ds).batch_size == 1"),
    ("loader = Loader(ds, batch_size=4, shuffle=False)", "loader.order == 'sequential'"),
    (
        "loader = Loader(ds, 4, shuffle=True)",
        "loader.order == 'random' and isinstance(loader, DataLoader) and loader.dataset is ds",
    ),
    (
        "loader = Loader(ds, 12, shuffle=True, seed=0); loader.sampler.set_epoch(5); first = next(iter(loader))",
        "loader.set_epoch(5) or torch.equal(next(iter(loader)).image, first.image)",
    ),
    (
        "torch.manual_seed(1); first = labels(Loader(ds, 4, shuffle=True))\n"
        "torch.manual_seed(1); again = labels(Loader(ds, 4, shuffle=True))",
        "first == again",
    ),
    ("loader = Loader(ds[:3] + ds[9:], 6, shuffle=False)", "labels(loader) == LABELS[:3] + LABELS[9:]"),
    (
        "ds.transform = lambda sample: (sample.image[:, :8, :8], sample.label)",
        "next(iter(Loader(ds, 4)))[0].shape == (4, 3, 8, 8) and ds[0][0].shape == (3, 8, 8)",
    ),
    ("classes, numbers, found = ds.classes, ds.class_to_idx, ds.targets", "[*found] == LABELS and not classes"),
    ("image, label = next(iter(Loader(ds, 4)))['image'], ds[0]['label']", "len(image) == 4 and label == LABELS[0]"),
    ("lmdbloader convert photos c.lmdb --layout classes", "LMDBDataset('c.lmdb').classes == ('cats', 'dogs')"),
    (
        f"steps = [RandomResizedCrop(16, scale=(0.5, 1)), RandomHorizontalFlip(), {SCALED}, Normalize([0.5] * 3, 0.2)]",
        "next(iter(Loader(ds, 4, shuffle=True, transforms=steps))).image.shape == (4, 3, 16, 16)",
    ),
    ("jitter = ColorJitter(0.4, 0.4, 0.4, 0.1)", "(jitter.brightness, jitter.hue) == (0.4, 0.1)"),
    (
        "image = ds.transformed([ToDtype(torch.float32)])[0].image",
        "torch.equal(image, ds[0].image.float())",  # without scale the values stay
    ),
    (
        "lmdbloader convert photos f.lmdb --write-mode proportion --compress-probability 0.5 --max-resolution 24",
        "LMDBDataset('f.lmdb')[0].image.shape == (3, 24, 24)",  # as in FFCV
    ),
    ("lmdbloader convert 'shards/x-{0..1}.tar' s.lmdb", "LMDBDataset('s.lmdb').targets == (0, 1, 2, 3)"),
    ("lmdbloader convert --hr hr --lr lr sr.lmdb --patch-size 16", "LMDBDataset('sr.lmdb')[0].lr.shape == (3, 8, 8)"),
    (
        f"steps = [RandomCrop(16), RandomDihedral(), {SCALED}]\n"
        "lq, gt = next(iter(Loader(pairs, 4, shuffle=True, transforms=steps)))",
        "torch.equal(torch.nn.functional.avg_pool2d(gt, 2), lq)",
    ),
    (
        "class Own(Dataset):\n    classes = ['cat', 'dog']\n    def __len__(self):\n        return 2\n"
        "    def __getitem__(self, index):\n        return images[index], index\nlmdbloader.write(Own(), 'own.lmdb')",
        "LMDBDataset('own.lmdb').classes == ('cat', 'dog')",
    ),
    (
        "jpeg = {'bytes': Path('photo.jpg').read_bytes(), 'path': None}\n"
        "lmdbloader.write([{'image': jpeg}], 'kept.lmdb', write_mode='original'); lmdbloader.extract('kept.lmdb', 'b')",
        "[f.read_bytes() for f in Path('b').glob('*.jpg')] == [Path('photo.jpg').read_bytes()]",
    ),
]


@pytest.mark.parametrize(("code", "then"), SAME, ids=[code for code, _ in SAME])
def test_a_line_of_another_library_means_the_same(code: str, then: str, names: dict[str, Any]) -> None:
    carry_out(code, names)
    assert eval(then, names)


# Lines that would run, and silently do something else, if they were not refused.
DIFFERENT = [
    "ds.samples = []",
    "ds.target_transform = lambda label: 0",
    "ds.transforms = []",
    "ds.targets[0] = 2",
    "mixed = lmdbloader.mix([ds, ds]); mixed.transform = print",
    "lmdbloader.mix({ds, LMDBDataset('train.lmdb')})",  # a set has no order
    "loader = Loader(ds, 4); loader.batch_size = 8",
    "Loader(ds.transformed([RandomCrop(8)], seed=5), 4, shuffle=True, seed=6)",
    "Loader(ds, batch_size=None)",
    "class Own(LMDBDataset):\n    def __getitem__(self, index):\n        return 3\nLoader(Own('train.lmdb'), 4)",
    "LMDBDataset('train.lmdb', fields='image')",
    "lmdbloader.write(DataLoader(ds, 4), 'batches.lmdb')",
    "lmdbloader.write([{'image': images[0], 'mask': images[0, :, :, 0]}], 'masks.lmdb')",
    "lmdbloader.write([{'image': images[0], 'boxes': [[1, 3, 4, 8]], 'labels': [7]}], 'boxes.lmdb')",
    "lmdbloader.convert('imagenet', 'data.lmdb')",
    "lmdbloader.convert(None, 'sr.lmdb', hr='lr', lr='hr')",
    "lmdbloader.convert('out.lmdb', 'photos')",
    f"next(iter(Loader(ds, 4, transforms=[{SCALED}, Normalize([123.7] * 3, [58.4] * 3)])))",
    "Loader(ds, 4, transforms=[Normalize(0.5, 0.5)])",
    "RandomErasing(1, value='random')",
    "RandomCrop(32, padding=4, padding_mode='reflect')",
    "Resize(24, max_size=48)",
]


@pytest.mark.parametrize("code", DIFFERENT)
def test_a_line_that_would_mean_something_else_is_refused(code: str, names: dict[str, Any]) -> None:
    with pytest.raises((LmdbloaderError, TypeError)):
        carry_out(code, names)


@pytest.mark.parametrize(
    "call",
    [
        lambda ds: Loader(ds, 4, bs=4),
        lambda ds: Loader(ds, 4, batchsize=4),
        lambda ds: Loader(ds, 4, True),  # type: ignore[misc]
        lambda ds: LMDBDataset(ds.path, download=True),
        lambda ds: lmdbloader.dataloader(ds, 4, seed=3),
        lambda ds: lmdbloader.convert("photos", "out", num_workers=2),  # type: ignore[call-arg]
        lambda ds: lmdbloader.write([], "out", features={}),  # type: ignore[call-arg]
        lambda ds: lmdbloader.transforms.RandomErasing(probability=1),  # type: ignore[call-arg]
    ],
)
def test_an_unknown_argument_is_pythons_own_error(place: Path, call: Any) -> None:
    with pytest.raises(TypeError):
        call(LMDBDataset(place / "train.lmdb"))


# Arguments of torch's DataLoader

NEUTRAL: dict[str, Any] = {
    "sampler": None, "batch_sampler": None, "num_workers": None, "collate_fn": None, "timeout": 0,
    "worker_init_fn": None, "multiprocessing_context": None, "generator": None, "prefetch_factor": None,
    "persistent_workers": True, "pin_memory_device": "", "in_order": True,
}  # fmt: skip
MEANT: dict[str, Any] = {
    "sampler": iter([1]), "num_workers": 2, "collate_fn": list, "timeout": 3,
    "worker_init_fn": print, "multiprocessing_context": "spawn", "generator": torch.Generator(), "prefetch_factor": 4,
    "pin_memory_device": "cuda", "in_order": False,
}  # fmt: skip


def test_every_argument_of_torchs_dataloader_is_ours_or_known() -> None:
    theirs, ours = (set(inspect.signature(kind).parameters) for kind in (DataLoader, Loader))
    assert theirs - ours == set(NEUTRAL) - {"batch_sampler"}


def test_what_changes_nothing_is_taken(place: Path) -> None:
    loader = Loader(place / "train.lmdb", 4, **NEUTRAL)
    assert [label for batch in loader for label in batch.label.tolist()] == LABELS


@pytest.mark.parametrize("name", MEANT)
def test_what_would_change_something_is_refused_by_name(place: Path, name: str) -> None:
    with pytest.raises(OptionError, match=rf"^Loader\({name}="):
        Loader(place / "train.lmdb", 4, **{name: MEANT[name]})


def test_all_that_is_refused_is_named_at_once(place: Path) -> None:
    with pytest.raises(OptionError) as refused:
        Loader(place / "train.lmdb", 4, **MEANT)
    assert [name for name in MEANT if f"Loader({name}=" not in str(refused.value)] == []


def test_a_sampler_that_is_a_list_is_an_order(place: Path) -> None:
    for numbers in ([3, 1], np.array([3, 1]), torch.tensor([3, 1])):
        loader = Loader(place / "train.lmdb", 4, sampler=numbers)
        assert [label for batch in loader for label in batch.label.tolist()] == [LABELS[3], LABELS[1]]
    with pytest.raises(OptionError, match="sampler"):
        Loader(place / "train.lmdb", 4, sampler=[1], order="random")


def test_a_sampler_by_weight_gives_the_weights(place: Path) -> None:
    weights = [float(label == 2) for label in LABELS]
    loader = Loader(place / "train.lmdb", 4, sampler=torch.utils.data.WeightedRandomSampler(weights, 8))
    assert [label for batch in loader for label in batch.label.tolist()] == [2] * 8


def test_swapped_folders_are_named(place: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="The source comes first"):
        lmdbloader.convert(tmp_path / "none", place / "photos")
