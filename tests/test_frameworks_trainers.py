"""BasicSR, neosr and traiNNer-redux train from their sources on our dataset types, with the sections of their page.

`make test-frameworks` runs this with the sources in `.trainers`; elsewhere the tests are skipped. The programs need
CUDA: `trainer_program.py` carries it out on the CPU. Only Python 3.12 runs neosr.
"""

from __future__ import annotations

import importlib.util
import json
import math
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trainer_program
import yaml

import lmdbloader
from lmdbloader.kernels import entries
from lmdbloader.kernels.degrade import steps
from lmdbloader.superres.degradations import FAMILIES, BlurKernels

tomllib = pytest.importorskip("tomllib")
for needed in ("cv2", "msgspec"):  # of the programs
    pytest.importorskip(needed)
ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = {"BasicSR": "basicsr", "neosr": "neosr", "traiNNer-redux": "traiNNer"}
KINDS = ("pairs", "ground truth")
# 14 draws in an epoch: 3 batches, of which the programs drop the rest.
COUNT, REPEAT, BATCH, STEPS = 7, 2, 4, 6
SIZES = range(7, 22, 2)
SCALE, LQ_SIZE = 2, 16


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder, rng = tmp_path_factory.mktemp("trainers"), np.random.default_rng(0)

    def image(size: int) -> Any:
        return rng.integers(0, 256, (size, size, 3), np.uint8)

    lmdbloader.write(({"lr": image(40), "hr": image(40 * SCALE)} for _ in range(COUNT)), folder / "pairs.lmdb")
    lmdbloader.write(({"image": image(520)} for _ in range(COUNT)), folder / "hr.lmdb")
    return {"pairs": str(folder / "pairs.lmdb"), "ground truth": str(folder / "hr.lmdb")}


def section(program: str, kind: str) -> dict[str, Any]:
    """Return the section of the page, with smaller numbers."""
    page = (ROOT / "docs" / "how-to" / "sr-trainers.md").read_text("utf-8")
    block = re.search(rf'```(yaml|toml) title="{program}, {kind}"\n(.*?)```', page, re.DOTALL)
    assert block is not None
    found: dict[str, Any] = (yaml.safe_load if block[1] == "yaml" else tomllib.loads)(block[2])
    sizes = {"gt_size": LQ_SIZE * SCALE, "patch_size": LQ_SIZE, "lq_size": LQ_SIZE}
    smaller = {"batch_size": BATCH, "batch_size_per_gpu": BATCH, "num_worker_per_gpu": 1, **sizes}
    train = found["datasets"]["train"]
    train.update({name: value for name, value in smaller.items() if name in train})
    return found


def configuration(program: str, kind: str, dataset: str, resume: Path | None) -> dict[str, Any]:
    """Return the whole configuration: the section, a tiny network, and two epochs."""
    found = section(program, kind)
    found["datasets"]["train"] |= {"dataroot_gt": dataset, "dataset_enlarge_ratio": REPEAT, "pin_memory": False}
    logger = {"print_freq": 1, "save_checkpoint_freq": 1, "use_tb_logger": False}
    path = {} if resume is None else {"resume_state": str(resume)}
    train: dict[str, Any] = {"optim_g": {"type": "adamw" if program == "neosr" else "AdamW", "lr": 1e-4}}
    found |= {"name": "tiny", "scale": SCALE, "num_gpu": 1, "manual_seed": 3, "path": path, "logger": logger}
    pixel = {"pixel_opt": {"type": "L1Loss", "loss_weight": 1.0}}
    val = {"name": "V", "type": "LmdbloaderDataset", "dataroot_gt": dataset}
    validated = {"val": {"val_freq": 4, "save_img": False}}
    if program != "traiNNer-redux" and kind == "pairs":
        found |= validated
        found["datasets"]["val"] = val
    if program == "BasicSR":
        model = "SRModel" if kind == "pairs" else "RealESRNetModel"
        train |= {**pixel, "total_iter": STEPS, "scheduler": {"type": "MultiStepLR", "milestones": [100]}}
        network = {"type": "SRVGGNetCompact", "num_feat": 4, "num_conv": 1, "upscale": SCALE}
        return {**found, **of_real_esrgan(), "num_gpu": 0, "model_type": model, "network_g": network, "train": train}
    network = {"type": "compact", "num_feat": 4, "num_conv": 1}
    if program == "neosr":
        template = tomllib.loads((ROOT / ".trainers" / program / "options" / "train_span_otf.toml").read_text("utf-8"))
        found |= {"degradations": template["degradations"]} if kind != "pairs" else {}
        logger["total_iter"] = STEPS
        model = "image" if kind == "pairs" else "otf"
        return {**found, "model_type": model, "network_g": network, "train": train | pixel}
    train |= {"total_iter": STEPS, "losses": [{"type": "l1loss", "loss_weight": 1.0}]}
    train["scheduler"] = {"type": "MultiStepLR", "milestones": [100]}
    others = {"high_order_degradation": True, "blur_prob": 1.0, "blur_prob2": 1.0} if kind != "pairs" else {}
    return {**found, **others, "use_channels_last": False, "network_g": network, "train": train}


def of_real_esrgan() -> dict[str, Any]:
    """Return what RealESRNetModel reads."""
    return {
        "gt_usm": True, "resize_prob": [0.2, 0.7, 0.1], "resize_range": [0.15, 1.5], "gaussian_noise_prob": 0.5,
        "noise_range": [1, 30], "poisson_scale_range": [0.05, 3], "gray_noise_prob": 0.4, "jpeg_range": [30, 95],
        "second_blur_prob": 0.8, "resize_prob2": [0.3, 0.4, 0.3], "resize_range2": [0.3, 1.2],
        "gaussian_noise_prob2": 0.5, "noise_range2": [1, 25], "poisson_scale_range2": [0.05, 2.5],
        "gray_noise_prob2": 0.4, "jpeg_range2": [30, 95], "gt_size": LQ_SIZE * SCALE, "queue_size": 4 * BATCH,
    }  # fmt: skip


def toml(table: dict[str, Any], name: str = "") -> str:
    """Return a table as TOML."""
    own = [f"{key} = {json.dumps(value)}\n" for key, value in table.items() if not isinstance(value, dict)]
    inner = [toml(value, f"{name}.{key}".strip(".")) for key, value in table.items() if isinstance(value, dict)]
    return "".join([f"[{name}]\n" if name else "", *own, *inner])


def fed(program: str, kind: str, dataset: str, root: Path, resume: Path | None = None) -> list[list[Any]]:
    """Train for two epochs, or from a saved state to their end, and return the batches that the model was fed."""
    sources, options = ROOT / ".trainers" / program, configuration(program, kind, dataset, resume)
    file = root / ("options.toml" if program == "neosr" else "options.yml")
    file.write_text(toml(options) if program == "neosr" else yaml.safe_dump(options))
    command = [sys.executable, str(ROOT / "tests" / "trainer_program.py"), str(sources), PROGRAMS[program], str(root)]
    child = subprocess.run([*command, str(root / "fed.json"), "-opt", str(file)], capture_output=True, text=True)
    assert child.returncode == 0, child.stdout[-3000:] + child.stderr[-3000:]
    batches: list[list[Any]] = json.loads((root / "fed.json").read_text())
    return batches


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_trainer_trains_two_epochs_and_continues_in_the_middle(
    program: str, kind: str, datasets: dict[str, str], tmp_path: Path
) -> None:
    if not (ROOT / ".trainers" / program).exists():
        pytest.skip(f"needs the sources of {program}; make test-frameworks fetches them")
    if program == "neosr" and sys.version_info[:2] != (3, 12):
        pytest.skip("neosr runs with Python 3.12 only")
    full = fed(program, kind, datasets[kind], tmp_path)
    assert len(full) == STEPS
    names = {"lq", "gt"} if kind == "pairs" else {"gt", "kernel1", "kernel2", "sinc_kernel"}
    for epoch in (full[:3], full[3:]):
        assert max(Counter(path for paths, _ in epoch for path in paths).values()) <= REPEAT
        assert {*epoch[0][1]} == names
    assert len({digests["gt"] for _, digests in full}) == STEPS
    (states,) = tmp_path.rglob("training_states")
    # In the middle of the second epoch; and at the end of the first, which the programs save as its last step.
    for step in (4, 3) if kind == "pairs" else (4,):
        assert fed(program, kind, datasets[kind], tmp_path, states / f"{step}.state") == full[step:], step


def degradations_of_basicsr(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load the file that both stages of Real-ESRGAN's dataset take their kernels from."""
    trainer_program.supply_modules(monkeypatch.setitem)
    file = ROOT / ".trainers" / "BasicSR" / "basicsr" / "data" / "degradations.py"
    if not file.exists():
        pytest.skip("needs the sources of BasicSR; make test-frameworks fetches them")
    spec = importlib.util.spec_from_file_location("degradations", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_blur_kernels_are_those_of_basicsr(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, rng = degradations_of_basicsr(monkeypatch), np.random.default_rng(0)
    for _ in range(300):
        size, angle, beta = int(rng.choice(SIZES)), float(rng.uniform(-math.pi, math.pi)), float(rng.uniform(0.5, 4))
        first, second = (float(value) for value in rng.uniform(0.2, 3, 2))
        cutoff = float(rng.uniform(math.pi / 5, math.pi))
        pairs = {  # by the number of the shape
            0: theirs.bivariate_Gaussian(size, first, second, angle, None, False),
            1: theirs.bivariate_generalized_Gaussian(size, first, second, angle, beta, None, False),
            2: theirs.bivariate_plateau(size, first, second, angle, beta, None, False),
            3: theirs.circular_lowpass_kernel(cutoff, size),
        }
        for shape, expected in pairs.items():
            weights, numbers = np.empty(steps.KERNEL_ROOM, np.float32), (first, second, angle, beta if shape else 1.0)
            entries.make_blur_kernel(shape, size, *((cutoff, cutoff, 0.0, 1.0) if shape == 3 else numbers), weights)
            length = -(-size // steps.TAPS) * steps.TAPS
            found = weights[: size * length].reshape(size, length)[:, :size]
            assert np.abs(found - expected).max() < 1e-6, shape


def test_blur_kernels_are_distributed_as_those_of_basicsr(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, stats, count = degradations_of_basicsr(monkeypatch), pytest.importorskip("scipy.stats"), 10_000
    shares, ranges = [0.45, 0.25, 0.12, 0.03, 0.12, 0.03], ((0.2, 3), (0.5, 4), (1, 2))
    options = {"kernel_list": FAMILIES, "kernel_prob": shares, "sinc_prob": 0.1, "blur_sigma": ranges[0]}
    options |= {"betag_range": ranges[1], "betap_range": ranges[2]}
    kernels = BlurKernels(
        "test", {f"{k}{n}": v for n in ("", "2") for k, v in options.items()} | {"final_sinc_prob": 1}
    )
    random.seed(1)
    uniform = np.random.RandomState(1).uniform
    monkeypatch.setattr(np.random, "uniform", uniform)

    def their_kernel() -> Any:
        # As Real-ESRGAN's dataset (a4abfb2, realesrgan/data/realesrgan_dataset.py:117-139).
        size = random.choice(SIZES)
        if uniform() < 0.1:
            cutoff = uniform(np.pi / 3 if size < 13 else np.pi / 5, np.pi)
            found = theirs.circular_lowpass_kernel(cutoff, size, pad_to=False)
        else:
            sigma, betag, betap = ranges
            turns = [-math.pi, math.pi]
            found = theirs.random_mixed_kernels(FAMILIES, shares, size, sigma, sigma, turns, betag, betap)
        return np.pad(found, (21 - size) // 2)

    y, x = np.mgrid[-10:11, -10:11]
    measures = {"center": (x == 0) & (y == 0), "width": x * x, "height": y * y, "tilt": x * y, "row": y == 0}
    ours = np.stack([kernels.draw(1, 0, draw)[0] for draw in range(count)])
    their = np.stack([their_kernel() for _ in range(count)])
    for name, weights in measures.items():
        # The tilt of an isotropic kernel is 0, or what the rounding of its weights leaves of it: up to 1e-5.
        found = [(kernels * weights).sum((1, 2)).round(3) for kernels in (ours, their)]
        assert stats.ks_2samp(*found).pvalue > 0.01 / len(measures), name
