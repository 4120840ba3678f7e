"""What a peer must deliver: each sample once in an epoch, pairs that match, random flips and crops, another order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from job import MEAN, STD, Job, Samples, blue_of

# Of 255: JPEGs and resizing change colors a little.
_CLOSE = 6
# How many flips, and how many unflipped, are few enough to mean that flips are not drawn at random.
_FEW = 0.2
Batch = dict[str, np.ndarray]


def check(job: Job, samples: Samples, epochs: Sequence[Sequence[Batch]]) -> list[str]:
    """Return what is wrong with the batches of some epochs of make_marked_samples, in words."""
    found: list[str] = []
    orders, kept = [], []
    for number, batches in enumerate(epochs):
        if not batches:
            return [f"epoch {number} has no batches"]
        try:
            whole = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
        except (KeyError, ValueError) as error:
            return [f"epoch {number}: the batches differ in their fields or shapes: {error!r}"]
        wrong = _check_form(job, samples, whole)
        if wrong:
            return [f"epoch {number}: {what}" for what in wrong]
        orders.append(whole["index"].tolist())
        wrong, drawn = _check_pairs(samples, whole) if job.is_pairs else _check_crops(samples, whole)
        found += [f"epoch {number}: {what}" for what in wrong]
        kept.append(drawn)
    if not found:
        found = _check_draws(kept)
    if any(order == sorted(order) for order in orders):
        found.append("an epoch is in the order of the samples: nothing is shuffled")
    if any(a == b for a, b in itertools.pairwise(orders)):
        found.append("two epochs have the same order")
    return found


def _check_form(job: Job, samples: Samples, whole: Batch) -> list[str]:
    wrong = []
    names = {"index", *job.out} | (set() if job.is_pairs else {"label"})
    if names - set(whole):
        return [f"fields {sorted(whole)}, expected {sorted(names)}"]
    numbers = whole["index"].reshape(-1).tolist()
    if sorted(numbers) != samples["index"].tolist():
        missing, count = set(samples["index"].tolist()) - set(numbers), len(numbers)
        wrong.append(f"{count} samples of {len(samples['index'])}, {len(missing)} of them never, others repeated")
    for name, shape in job.out.items():
        if whole[name].shape[1:] != shape or whole[name].dtype != np.float32:
            wrong.append(f"{name} is {whole[name].dtype} {whole[name].shape[1:]}, expected float32 {shape}")
    if not wrong and not job.is_pairs and not np.array_equal(whole["label"].reshape(-1), samples["label"][numbers]):
        wrong.append("labels of other samples")
    return wrong


def _check_pairs(samples: Samples, whole: Batch) -> tuple[list[str], np.ndarray]:
    """Return what is wrong, and whether each sample was mirrored, in the order of the samples."""
    mirrored = np.zeros(len(whole["index"]), np.int8)
    for row, number in enumerate(whole["index"].reshape(-1).tolist()):
        turns = []
        for name in ("lr", "hr"):
            want = samples[name][number].transpose(2, 0, 1) / np.float32(255)
            turns.append(
                {
                    turn
                    for turn, step in ((0, 1), (1, -1))
                    if np.allclose(whole[name][row], want[..., ::step], atol=1e-4)
                }
            )
            if not turns[-1]:
                return [f"{name} of sample {number} is neither its pixels nor their mirror image"], mirrored
        both = turns[0] & turns[1]
        if not both:
            return [f"lr and hr of sample {number} are not mirrored together"], mirrored
        # A patch may be its own mirror image.
        mirrored[number] = min(both)
    return [], mirrored[:, None]


def _check_crops(samples: Samples, whole: Batch) -> tuple[list[str], np.ndarray]:
    """Return what is wrong, and of each sample whether it is mirrored and the colors at its edges."""
    count = len(samples["index"])
    numbers = whole["index"].reshape(-1)
    mean, std = (np.array(values, np.float32)[:, None, None] * 255 for values in (MEAN, STD))
    pixels = whole["image"] * std + mean
    blue = np.median(pixels[:, 2], axis=(1, 2))
    off = np.abs(blue - blue_of(numbers, count))
    drawn = np.zeros((count, 5))
    if off.max() > _CLOSE:
        worst = int(off.argmax())
        return [f"the image of sample {numbers[worst]} is not that of its number, or is not normalized"], drawn
    edges = [pixels[:, 0, :, :8].mean((1, 2)), pixels[:, 0, :, -8:].mean((1, 2))]
    edges += [pixels[:, 1, :8].mean((1, 2)), pixels[:, 1, -8:].mean((1, 2))]
    if (edges[2] > edges[3] + _CLOSE).any():
        return ["images are upside down"], drawn
    drawn[numbers] = np.stack([edges[0] > edges[1], *edges], 1)
    return [], drawn


def _check_draws(kept: Sequence[np.ndarray]) -> list[str]:
    found = []
    for number, drawn in enumerate(kept):
        share = drawn[:, 0].mean()
        if not _FEW < share < 1 - _FEW:
            found.append(f"epoch {number}: {share:.0%} of the samples are mirrored, expected about half")
    for before, after in itertools.pairwise(kept):
        if np.array_equal(before[:, 0], after[:, 0]):
            found.append("two epochs mirror the same samples")
        same = (np.abs(before[:, 1:] - after[:, 1:]) < 0.5).all(1)
        if before.shape[1] > 1 and same.mean() > _FEW:
            found.append(f"{same.mean():.0%} of the crops are the same in two epochs")
    return found
