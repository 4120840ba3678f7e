"""A user's project: type checkers in strict mode find no fault in it (tests/test_typing.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import lmdbloader
from lmdbloader import LMDBDataset, Loader, errors, fields, lab, superres
from lmdbloader.transforms import (
    CenterCrop,
    MixUp,
    Normalize,
    RandomApply,
    RandomCrop,
    RandomDihedral,
    RandomResizedCrop,
    ToDtype,
    Transform,
)


def make(photos: Path, out: Path) -> int:
    """Convert with options of several types, and check what was made."""
    expected = lmdbloader.estimate(src=photos, patch_size=96, stride=96, scale=2)
    report = lmdbloader.convert(photos, out, patch_size=96, stride=96, scale=[2, 3], write_mode="raw", workers=0)
    lmdbloader.convert(None, out=out, hr="hr", lr="lr", layout="pairs")
    lmdbloader.convert(src="photos", out="train.lmdb")
    if not lmdbloader.verify(out).is_sound:
        lmdbloader.repair(out, out.with_suffix(".repaired"))
    lmdbloader.merge([out, out], out.with_suffix(".merged"))
    samples = ({"image": np.zeros((8, 8, 13), np.uint16), "patient": "a"} for _ in range(3))
    lmdbloader.write(samples, out, fields={"image": fields.Image(), "patient": fields.Text()})
    return report.num_samples + round(expected.num_samples.value)


def loaders(path: Path) -> tuple[Loader, Loader]:
    """Make two loaders of a dataset."""
    dataset = LMDBDataset(path)
    train, val = dataset.split([0.8, 0.2], seed=0)
    augment: list[Transform] = [RandomCrop(96), RandomApply([RandomDihedral()], p=0.5), RandomResizedCrop(64)]
    values: list[Transform] = [ToDtype(torch.float32, scale=True), Normalize((0.5,) * 3, (0.5,) * 3)]
    return (
        Loader(train, batch_size=16, shuffle=True, seed=0, transforms=[*augment, *values], device="cpu"),
        Loader(val, batch_size=16, transforms=[CenterCrop(64), *values]),
    )


def step(model: torch.nn.Module, lr: Tensor, hr: Tensor) -> Tensor:
    """Return the loss of a batch."""
    return torch.nn.functional.l1_loss(model(lr), hr)


def train(model: torch.nn.Module, path: Path) -> dict[str, float]:
    """Train an epoch, resume it, and score the model."""
    train_loader, val_loader = loaders(path)
    optimizer = torch.optim.Adam(model.parameters())
    try:
        for lr, hr in train_loader:
            loss = step(model, lr, hr)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch declares no types here
            optimizer.step()  # pyright: ignore[reportUnknownMemberType]  # nor here
    except errors.CorruptError as error:
        raise SystemExit(str(error)) from error
    train_loader.load_state_dict(train_loader.state_dict())

    def run(pair: tuple[Tensor, Tensor]) -> Tensor:
        return step(model, *pair)

    profile = lab.profile(val_loader, run, steps=10)
    scores = superres.score(lambda image: superres.bicubic(image, 2), LMDBDataset(path), scale=2)
    mixed = MixUp(num_classes=10)
    return {"stall": profile.stall, "psnr": scores.psnr, "batches": float(len(train_loader)), "mixed": len(str(mixed))}
