"""RandAugment, TrivialAugmentWide, AutoAugment and AugMix: what they draw, and whom they suit."""

from __future__ import annotations

import collections
import enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from policy_replay import dirichlet, of_key

import lmdbloader
from lmdbloader import fields
from lmdbloader import transforms as T
from lmdbloader.errors import OptionError
from lmdbloader.kernels.transform import mixing, opcodes, policy
from lmdbloader.kernels.transform import policy_tables as tables


def chosen(transform: Any, sample: int, slot: int = 0, seed: int = 5, epoch: int = 2) -> tuple[str, float]:
    """Return the operation that a policy draws for a sample, and its magnitude."""
    numbers = np.zeros(opcodes.NUM_REAL)
    numbers[: len(transform.real_numbers)] = transform.real_numbers
    key = (np.uint64(n) for n in (seed, sample, epoch, slot))
    which, magnitude = policy.choose(numbers, slot, *key, 224, 224)
    return tables.NAMES[which], magnitude


@pytest.mark.parametrize("space", [tables.STANDARD, tables.WIDE, tables.MIXED])
def test_magnitudes_are_those_of_torch(space: int) -> None:
    bits = {tables.STANDARD: (8, 4), tables.WIDE: (8, 6), tables.MIXED: (4, 4)}[space]
    strength = 0.99 if space == tables.WIDE else 0.9
    shear, turn = (0.99, 135.0) if space == tables.WIDE else (0.3, 30.0)
    for bins in (2, 3, 10, 31, 100):
        levels = bits[0] - torch.arange(bins) / ((bins - 1) / bits[1])
        expected = {
            "ShearX": torch.linspace(0.0, shear, bins), "Rotate": torch.linspace(0.0, turn, bins),
            "Color": torch.linspace(0.0, strength, bins), "Solarize": torch.linspace(1.0, 0.0, bins),
            "Posterize": levels.round(), "Equalize": torch.zeros(bins), "Identity": torch.zeros(bins),
        }  # fmt: skip
        for side in (1, 32, 224, 331, 500, 1001) if bins in (10, 31) else ():
            share = 32.0 if space == tables.WIDE else side / 3.0 if space == tables.MIXED else 150.0 / 331.0 * side
            expected[f"TranslateX {side}"] = expected[f"TranslateY {side}"] = torch.linspace(0.0, share, bins)
        for name, values in expected.items():
            which, _, side = name.partition(" ")
            size = (int(side or 7), 9) if which == "TranslateY" else (9, int(side or 7))
            found = [policy.magnitude_of(space, tables.NAMES.index(which), k, bins, *size) for k in range(bins)]
            assert found == values.tolist(), name


def test_randaugment_and_trivialaugment_draw_every_operation_equally_often() -> None:
    count = 4000
    for transform in (T.RandAugment(), T.TrivialAugmentWide(7)):
        drawn = [chosen(transform, k) for k in range(count)]
        names = collections.Counter(name for name, _ in drawn)
        assert set(names) == set(tables.NAMES) - {"Invert"}
        assert max(abs(n - count / 14) for n in names.values()) < 4.5 * (count / 14) ** 0.5
        for name in tables.NAMES[tables.SHEAR_X : tables.POSTERIZE]:
            signs = [np.sign(m) for each, m in drawn if each == name]
            assert abs(sum(signs)) < 4.5 * len(signs) ** 0.5
    levels = collections.Counter(abs(m) for name, m in drawn if tables.SHEAR_X <= tables.NAMES.index(name) <= 5)
    assert len(levels) > 7  # of TrivialAugmentWide, all magnitudes
    assert {round(abs(m), 6) for name, m in drawn if name == "Rotate"} == {22.5 * k for k in range(7)}
    # The places of RandAugment draw on their own.
    pairs = collections.Counter((chosen(T.RandAugment(), k)[0], chosen(T.RandAugment(), k, 1)[0]) for k in range(count))
    assert len(pairs) == 14 * 14


@pytest.mark.parametrize("name", tables.POLICIES)
def test_autoaugment_draws_its_pairs_with_their_probabilities(name: str) -> None:
    count, transform = 4000, T.AutoAugment(name)
    pairs = [(chosen(transform, k), chosen(transform, k, 1)) for k in range(count)]
    for slot in range(2):
        expected: dict[str, float] = collections.defaultdict(float)
        for entry in tables.SUB_POLICIES[tables.POLICIES.index(name)]:
            share = entry[3 * slot + 1] / 250
            expected[tables.NAMES[entry[3 * slot]]] += share
            expected["Identity"] += 1 / 25 - share
        found = collections.Counter(pair[slot][0] for pair in pairs)
        assert {each for each, share in expected.items() if share > 1e-9} == set(found)
        for each, share in expected.items():
            assert abs(found[each] - count * share) < 4.5 * (count * share) ** 0.5 + 1e-6
    together = {(a, b) for (a, _), (b, _) in pairs if "Identity" not in (a, b)}
    assert together <= {
        (tables.NAMES[e[0]], tables.NAMES[e[3]]) for e in tables.SUB_POLICIES[tables.POLICIES.index(name)]
    }


def test_the_tables_are_torchvisions() -> None:
    # The sums of their columns, of torchvision's. Where it is installed, test_transforms_torchvision.py replays it.
    totals = [[240, 138, 89, 272, 172, 70], [217, 134, 90, 235, 131, 97], [163, 181, 85, 243, 148, 58]]
    assert tables.SUB_POLICIES.shape == (3, 25, 6)
    assert tables.SUB_POLICIES.sum(1).tolist() == totals


@pytest.mark.parametrize("alpha", [0.05, 0.5, 1.0, 7.5])
def test_the_shares_of_augmix_are_those_of_a_dirichlet_distribution(alpha: float) -> None:
    drawn, shares = np.zeros(opcodes.NUM_COLOR), np.zeros(5)
    drawn[opcodes.MIX_NUMBERS + opcodes.MIX_ALPHA] = alpha
    found = []
    for key in range(3000):
        drawn[opcodes.MIX_KEY] = key
        mixing.fill_shares(shares, 1, 3, drawn)
        assert shares[0] == shares[4] == 0 and abs(shares[1:4].sum() - 1) < 1e-12
        found.append(shares[1:4].copy())
    variance = (1 / 3) * (2 / 3) / (3 * alpha + 1)
    np.testing.assert_allclose(np.mean(found, 0), 1 / 3, atol=4.5 * (variance / 3000) ** 0.5)
    np.testing.assert_allclose(np.var(found, 0), variance, rtol=0.12)
    expected = dirichlet(alpha, partial(of_key, 2999, 0), 1, 3)[0]
    np.testing.assert_allclose(shares[1:4], expected, rtol=1e-6)


def test_masks_follow_moves_and_are_left_alone_by_colors(tmp_path: Path) -> None:
    labels = np.repeat(np.repeat(np.arange(36, dtype=np.uint8).reshape(6, 6), 8, 0), 8, 1)
    image = np.stack([labels * 7, 255 - labels * 5, labels], -1)
    declared = {"mask": fields.Mask(ignore_index=200)}
    lmdbloader.write([{"image": image, "mask": labels}] * 40, tmp_path / "d", fields=declared)
    dataset = lmdbloader.LMDBDataset(tmp_path / "d")
    names = collections.Counter()
    for transform in (T.RandAugment(1, 25), T.TrivialAugmentWide(), T.AutoAugment("svhn")):
        view = dataset.transformed([transform], seed=3)
        view.set_epoch(0)
        for k in range(40):
            drawn = chosen(transform, k, seed=3, epoch=0)[0]
            names[drawn] += 1
            mask = view[k].mask.numpy()
            if isinstance(transform, T.AutoAugment) or drawn == "Sharpness":
                continue
            is_moved = drawn in tables.NAMES[tables.SHEAR_X : tables.BRIGHTNESS]
            assert (mask == labels).all() != is_moved, drawn
            colors = view[k].image.numpy().reshape(3, -1).T
            for label in np.unique(mask):  # every place of a label has one color, and what came in is black
                assert len(np.unique(colors[mask.ravel() == label], axis=0)) == 1
            assert not colors[mask.ravel() == 200].any()
    assert len(names) == 15


def test_images_of_a_sample_change_in_step(tmp_path: Path) -> None:
    y, x = np.mgrid[:64, :96]
    hr = np.stack([2 * x + y // 4, 200 - x - y, 60 + y * 2], -1).astype(np.uint8)
    lr = hr.reshape(32, 2, 48, 2, 3).mean((1, 3)).round().astype(np.uint8)
    lmdbloader.write([{"lr": lr, "hr": hr}] * 30, tmp_path / "d")
    dataset = lmdbloader.LMDBDataset(tmp_path / "d")
    for transform in (T.RandAugment(2, 20, interpolation="bilinear"), T.AugMix(9)):
        view = dataset.transformed([transform], seed=1)
        view.set_epoch(0)
        off, moved = [], []
        for k in range(30):
            half = view[k].hr.reshape(3, 32, 2, 48, 2).float().mean((2, 4))
            off.append(float((half - view[k].lr).abs().mean()))
            moved.append(float((half - torch.from_numpy(lr).permute(2, 0, 1)).abs().mean()))
        assert np.median(off) < 1 and max(off) < 10 and np.median(moved) > 7


def test_a_policy_is_for_images_of_8_bits_before_conversions(tmp_path: Path) -> None:
    for number, image in enumerate(
        (np.zeros((8, 8, 3), np.uint16), np.zeros((8, 8, 3), np.float32), np.zeros((8, 8, 4), np.uint8))
    ):
        lmdbloader.write([{"image": image}] * 2, tmp_path / str(number), fields={"image": fields.Image()})
        dataset = lmdbloader.LMDBDataset(tmp_path / str(number))
        for transform in (T.RandAugment(), T.AugMix()):
            with pytest.raises(OptionError, match=r"expected uint8 with 1 or 3 channels"):
                dataset.transformed([transform])
    lmdbloader.write([{"image": np.zeros((8, 8, 3), np.uint8)}] * 2, tmp_path / "d")
    with pytest.raises(OptionError, match="AutoAugment after ToDtype"):
        lmdbloader.LMDBDataset(tmp_path / "d").transformed([T.ToDtype(torch.float32), T.AutoAugment()])


def test_augmix_refuses_what_cannot_be_mixed(tmp_path: Path) -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    for name, value, kind in (
        ("mask", image[..., 0], fields.Mask()),
        ("boxes", np.zeros((1, 4), np.float32), fields.Boxes()),
    ):
        lmdbloader.write([{"image": image, name: value}] * 2, tmp_path / name, fields={name: kind})
        with pytest.raises(OptionError, match=r"AugMix.*RandAugment"):
            lmdbloader.Loader(lmdbloader.LMDBDataset(tmp_path / name), 2, transforms=[T.AugMix()])
        dataset = lmdbloader.LMDBDataset(tmp_path / name, fields=["image"])
        assert next(iter(lmdbloader.Loader(dataset, 2, transforms=[T.AugMix()], shuffle=False))).image.shape == (
            2,
            3,
            8,
            8,
        )


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: T.RandAugment(magnitude=31), "num_magnitude_bins"),
        (lambda: T.RandAugment(-1), "num_ops"),
        (lambda: T.RandAugment(magnitude=9.0), "magnitude"),
        (lambda: T.TrivialAugmentWide(1), "num_magnitude_bins"),
        (lambda: T.TrivialAugmentWide(interpolation="bicubic"), "interpolation"),
        (lambda: T.TrivialAugmentWide(fill={"others": 3}), "fill"),
        (lambda: T.AutoAugment("cifar"), "cifar10"),
        (lambda: T.AugMix(11), "severity"),
        (lambda: T.AugMix(alpha=0), "alpha"),
        (lambda: T.AugMix(all_ops=1), "all_ops"),
    ],
)
def test_arguments_out_of_range_are_errors(make: Any, named: str) -> None:
    with pytest.raises(OptionError, match=named):
        make()


def test_torchvisions_names_of_policies_are_taken() -> None:
    class Policy(enum.Enum):
        SVHN = "svhn"

    assert T.AutoAugment(Policy.SVHN) == T.AutoAugment("svhn")
    assert repr(T.AugMix(fill=(1, 2, 3))).endswith("interpolation='bilinear', fill=(1, 2, 3))")
