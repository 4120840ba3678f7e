"""Habits: what users of other libraries write, and what happens here. `python tests/habits.py` writes the docs' table.

A habit is one entry below. `@same(...)` decorates a function that checks the meaning; the function's name states it.
`refused(...)` gives the line to write instead, which the error must contain, and what is true once it ran.
tests/test_habits.py runs every habit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "habits.md"
BEGIN, END = "<!-- habits: written by tests/habits.py -->\n", "<!-- end of habits -->\n"

Check = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Habit:
    """What users of another library write.

    Attributes:
        whose: The library, a heading of the page.
        code: Python that runs with the names of `tests/test_habits.py`, or a command that begins with `lmdbloader `.
        note: A sentence in the table after the outcome.
        check: Asserts the meaning, which its name states. Its parameters are variables of the code. None if the code is
            refused.
        instead: The line to write instead.
        then: An expression that is true after this line, and not before.
        says: The part of it that the error contains.
        needs: Packages without which it is skipped.
    """

    whose: str
    code: str
    note: str = ""
    check: Check | None = None
    instead: str = ""
    then: str = ""
    says: str = ""
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the test is called."""
        return f"{self.whose}: {self.code if self.check is None else self.meaning}"

    @property
    def meaning(self) -> str:
        """What the code means, in words."""
        return "" if self.check is None else self.check.__name__.replace("_", " ")


HABITS: list[Habit] = []


def same(whose: str, code: str, note: str = "", *, needs: tuple[str, ...] = ()) -> Callable[[Check], Check]:
    """Return a decorator for the check of a habit that means the same here."""

    def add(check: Check) -> Check:
        HABITS.append(Habit(whose, code, note, check, needs=needs))
        return check

    return add


def refused(
    whose: str, code: str, instead: str, then: str, note: str = "", *, says: str = "", needs: tuple[str, ...] = ()
) -> None:
    """Add a habit that is an error here. The error contains the line to write instead, or its part `says`."""
    HABITS.append(Habit(whose, code, note, None, instead, then, says or instead, needs))


# --- torch's DataLoader ---

TORCH = "PyTorch"


@same(TORCH, "loader = DataLoader(ds, batch_size=4, shuffle=True)")
def every_sample_comes_once_an_epoch_in_a_new_order(loader: Any, ds: Any) -> None:
    epochs = [[int(label) for _, labels in loader for label in labels] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(label for _, label in ds)
    assert epochs[0] != epochs[1]


@same(TORCH, "loader = DataLoader(ds, batch_size=4, num_workers=2, persistent_workers=True)")
def worker_processes_read_the_same_samples(loader: Any, ds: Any) -> None:
    import torch

    images, labels = (torch.cat(parts) for parts in zip(*loader, strict=True))
    assert labels.tolist() == [label for _, label in ds]
    assert all(torch.equal(image, sample.image) for image, sample in zip(images, ds, strict=True))


@same(TORCH, "loader = DataLoader(ds, batch_size=5, drop_last=True)\nours = Loader(ds, batch_size=5, drop_last=True)")
def a_short_last_batch_is_dropped(loader: Any, ours: Any) -> None:
    assert len(loader) == len(ours) == 2
    assert [len(labels) for _, labels in loader] == [len(labels) for _, labels in ours] == [5, 5]


@same(TORCH, "loader = DataLoader(ds, 4, sampler=WeightedRandomSampler([0, 1] * 6, 8))")
def samples_are_drawn_by_weight(loader: Any, ds: Any) -> None:
    odd = {ds[i].image.sum().item() for i in range(1, 12, 2)}
    assert [image.sum().item() in odd for images, _ in loader for image in images] == [True] * 8


@same(TORCH, "loader = Loader(ds, 4, sampler=WeightedRandomSampler([0, 1] * 6, 8))")
def a_loader_draws_samples_by_weight(loader: Any, ds: Any) -> None:
    odd = {ds[i].image.sum().item() for i in range(1, 12, 2)}
    assert [image.sum().item() in odd for images, _ in loader for image in images] == [True] * 8


@same(TORCH, "loader = DataLoader(ds, batch_sampler=BatchSampler(SequentialSampler(ds), 5, drop_last=False))")
def the_batch_sampler_chooses_the_batches(loader: Any, ds: Any) -> None:
    assert [labels.tolist() for _, labels in loader] == [
        [ds[i].label for i in range(12)][k : k + 5] for k in (0, 5, 10)
    ]


@same(TORCH, "loaders = [DataLoader(ds, 3, sampler=DistributedSampler(ds, 2, rank, shuffle=False)) for rank in (0, 1)]")
def each_rank_reads_its_share_of_the_samples(loaders: Any, ds: Any) -> None:
    found = [[int(label) for _, labels in loader for label in labels] for loader in loaders]
    assert found == [[ds[i].label for i in range(rank, 12, 2)] for rank in (0, 1)]


@same(TORCH, "loader = DataLoader(ds, batch_size=None)")
def samples_come_one_by_one(loader: Any, ds: Any) -> None:
    assert [sample.label for sample in loader] == [sample.label for sample in ds]


@same(TORCH, "loader = DataLoader(ds, 4, collate_fn=lambda samples: [label for _, label in samples])")
def your_collate_function_gets_a_list_of_samples(loader: Any, ds: Any) -> None:
    assert [*loader] == [[ds[i].label for i in range(k, k + 4)] for k in (0, 4, 8)]


@same(TORCH, "train, val = random_split(ds, [0.75, 0.25])")
def the_samples_are_divided_at_random(train: Any, val: Any, ds: Any) -> None:
    parts = [{image.sum().item() for image, _ in part} for part in (train, val)]
    assert [len(train), len(val)] == [9, 3] and not parts[0] & parts[1]
    assert parts[0] | parts[1] == {image.sum().item() for image, _ in ds}


@same(TORCH, "loader = DataLoader(Subset(ds, [7, 2, 5]), batch_size=3)")
def a_subset_is_read_in_its_order(loader: Any, ds: Any) -> None:
    import torch

    ((images, _),) = loader
    assert torch.equal(images, torch.stack([ds[i].image for i in (7, 2, 5)]))


@same(TORCH, "both = ConcatDataset([ds, ds]); added = ds + ds")
def datasets_are_joined(both: Any, added: Any, ds: Any) -> None:
    assert len(both) == len(added) == 24 and both[13].label == added[13].label == ds[1].label


@same(TORCH, "for epoch in range(2):\n    for images, labels in Loader(ds, batch_size=4):\n        pass")
def a_batch_unpacks_into_its_fields(images: Any, labels: Any) -> None:
    assert images.shape == (4, 3, 32, 32) and labels.shape == (4,)


@same(
    TORCH,
    "loader = Loader(ds, 4, shuffle=True)\nepochs = [torch.cat([labels for _, labels in loader]) for _ in range(2)]",
)
def each_epoch_has_its_own_order(epochs: Any, ds: Any) -> None:
    assert sorted(epochs[0].tolist()) == sorted(label for _, label in ds)
    assert epochs[0].tolist() != epochs[1].tolist()


@same(
    TORCH,
    "class Scaled(LMDBDataset):\n"
    "    def __getitem__(self, index):\n"
    "        image, label = super().__getitem__(index)\n"
    "        return image / 255, label + 10\n"
    'loader = DataLoader(Scaled("train.lmdb"), batch_size=4)',
    "A `Loader` refuses such a class; override `transform` instead.",
)
def a_subclass_may_override_getitem(loader: Any, ds: Any, Scaled: Any) -> None:
    import pytest
    import torch

    from lmdbloader import Loader
    from lmdbloader.errors import OptionError

    images, labels = next(iter(loader))
    assert torch.equal(images, torch.stack([ds[i].image / 255 for i in range(4)]))
    assert labels.tolist() == [ds[i].label + 10 for i in range(4)]
    with pytest.raises(OptionError, match="Override `transform`"):
        Loader(Scaled("train.lmdb"), 4)


@same(
    TORCH,
    "class Wrapped(Dataset):\n"
    "    def __init__(self, ds):\n"
    "        self.ds = ds\n"
    "    def __len__(self):\n"
    "        return len(self.ds)\n"
    "    def __getitem__(self, index):\n"
    "        image, label = self.ds[index]\n"
    "        return {'x': image, 'y': label}\n"
    "loader = DataLoader(Wrapped(ds), batch_size=4, num_workers=2)",
)
def another_dataset_may_wrap_this_one(loader: Any, ds: Any) -> None:
    assert [batch["y"].tolist() for batch in loader] == [[ds[i].label for i in range(k, k + 4)] for k in (0, 4, 8)]


@same(TORCH, "loader = DataLoader(ds, 4, shuffle=True, generator=torch.Generator().manual_seed(0))")
def the_seed_of_the_generator_determines_the_order(loader: Any, ds: Any) -> None:
    import torch

    seeded = torch.Generator().manual_seed(0)
    numbers = torch.utils.data.DataLoader(range(12), 4, shuffle=True, generator=seeded)
    assert torch.cat([images for images, _ in loader]).equal(
        torch.stack([ds[i].image for some in numbers for i in some])
    )


@same(TORCH, "copied = pickle.loads(pickle.dumps(ds)); deep = copy.deepcopy(ds)")
def a_copy_reads_the_same_samples(copied: Any, deep: Any, ds: Any) -> None:
    assert [x.label for x in copied] == [x.label for x in deep] == [x.label for x in ds]


@same(
    TORCH,
    "last = ds[-1]; first = ds[torch.tensor(0)]; some = ds[2:5]; others = ds[[3, 1]]; odd = ds[np.arange(12) % 2 == 1]",
)
def a_number_gives_a_sample_and_other_indices_a_view(
    last: Any, first: Any, some: Any, others: Any, odd: Any, ds: Any
) -> None:
    labels = [sample.label for sample in ds]
    assert (last.label, first.label) == (labels[-1], labels[0])
    assert [x.label for x in some] == labels[2:5]
    assert [x.label for x in others] == [labels[3], labels[1]]
    assert [x.label for x in odd] == labels[1::2]


refused(
    TORCH,
    'ds = LMDBDataset("train.lmdb", fields="image")',
    'ds = LMDBDataset("train.lmdb", fields=["image"])',
    "list(ds.fields) == ['image']",
    says="['image']",
)


@same(TORCH, "loader = DataLoader(ds.transformed([RandomCrop(8)]), batch_size=4, num_workers=1)")
def every_epoch_draws_new_random_choices(loader: Any) -> None:
    import torch

    first, second = (torch.cat([images for images, _ in loader]) for _ in range(2))
    assert sum(not torch.equal(a, b) for a, b in zip(first, second, strict=True)) > 6


@same(
    TORCH,
    "torch.manual_seed(3); first = next(iter(DataLoader(ds.transformed([RandomCrop(8)]), 4, shuffle=True)))\n"
    "torch.manual_seed(3); again = next(iter(DataLoader(ds.transformed([RandomCrop(8)]), 4, shuffle=True)))",
)
def the_seed_of_torch_determines_order_and_random_choices(first: Any, again: Any) -> None:
    import torch

    assert torch.equal(first.image, again.image)


@same(
    TORCH,
    "loader = Loader(ds, 4)\nloader.dataset.transform = lambda sample: (sample.image[:, :8, :8], sample.label)",
    "timm assigns it this way.",
)
def the_loader_calls_a_transform_that_is_assigned_later(loader: Any) -> None:
    images, _ = next(iter(loader))
    assert images.shape == (4, 3, 8, 8)


refused(
    TORCH,
    "def scale(batch):\n    batch.image.float().div_(255)\nbatch = next(iter(Loader(ds, 4, transforms=[scale])))",
    "def scale(batch):\n    return batch._replace(image=batch.image / 255)\n"
    "batch = next(iter(Loader(ds, 4, transforms=[scale])))",
    "batch.image.max() <= 1",
    "A function in `transforms` must return the batch.",
    says="End it with `return batch`",
)


@same(TORCH, "view = ds.transformed([RandomCrop(8)], seed=5)\nloader = Loader(view, 12, order='sequential')")
def a_loader_uses_the_seed_of_its_view(view: Any, loader: Any) -> None:
    import torch

    assert torch.equal(next(iter(loader)).image, torch.stack([image for image, _ in view]))


refused(
    TORCH,
    "loader = Loader(ds.transformed([RandomCrop(8)], seed=5), 4, shuffle=True, seed=6)",
    "loader = Loader(ds.transformed([RandomCrop(8)]), 4, shuffle=True, seed=6)",
    "(loader.order, loader.seed) == ('random', 6)",
    says="the dataset is a view with seed=5. Leave one of them out",
)


@same(TORCH, "torch.manual_seed(1); loader = Loader(ds, 12, shuffle=True)")
def the_seed_of_torch_determines_the_order(loader: Any, ds: Any) -> None:
    import torch

    from lmdbloader import Loader

    first = next(iter(loader)).image
    torch.manual_seed(1)
    assert torch.equal(first, next(iter(Loader(ds, 12, shuffle=True))).image)
    assert not torch.equal(first, next(iter(Loader(ds, 12, shuffle=True))).image)


@same(TORCH, "loader = Loader(ds, 4, drop_last=True)\nis_one = isinstance(loader, DataLoader)")
def a_loader_is_a_DataLoader_and_has_its_attributes(loader: Any, is_one: Any, ds: Any) -> None:
    assert is_one and loader.dataset is ds
    assert (loader.batch_size, loader.drop_last, loader.num_workers, loader.pin_memory) == (4, True, 0, False)


@same(
    TORCH,
    "loader = Loader(ds, 12, shuffle=True, seed=0); loader.sampler.set_epoch(5); images, labels = next(iter(loader))",
)
def setting_the_epoch_of_the_sampler_sets_that_of_the_loader(images: Any, loader: Any) -> None:
    import torch

    loader.set_epoch(5)
    assert torch.equal(next(iter(loader)).image, images)


@same(TORCH, "loader = DataLoader(ds, batch_size=4, collate_fn=lmdbloader.collate)")
def batches_have_the_form_that_the_loader_gives_them(loader: Any, ds: Any) -> None:
    batch = next(iter(loader))
    assert batch.image.shape == (4, 3, 32, 32) and batch.label.tolist() == [ds[i].label for i in range(4)]


refused(
    TORCH, "loader = Loader(ds, 4); loader.batch_size = 8", "loader = Loader(ds, 8)", 'loader.batch_size == 8',
    says="Make another one: Loader(dataset, batch_size, ...)",
)  # fmt: skip
refused(
    TORCH, "loader = Loader(ds, 4); loader.seed = 8", "loader = Loader(ds, 4, seed=8)", 'loader.seed == 8',
    says="it cannot change after the Loader is made",
)  # fmt: skip


# --- torchvision ---

TORCHVISION = "torchvision"


@same(TORCHVISION, "lmdbloader convert photos classes.lmdb --layout classes", "`ImageFolder` does the same.")
def class_folders_are_numbered_in_the_order_of_their_names() -> None:
    import lmdbloader

    ds = lmdbloader.LMDBDataset("classes.lmdb")
    assert ds.classes == ("cats", "dogs")
    assert [label for _, label in ds] == [0, 0, 0, 1, 1, 1]


refused(
    TORCHVISION,
    "lmdbloader convert imagenet data.lmdb",
    "lmdbloader convert imagenet data.lmdb --split",
    "len(LMDBDataset('data.lmdb/train.lmdb')) == len(LMDBDataset('data.lmdb/val.lmdb')) == 6",
    "The folders `train` and `val` in `imagenet` are splits, not classes.",
    says="OUT --split",
)


@same(TORCHVISION, 'ds = LMDBDataset("train.lmdb", transform=lambda sample: (sample.image / 255, sample.label))')
def the_transform_is_called_with_each_sample(ds: Any) -> None:
    image, label = ds[3]
    assert float(image.max()) <= 1 and label in (0, 1, 2)


@same(TORCHVISION, "ds.transform = lambda sample: (sample.image.float(), sample.label)\nimage, label = ds[0]")
def a_transform_that_is_assigned_later_is_called_with_each_sample(image: Any, label: Any) -> None:
    import torch

    assert image.dtype == torch.float32


@same(
    TORCHVISION,
    "steps = [RandomResizedCrop(16, scale=(0.5, 1)), RandomHorizontalFlip(), ToDtype(torch.float32, scale=True),\n"
    "         Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]\n"
    "images, labels = next(iter(Loader(ds, 4, shuffle=True, transforms=steps)))",
)
def the_usual_transforms_for_training_are_compiled(images: Any, labels: Any) -> None:
    import torch

    assert images.shape == (4, 3, 16, 16) and images.dtype == torch.float32
    assert -3 < float(images.min()) < 0 < float(images.max()) < 3


@same(
    TORCHVISION,
    "steps = [Resize(24), CenterCrop(16), ToDtype(torch.float32, scale=True)]\n"
    "view = ds.transformed(steps)\nimages, labels = next(iter(DataLoader(view, batch_size=4)))",
)
def the_usual_transforms_for_evaluation_are_compiled(images: Any, view: Any) -> None:
    import torch

    assert images.shape == (4, 3, 16, 16) and float(images.min()) >= 0 and float(images.max()) <= 1
    assert torch.equal(images[0], view[0].image)


@same(TORCHVISION, "jitter = ColorJitter(0.4, 0.4, 0.4, 0.1)")
def the_fourth_argument_is_the_hue(jitter: Any) -> None:
    assert (jitter.brightness, jitter.hue, jitter.p) == (0.4, 0.1, 1.0)


@same(TORCHVISION, "image = ds.transformed([ToDtype(torch.float32)])[0].image")
def without_scale_the_values_stay_the_same(image: Any, ds: Any) -> None:
    import torch

    assert torch.equal(image, ds[0].image.float())


refused(
    TORCHVISION,
    "steps = [ToDtype(torch.float32, scale=True), Normalize([123.675, 116.28, 103.53], [58.395, 57.12, 57.375])]\n"
    "batch = next(iter(Loader(ds, 4, transforms=steps)))",
    "steps = [ToDtype(torch.float32, scale=True), Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]\n"
    "batch = next(iter(Loader(ds, 4, transforms=steps)))",
    "-3 < batch.image.min() < 0 < batch.image.max() < 3",
    says="Write Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))",
)
refused(
    TORCHVISION,
    "batch = next(iter(Loader(ds, 4, transforms=[Normalize(0.5, 0.5)])))",
    "batch = next(iter(Loader(ds, 4, transforms=[ToDtype(torch.float32, scale=True), Normalize(0.5, 0.5)])))",
    "-1 <= batch.image.min() < 0 < batch.image.max() <= 1",
    says="Put ToDtype(torch.float32, scale=True) before it",
)
refused(
    TORCHVISION,
    "batch = next(iter(Loader(ds, 12, shuffle=True, transforms=[RandomErasing(1, value='random')])))",
    "batch = next(iter(Loader(ds, 12, shuffle=True, transforms=[RandomErasing(1, value=0)])))",
    "(batch.image == 0).all(1).flatten(1).any(1).all()",
    says="Write value=0",
)
refused(
    TORCHVISION,
    "view = ds.transformed([RandomCrop(32, padding=4, padding_mode='reflect')])",
    "view = ds.transformed([RandomCrop(32, padding=4)])",
    "view[0].image.shape == (3, 32, 32) and any(not torch.equal(a.image, b.image) for a, b in zip(view, ds))",
    says="expected padding_mode='constant'",
)
refused(
    TORCHVISION,
    "view = ds.transformed([Resize(24, max_size=48)])",
    "view = ds.transformed([Resize((24, 48))])",
    "view[0].image.shape == (3, 24, 48)",
    says="Resize((height, width))",
)
refused(
    TORCHVISION,
    "from lmdbloader.transforms import Compose",
    "loader = Loader(ds, 4, shuffle=True, transforms=[RandomCrop(8), RandomHorizontalFlip()])",
    "next(iter(loader)).image.shape == (4, 3, 8, 8)",
    says="Write a list of transforms, as in Loader(..., transforms=[",
)
refused(
    TORCHVISION,
    "from lmdbloader.transforms import ToTensor",
    "view = ds.transformed([ToDtype(torch.float32, scale=True)])",
    "torch.allclose(view[0].image, ds[0].image / 255)",
    says="Write ToDtype(torch.float32, scale=True)",
)
refused(
    TORCHVISION,
    "lmdbloader.write([{'image': images[0], 'mask': images[0, :, :, 0]}], 'masks.lmdb')",
    "lmdbloader.write([{'image': images[0], 'mask': images[0, :, :, 0]}], 'masks.lmdb', "
    "fields={'mask': lmdbloader.fields.Mask()})",
    "LMDBDataset('masks.lmdb').fields['mask'].name == 'mask'",
    "Then no transform interpolates the mask or changes its labels.",
    says='fields={"mask": fields.Mask()}',
)
refused(
    TORCHVISION,
    "lmdbloader.write([{'image': images[0], 'boxes': [[1, 3, 4, 8]], 'labels': [7]}], 'boxes.lmdb')",
    "lmdbloader.write([{'image': images[0], 'boxes': [[1, 3, 4, 8]], 'labels': [7]}], 'boxes.lmdb', "
    "fields={'boxes': lmdbloader.fields.Boxes(), 'labels': lmdbloader.fields.Labels()})",
    "LMDBDataset('boxes.lmdb').transformed([RandomHorizontalFlip(1)])[0].boxes.tolist() == [[4, 3, 7, 8]]",
    "Boxes move with their image.",
    says='fields={"boxes": fields.Boxes(), "labels": fields.Labels()}',
)
refused(
    TORCHVISION,
    "samples = [(images[0], {'boxes': [[1, 3, 4, 8]], 'labels': [7]})]; lmdbloader.write(samples, 'targets.lmdb')",
    "samples = [(images[0], {'boxes': [[1, 3, 4, 8]], 'labels': [7]})]; "
    "lmdbloader.write(({'image': image, **target} for image, target in samples), 'targets.lmdb', "
    "fields={'boxes': lmdbloader.fields.Boxes(), 'labels': lmdbloader.fields.Labels()})",
    "LMDBDataset('targets.lmdb').transformed([RandomHorizontalFlip(1)])[0].boxes.tolist() == [[4, 3, 7, 8]]",
    says="lmdbloader.write(({'image': image, **target} for image, target in samples), out",
)


# --- Hugging Face datasets ---

HF = "Hugging Face datasets"


@same(HF, "some = ds.select([0, 2, 4])")
def select_takes_sample_numbers(some: Any, ds: Any) -> None:
    assert [x.label for x in some] == [ds[i].label for i in (0, 2, 4)]


@same(HF, "lmdbloader.write(({'image': im, 'label': y} for im, y in zip(images, [1, 0])), 'made.lmdb')")
def each_dict_is_a_sample() -> None:
    import lmdbloader

    ds = lmdbloader.LMDBDataset("made.lmdb")
    assert [label for _, label in ds] == [1, 0]


@same(HF, "batch = next(iter(Loader(ds, 4, as_={'pixel_values': 'image', 'labels': 'label'})))")
def batches_have_the_names_that_the_model_expects(batch: Any) -> None:
    assert {name: len(value) for name, value in batch.items()} == {"pixel_values": 4, "labels": 4}


@same(HF, "sample = LMDBDataset('train.lmdb', as_='dict')[0]")
def a_sample_is_a_dict(sample: Any, ds: Any) -> None:
    assert type(sample) is dict and sample["label"] == ds[0].label


# --- FFCV ---

FFCV = "FFCV"


@same(
    FFCV,
    "lmdbloader convert photos ffcv.lmdb --write-mode proportion --compress-probability 0.5 --max-resolution 24"
    " --jpeg-quality 90",
)
def the_options_mean_what_they_mean_in_FFCV() -> None:
    import lmdbloader

    ds = lmdbloader.LMDBDataset("ffcv.lmdb")
    assert {tuple(sample.image.shape) for sample in ds} == {(3, 24, 24)}


refused(
    FFCV,
    "from lmdbloader.transforms import NormalizeImage",
    "mean, std = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]\n"
    "steps = [ToDtype(torch.float16, scale=True), Normalize([m / 255 for m in mean], [s / 255 for s in std])]",
    "-3 < next(iter(Loader(ds, 4, transforms=steps))).image.min() < 0",
    says="Write ToDtype(torch.float16, scale=True), Normalize([m / 255 for m in mean], [s / 255 for s in std])",
)
refused(
    FFCV,
    "from lmdbloader.transforms import RandomBrightness",
    "steps = [ColorJitter(0.4, p=0.5)]",
    "0 < sum(torch.equal(a.image, b.image) for a, b in zip(ds.transformed(steps, seed=0), ds)) < 12",
    says="Write ColorJitter(magnitude, p=p)",
)

# --- WebDataset ---

WEBDATASET = "WebDataset"


@same(WEBDATASET, "lmdbloader convert 'shards/x-{0..1}.tar' shards.lmdb")
def braces_expand_to_the_shards_in_order() -> None:
    import lmdbloader

    ds = lmdbloader.LMDBDataset("shards.lmdb")
    assert [sample.label for sample in ds] == [0, 1, 2, 3] and ds[0].image.shape == (3, 32, 32)


# --- BasicSR ---

BASICSR = "BasicSR"


@same(BASICSR, "lmdbloader convert --hr hr --lr lr sr.lmdb --patch-size 16 --stride 16")
def pairs_are_matched_by_name() -> None:
    import lmdbloader

    ds = lmdbloader.LMDBDataset("sr.lmdb")
    assert {(sample.lr.shape[-1], sample.hr.shape[-1]) for sample in ds} == {(8, 16)}


@same(
    BASICSR,
    "steps = [RandomCrop(16), RandomDihedral(), ToDtype(torch.float32, scale=True)]\n"
    "loader = Loader(pairs, 4, shuffle=True, transforms=steps)\n"
    "lq, gt = next(iter(loader))",
    "These are `gt_size`, `use_hflip` and `use_rot`.",
)
def both_images_of_a_pair_are_cropped_and_turned_together(lq: Any, gt: Any) -> None:
    import torch

    assert lq.shape == (4, 3, 8, 8) and gt.shape == (4, 3, 16, 16)
    assert torch.equal(torch.nn.functional.avg_pool2d(gt, 2), lq), "the low-resolution images of this dataset are means"


@same(BASICSR, "lq, gt = pairs[0]\nimages = {'lq': pairs[0].lr, 'gt': pairs[0].hr}")
def the_LR_image_comes_first_and_the_HR_image_second(lq: Any, gt: Any) -> None:
    assert 2 * lq.shape[-1] == gt.shape[-1]


refused(
    BASICSR,
    "lmdbloader convert --hr lr --lr hr sr.lmdb",
    "lmdbloader convert --hr hr --lr lr sr.lmdb",
    "[image.shape for image in LMDBDataset('sr.lmdb')[0]] == [(3, 16, 16), (3, 32, 32)]",
    "The two folders are swapped.",
    says="Write --hr hr --lr lr",
)


@same(BASICSR, "batch = next(iter(Loader(pairs, 4, as_={'lq': 'lr', 'gt': 'hr'})))")
def batches_are_dicts_with_lq_and_gt(batch: Any) -> None:
    assert batch["lq"].shape == (4, 3, 16, 16) and batch["gt"].shape == (4, 3, 32, 32)


refused(
    TORCH,
    "loader = dataloader(ds, 4, pin_memroy=True)",
    "loader = dataloader(ds, 4, pin_memory=True)",
    "loader.pin_memory",
    says="Did you mean pin_memory=True?",
)
refused(
    TORCHVISION,
    'ds = LMDBDataset("train.lmdb", target_transform=lambda label: label + 1)',
    'ds = LMDBDataset("train.lmdb", transform=lambda sample: sample._replace(label=sample.label + 1))',
    "ds[0].label == 3",
    says="transform=lambda sample: sample._replace(label=function(sample.label))",
)
refused(
    TORCHVISION,
    'train = LMDBDataset("splits", train=True)',
    'train = LMDBDataset("splits/train.lmdb")',
    "len(train) == 12",
    says='Write LMDBDataset("OUT/train.lmdb")',
)
refused(
    HF,
    'ds = ds.map(lambda row: {**row, "label": row["label"] + 1})',
    'ds = LMDBDataset("train.lmdb", transform=lambda sample: sample._replace(label=sample.label + 1))',
    "ds[0].label == 3",
    says="write LMDBDataset(path, transform=function)",
)
refused(HF, "some = ds.take(3)", "some = ds[:3]", "some.targets == [2, 0, 0]", says="write dataset[:n]")
refused(
    HF, "some = ds.shard(4, 0)", "some = ds[0::4]", "some.targets == [2, 1, 0]", says="write dataset[index::num_shards]"
)
refused(
    HF,
    "train = LMDBDataset('hf://datasets/train.lmdb')",
    "train = LMDBDataset('train.lmdb')",
    "len(train) == 12",
    "After you have copied it from there.",
    says="write 'train.lmdb'",
)
refused(
    FFCV,
    "loader = Loader(ds, 4, indices=[3, 0])",
    "loader = Loader(ds.select([3, 0]), 4)",
    "torch.cat([labels for _, labels in loader]).tolist() == [1, 2]",
    says="write Loader(dataset.select(indices), ...)",
)

# --- timm and albumentations ---

TIMM = "timm and albumentations"


@same(TIMM, "mixed = next(iter(Loader(ds, 4, transforms=[MixUp(0.8, num_classes=3)])))")
def uint8_images_are_mixed_and_labels_become_probabilities(mixed: Any) -> None:
    import torch

    assert mixed.image.dtype == torch.uint8 and mixed.label.shape == (4, 3)
    assert torch.allclose(mixed.label.sum(1), torch.ones(4))


refused(
    TIMM,
    "from lmdbloader.transforms import Mixup",
    "steps = [LabelSmoothing(0.1, num_classes=3), MixUp(0.8, num_classes=3)]",
    "(next(iter(Loader(ds, 4, transforms=steps))).label > 0).all()",
    says="Write MixUp(alpha, num_classes) or CutMix(alpha, num_classes), after LabelSmoothing(smoothing, num_classes)",
)
refused(
    TIMM,
    "from lmdbloader.transforms import HorizontalFlip",
    "steps = [RandomHorizontalFlip(p=0.5)]",
    "0 < sum(torch.equal(a.image, b.image) for a, b in zip(ds.transformed(steps, seed=0), ds)) < 12",
    says="Write RandomHorizontalFlip(p)",
)

# --- The command line ---

COMMANDS = "The command line"


@same(COMMANDS, "lmdbloader convert photos out.lmdb --write_mode jpg --max-pixels 1e6")
def underscores_and_powers_of_ten_are_understood() -> None:
    import lmdbloader

    assert lmdbloader.info("out.lmdb").fields[0].codecs == {"jpeg": 6}


refused(
    COMMANDS,
    "lmdbloader convert photos out.lmdb --num-workers 2",
    "lmdbloader convert photos out.lmdb --workers 2",
    "len(LMDBDataset('out.lmdb')) == 6",
    says="did you mean --workers?",
)
refused(
    COMMANDS,
    "lmdbloader convert photos out.lmdb --write-mode jpeg",
    "lmdbloader convert photos out.lmdb --write-mode jpg",
    "lmdbloader.info('out.lmdb').fields[0].codecs == {'jpeg': 6}",
    says="Did you mean jpg?",
)
refused(
    COMMANDS,
    "lmdbloader convert photos out.lmdb --write-mode jpg --quality 50",
    "lmdbloader convert photos out.lmdb --write-mode jpg --jpeg-quality 50",
    "LMDBDataset('out.lmdb').reader.manifest.made_by['options']['storage']['jpeg_quality'] == 50",
    says="did you mean --jpeg-quality?",
)
refused(
    COMMANDS,
    "lmdbloader convrt photos out.lmdb",
    "lmdbloader convert photos out.lmdb",
    "len(LMDBDataset('out.lmdb')) == 6",
    says="did you mean `lmdbloader convert`?",
)
refused(
    COMMANDS,
    "lmdbloader convert out.lmdb photos",
    "lmdbloader convert photos out.lmdb",
    "len(LMDBDataset('out.lmdb')) == 6",
    says="The source comes first. Write: lmdbloader convert photos out.lmdb",
)

# --- arguments, attributes and paths: `lmdbloader.base.foreign_names`, `lmdbloader.format.others` ---


@same(TORCH, "loader = Loader(ds, 4)\nfound = [torch.cat([labels for _, labels in loader]) for _ in range(2)]")
def samples_come_in_stored_order_in_every_epoch(found: Any, ds: Any) -> None:
    assert [labels.tolist() for labels in found] == [ds.targets] * 2


@same(TORCH, "loader = Loader(ds, batch_size=4, shuffle=False)", 'This is `order="sequential"`.')
def without_shuffle_the_samples_come_in_stored_order(loader: Any, ds: Any) -> None:
    assert [label for _, labels in loader for label in labels.tolist()] == ds.targets


@same(
    TORCH,
    "loader = Loader(ds, 4, shuffle=True, sampler=None, pin_memory=True, drop_last=True)",
    'This is `order="random"`.',
)
def with_shuffle_every_epoch_has_its_own_order(loader: Any, ds: Any) -> None:
    epochs = [[label for _, labels in loader for label in labels.tolist()] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(ds.targets) and epochs[0] != epochs[1]


@same(TORCH, "loader = Loader(ds, 4, persistent_workers=True, timeout=0, collate_fn=None, generator=None)")
def arguments_that_change_nothing_here_are_accepted(loader: Any, ds: Any) -> None:
    assert [label for _, labels in loader for label in labels.tolist()] == ds.targets


@same(TORCH, "loader = Loader(ds)")
def a_batch_has_one_sample_by_default(loader: Any) -> None:
    assert [len(labels) for _, labels in loader] == [1] * 12


@same(
    TORCH,
    "train, val = random_split(ds, [0.75, 0.25])\n"
    "loaders = [Loader(part, 3, shuffle=False) for part in (train, val, Subset(val, [2, 0]))]",
)
def a_loader_reads_subsets(loaders: Any, train: Any, val: Any, ds: Any) -> None:
    expected = [list(train.indices), list(val.indices), [val.indices[2], val.indices[0]]]
    for loader, numbers in zip(loaders, expected, strict=True):
        assert [label for _, labels in loader for label in labels.tolist()] == [ds[i].label for i in numbers]


@same(TORCH, "loader = Loader(ds[:3] + ds[9:], 6, shuffle=False)", "All views must be of one dataset.")
def a_loader_reads_views_joined_with_a_plus(loader: Any, ds: Any) -> None:
    ((_, labels),) = loader
    assert labels.tolist() == ds.targets[:3] + ds.targets[9:]


@same(TORCH, 'loader = Loader("train.lmdb", batch_size=4)')
def a_loader_opens_a_path(loader: Any, ds: Any) -> None:
    assert [label for _, labels in loader for label in labels.tolist()] == ds.targets


def renamed(whose: str, code: str, theirs: str, ours: str, then: str, note: str = "") -> None:
    """Add a habit of which the error says how one part is written here."""
    assert theirs in code
    refused(whose, code, code.replace(theirs, ours), then, note, says=ours)


renamed(
    TORCH,
    "loader = Loader(ds, 4, num_workers=2)",
    "num_workers=2",
    "num_threads=2",
    "loader.num_threads == min(2, num_cores)",
    "By default there is one thread for each core.",
)
renamed(TORCH, "loader = Loader(ds, 4, True)", "True", "shuffle=True", "loader.order == 'random'")
renamed(TORCH, "loader = Loader(ds, batchsize=4)", "batchsize=4", "batch_size=4", "loader.batch_size == 4")
renamed(TORCH, "loader = Loader(ds, 4, prefetch_factor=4)", "prefetch_factor=4", "prefetch=4", "loader.prefetch == 4")
renamed(
    TORCH, "loader = Loader(ds, 4, shuffle=True, generator=torch.Generator().manual_seed(7))",
    "generator=torch.Generator().manual_seed(7)", "seed=7", 'loader.seed == 7',
)  # fmt: skip
renamed(TORCH, "loader = Loader(ds, 4, worker_init_fn=print)", "worker_init_fn=print", "seed=0", "loader.seed == 0")
renamed(
    TORCH, "loader = Loader(ds, 4, sampler=DistributedSampler(ds, 2, 0))", "sampler=DistributedSampler(ds, 2, 0)",
    'shuffle=True, shard="auto"', "loader.order == 'random' and 'auto' in repr(loader)",
    "As the sampler does; `shuffle=False` if it has that.",
)  # fmt: skip
refused(
    TORCH,
    "loader = Loader(ds, 4, sampler=SubsetRandomSampler([5, 3]))",
    "loader = Loader(ds[[5, 3]], 4, shuffle=True)",
    "sum(len(labels) for _, labels in loader) == 2 and loader.order == 'random'",
    says="Loader(dataset.select(indices), ..., shuffle=True)",
)
refused(
    TORCH,
    "loader = Loader(ds, 4, collate_fn=list)",
    "loader = dataloader(ds, 4, collate_fn=list, num_workers=0)",
    "type(next(iter(loader))) is list",
    says="lmdbloader.dataloader(dataset, batch_size, collate_fn=...)",
)
refused(
    TORCH,
    "loader = Loader(ds, batch_size=None)",
    "loader = dataloader(ds, batch_size=None, num_workers=0)",
    "[sample.label for sample in loader] == ds.targets",
    says="lmdbloader.dataloader(dataset, batch_size=None)",
)
refused(
    TORCH,
    "loader = Loader(ConcatDataset([ds, pairs]), 4)",
    "loader = dataloader(ConcatDataset([ds, pairs]), 4, num_workers=0)",
    "sum(len(batch[0]) for batch in loader) == 24",
    "Its datasets have different fields.",
    says="lmdbloader.dataloader(dataset, batch_size)",
)
refused(
    TORCH,
    "loader = Loader(TensorDataset(torch.zeros(4, 8, 8), torch.arange(4)), 2)",
    "lmdbloader.write(TensorDataset(torch.zeros(4, 8, 8), torch.arange(4)), 'made.lmdb', fields=('image', 'label'))",
    "[label for _, label in LMDBDataset('made.lmdb')] == [0, 1, 2, 3]",
    says='lmdbloader.write(dataset, "train.lmdb", fields=("image", "label"))',
)
renamed(
    TORCH,
    "loader = dataloader(ds, 4, shuffle=True, seed=3)",
    "seed=3",
    "generator=torch.Generator().manual_seed(3)",
    "loader.generator.initial_seed() == 3",
)
refused(
    TORCH,
    "train, val = ds.split([9, 3])",
    "train, val = random_split(ds, [9, 3])",
    "(len(train), len(val)) == (9, 3)",
    says="torch.utils.data.random_split(dataset, lengths)",
)
renamed(TORCH, 'train = LMDBDataset("trian.lmdb")', '"trian.lmdb"', "'train.lmdb'", "len(train) == 12")
refused(
    TORCH,
    "batch = next(iter(Loader(ds, 4))).cuda()",
    "batch = next(iter(Loader(ds, 4, device='cuda')))",
    "batch.image.device.type == ('cuda' if torch.cuda.is_available() else 'cpu')",
    says='Loader(dataset, batch_size, device="cuda")',
)


refused(
    TORCHVISION,
    "ds.targets[0] = 2; loader = Loader(ds, 12)",
    "labels = torch.tensor([2, *ds.targets[1:]]); renamed = lmdbloader.transforms.WithIndices(lambda batch, i: "
    "batch._replace(label=labels[i])); loader = Loader(ds, 12, transforms=[renamed])",
    "next(iter(loader)).label.tolist() == [2, *ds.targets[1:]]",
    says="labels[i]",
)


@same(TORCHVISION, "classes, numbers, labels = ds.classes, ds.class_to_idx, ds.targets")
def the_attributes_of_an_ImageFolder_exist(classes: Any, numbers: Any, labels: Any, ds: Any) -> None:
    assert len(classes) == len(numbers) == 0  # of a dataset without names
    assert labels == [sample.label for sample in ds]


def instead_of(whose: str, code: str, line: str, then: str, says: str = "") -> None:
    """Add a habit of a dataset, which messages call `dataset`, with the line to write."""
    refused(whose, code, line, then, says=says or line.partition(" = ")[2].replace("ds.", "dataset."))


renamed(TORCHVISION, 'train = LMDBDataset(root="train.lmdb")', 'root="train.lmdb"', "'train.lmdb'", "len(train) == 12")
refused(
    TORCHVISION,
    'LMDBDataset("photos")',
    "lmdbloader convert photos photos.lmdb",
    "len(LMDBDataset('photos.lmdb')) == 6",
)
instead_of(TORCHVISION, "place = ds.root", "place = ds.path", "place.endswith('train.lmdb')")
instead_of(TORCHVISION, "labels = ds.labels", "labels = ds.targets", "labels == [sample.label for sample in ds]")
instead_of(
    TORCHVISION,
    "images = ds.data",
    "images = torch.stack([sample.image for sample in ds])",
    "images.shape == (12, 3, 32, 32)",
    "torch.stack([sample.image for sample in dataset])",
)
refused(
    TORCHVISION,
    "loader = Loader(ds, 4, shuffle=True, transforms=RandomDihedral())",
    "loader = Loader(ds, 4, shuffle=True, transforms=[RandomDihedral()])",
    "list(loader.transforms) == [RandomDihedral()]",
    says="transforms=[RandomDihedral()]",
)


@same(HF, 'images, label = next(iter(Loader(ds, 4)))["image"], ds[0]["label"]')
def a_field_can_be_read_by_its_name(images: Any, label: Any, ds: Any) -> None:
    assert images.shape == (4, 3, 32, 32) and label == ds[0].label


@same(HF, 'some = ds.where("label in (0, 2) and image.height >= 32")', "It compares columns of `ds.table`.")
def a_condition_selects_samples(some: Any, ds: Any) -> None:
    assert some.targets == [label for label in ds.targets if label in (0, 2)]


instead_of(
    HF,
    'some = ds.filter(lambda row: row["label"] == 2)',
    'some = ds.where("label == 2")',
    "some.targets == [2, 2, 2, 2]",
    'dataset.where("label == 3")',
)
instead_of(
    HF,
    'some = ds.where(lambda row: row["label"] == 2)',
    'some = ds.select([row["label"] == 2 for row in ds.table.to_pylist()])',
    "some.targets == [2, 2, 2, 2]",
    'ds.select([row["label"] == 3 for row in ds.table.to_pylist()])',
)
instead_of(HF, 'labels = ds["label"]', "labels = ds.table['label'].to_pylist()", "labels == ds.targets")
instead_of(
    HF,
    'images = ds["image"]',
    "images = [sample.image for sample in ds]",
    "len(images) == 12 and torch.equal(images[3], ds[3].image)",
    "[sample.image for sample in dataset]",
)
refused(
    HF,
    "parts = ds.train_test_split(test_size=0.2)",
    "train, test = ds.split([0.8, 0.2], seed=0)",
    "len(train) + len(test) == 12 and 0 < len(test) < len(train)",
    says="train, test = dataset.split([0.8, 0.2], seed=0)",
)
refused(
    HF,
    "loader = DataLoader(ds.shuffle(seed=0), 4)",
    "loader = Loader(ds, 4, shuffle=True, seed=0)",
    "loader.order == 'random'",
    says="Loader(dataset, batch_size, shuffle=True, seed=0)",
)
instead_of(HF, "kinds = ds.features", "kinds = ds.fields", "list(kinds) == ['image', 'label']")
instead_of(
    HF, "names = ds.column_names", "names = list(ds.fields)", "names == ['image', 'label']", "list(dataset.fields)"
)
instead_of(HF, "count = ds.num_rows", "count = len(ds)", "count == 12", "len(dataset)")
instead_of(HF, "rows = ds.to_list()", "rows = ds.table.to_pylist()", "[row['label'] for row in rows] == ds.targets")
renamed(
    HF,
    'ds = LMDBDataset("train.lmdb", columns=["image"])',
    'columns=["image"]',
    "fields=['image']",
    "list(ds.fields) == ['image']",
)
refused(
    HF,
    'train = lmdbloader.load_dataset("train.lmdb")',
    'train = lmdbloader.LMDBDataset("train.lmdb")',
    "len(train) == 12",
    says="lmdbloader.LMDBDataset(path)",
)


@same(
    FFCV,
    "class OrderOption(enum.Enum):  # FFCV's\n    RANDOM = 2\n"
    "loader = Loader(ds, 4, order=OrderOption.RANDOM, os_cache=True)",
    "So are `QUASI_RANDOM` and `SEQUENTIAL`.",
)
def the_members_of_OrderOption_are_accepted_as_orders(loader: Any) -> None:
    assert loader.order == "random"


@same(FFCV, "loader = Loader(ds, batch_size=4)", "FFCV's default is `OrderOption.SEQUENTIAL`.")
def the_default_order_is_that_of_the_dataset(loader: Any, ds: Any) -> None:
    assert loader.order == "sequential"
    assert [label for _, labels in loader for label in labels.tolist()] == ds.targets


renamed(
    FFCV,
    "loader = Loader(ds, batch_size=4, num_workers=2)",
    "num_workers=2",
    "num_threads=2",
    "loader.num_threads == min(2, num_cores)",
)
renamed(FFCV, "loader = Loader(ds, 4, batches_ahead=3)", "batches_ahead=3", "prefetch=3", "loader.prefetch == 3")
renamed(
    FFCV,
    "loader = Loader(ds, 4, os_cache=False)",
    "os_cache=False",
    'order="quasi_random"',
    "loader.order == 'quasi_random'",
)
renamed(FFCV, "loader = Loader(ds, 4, distributed=True)", "distributed=True", 'shard="auto"', "'auto' in repr(loader)")
renamed(
    FFCV,
    "mean, std = [0.5] * 3, [0.5] * 3\n"
    'loader = Loader(ds, 4, order="random", pipelines={"image": [...], "label": [...]})',
    'pipelines={"image": [...], "label": [...]}',
    "transforms=[RandomResizedCrop(224), RandomHorizontalFlip(), ToDtype(torch.float16, scale=True), "
    "Normalize(mean, std)]",
    "next(iter(loader)).image.dtype == torch.float16",
)
renamed(
    FFCV,
    'lmdbloader.convert("photos", "out", num_workers=2)',
    "num_workers=2",
    "workers=2",
    "len(LMDBDataset('out')) == 6",
)

refused(
    WEBDATASET,
    'ds = LMDBDataset("shards/x-0.tar")',
    "lmdbloader convert shards/x-0.tar x-0.lmdb",
    "len(LMDBDataset('x-0.lmdb')) == 2",
)
refused(
    WEBDATASET,
    'ds = LMDBDataset("shards")',
    "lmdbloader convert shards shards.lmdb",
    "len(LMDBDataset('shards.lmdb')) == 4",
)
renamed(
    WEBDATASET,
    "loader = Loader(damaged, 4, handler=print)",
    "handler=print",
    'on_corrupt="skip"',
    "sum(len(labels) for _, labels in loader) == 11",
)
refused(
    WEBDATASET,
    'ds = LMDBDataset("train.lmdb", shardshuffle=100)',
    'loader = Loader(ds, 4, order="quasi_random")',
    "loader.order == 'quasi_random'",
    says='Loader(dataset, batch_size, order="quasi_random")',
)

renamed(
    BASICSR,
    "loader = Loader(pairs, batch_size_per_gpu=4)",
    "batch_size_per_gpu=4",
    "batch_size=4",
    "loader.batch_size == 4",
)
renamed(
    BASICSR,
    "loader = Loader(pairs, 4, num_worker_per_gpu=2)",
    "num_worker_per_gpu=2",
    "num_threads=2",
    "loader.num_threads == min(2, num_cores)",
)
renamed(
    BASICSR, 'lmdbloader.convert("hr", "out", n_thread=2)', "n_thread=2", "workers=2", "len(LMDBDataset('out')) == 6"
)
renamed(
    BASICSR,
    'lmdbloader.convert("hr", "out", crop_size=16)',
    "crop_size=16",
    "patch_size=16",
    "LMDBDataset('out')[0].image.shape == (3, 16, 16)",
)

OTHERS = "fastai, Keras, TensorFlow, DALI, MosaicML"

renamed(
    TIMM,
    "loader = Loader(ds, 4, use_prefetcher=True)",
    "use_prefetcher=True",
    'device="cuda"',
    "loader.device.type == ('cuda' if torch.cuda.is_available() else 'cpu')",
)
renamed(OTHERS, "loader = Loader(ds, bs=4)", "bs=4", "batch_size=4", "loader.batch_size == 4", "From fastai.")
renamed(
    OTHERS,
    "loader = Loader(ds, 4, workers=2)",
    "workers=2",
    "num_threads=2",
    "loader.num_threads == min(2, num_cores)",
    "From Keras.",
)
renamed(
    OTHERS,
    "loader = Loader(ds, 4, drop_remainder=True)",
    "drop_remainder=True",
    "drop_last=True",
    "loader.drop_last",
    "From TensorFlow.",
)
renamed(
    OTHERS,
    "loader = Loader(ds, 4, random_shuffle=True)",
    "random_shuffle=True",
    "shuffle=True",
    "loader.order == 'random'",
    "From DALI.",
)
renamed(
    OTHERS,
    "loader = Loader(ds, 4, shuffle_seed=3)",
    "shuffle_seed=3",
    "seed=3",
    "loader.seed == 3",
    "From MosaicML Streaming.",
)

# --- datasets of others, written ---


@same(
    TORCHVISION,
    "from torchvision.datasets import ImageFolder\nlmdbloader.write(ImageFolder('photos'), 'folder.lmdb')",
    "The fields are `image` and `label`, and the names of the classes are kept.",
    needs=("torchvision",),
)
def an_ImageFolder_can_be_written() -> None:
    import lmdbloader

    ds = lmdbloader.LMDBDataset("folder.lmdb")
    assert ds.classes == ("cats", "dogs") and [label for _, label in ds] == [0, 0, 0, 1, 1, 1]


@same(
    TORCHVISION,
    "class Own(Dataset):\n    classes = ['cat', 'dog']\n    def __len__(self):\n        return 2\n"
    "    def __getitem__(self, index):\n        return images[index], index\nlmdbloader.write(Own(), 'own.lmdb')",
)
def a_dataset_class_of_your_own_keeps_its_classes() -> None:
    import lmdbloader

    ds = lmdbloader.LMDBDataset("own.lmdb")
    assert ds.classes == ("cat", "dog") and [label for _, label in ds] == [0, 1]


refused(
    TORCHVISION,
    "lmdbloader.write('photos', 'written.lmdb')",
    "lmdbloader.convert('photos', 'written.lmdb')",
    "LMDBDataset('written.lmdb').classes == ('cats', 'dogs')",
    says="lmdbloader.convert('photos', out)",
)
refused(
    TORCH,
    "loader = DataLoader(ds, 4)\nlmdbloader.write(loader, 'batches.lmdb')",
    "lmdbloader.write(loader.dataset, 'batches.lmdb')",
    "len(LMDBDataset('batches.lmdb')) == 12",
    says="lmdbloader.write(loader.dataset, out)",
)


@same(
    HF,
    "from pathlib import Path\njpeg = {'bytes': Path('photo.jpg').read_bytes(), 'path': None}\n"
    "lmdbloader.write([{'image': jpeg}], 'kept.lmdb', write_mode='original')\nlmdbloader.extract('kept.lmdb', 'back')",
    "Hugging Face's `Image(decode=False)` gives such values.",
)
def encoded_images_are_kept_byte_for_byte() -> None:
    (file,) = Path("back").glob("*.jpg")
    assert file.read_bytes() == Path("photo.jpg").read_bytes()


@same(
    HF,
    "import datasets\nhf = datasets.load_dataset('imagefolder', data_dir='photos', split='train', cache_dir='hf')\n"
    "lmdbloader.write(hf.with_format('torch'), 'hf.lmdb')",
    needs=("datasets",),
)
def a_dataset_in_any_format_keeps_its_columns_and_classes() -> None:
    import lmdbloader

    ds = lmdbloader.LMDBDataset("hf.lmdb")
    assert ds.classes == ("cats", "dogs") and list(ds.fields) == ["image", "label"]


refused(
    HF,
    "import datasets\nhf = datasets.load_dataset('imagefolder', data_dir='photos', cache_dir='hf')\n"
    "lmdbloader.write(hf, 'hf.lmdb')",
    "lmdbloader.write(hf['train'], 'hf.lmdb')",
    "LMDBDataset('hf.lmdb').classes == ('cats', 'dogs')",
    says="lmdbloader.write(samples['train'], out)",
    needs=("datasets",),
)


@same(BASICSR, "lmdbloader convert --hr hr --lr lr cropped.lmdb --crop-to-scale", "BasicSR calls this `mod_crop`.")
def HR_images_are_cropped_to_a_multiple_of_the_scale() -> None:
    import lmdbloader

    assert lmdbloader.LMDBDataset("cropped.lmdb")[0].hr.shape == (3, 32, 32)


refused(
    BASICSR,
    "lmdbloader convert hr patches.lmdb --crop_size 16 --step 8 --n_thread 2",
    "lmdbloader convert hr patches.lmdb --patch-size 16 --stride 8 --workers 2",
    "len(LMDBDataset('patches.lmdb')) == 6 * 9",
)
refused(
    COMMANDS,
    "lmdbloader convert hr out.lmdb --patchsize 16",
    "lmdbloader convert hr out.lmdb --patch-size 16",
    "LMDBDataset('out.lmdb')[0].image.shape == (3, 16, 16)",
)


@same(COMMANDS, "lmdbloader convert photos out.lmdb --workers 0 --subset 0.004k --seed 1_000")
def numbers_may_be_written_in_all_these_ways() -> None:
    import lmdbloader

    assert len(lmdbloader.LMDBDataset("out.lmdb")) == 4


def table(habits: list[Habit]) -> str:
    """Return the tables of the page, one for each library."""
    parts = []
    for whose in dict.fromkeys(habit.whose for habit in habits):
        parts.append(f"## {whose}\n\n| you write | what happens |\n| --- | --- |\n")
        parts += [f"| {_code(habit.code)} | {_outcome(habit)} |\n" for habit in habits if habit.whose == whose]
        parts.append("\n")
    return "".join(parts)


def _outcome(habit: Habit) -> str:
    said = f"Works: {habit.meaning}." if habit.check is not None else f"An error. Write: {_code(habit.instead)}."
    return f"{said} {habit.note}".rstrip()


def _code(text: str) -> str:
    """Return lines of code for a cell of a table."""
    lines = (line.replace("|", "\\|") for line in text.splitlines())
    return "<br>".join(f"{'&nbsp;' * (len(line) - len(line.lstrip()))}`{line.lstrip()}`" for line in lines)


def with_table(text: str) -> str:
    """Return the text of the page with the tables as they should be."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(HABITS)}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
    sys.exit()
