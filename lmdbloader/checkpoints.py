"""Writes and reads the file from which an interrupted training run continues."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from lmdbloader.errors import CorruptError, FormatError

__all__ = ["load_checkpoint", "save_checkpoint"]

CHECKPOINT_VERSION = 1


def save_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    epoch: int,
    settings: dict[str, Any],
    scaler: torch.amp.GradScaler | None = None,
) -> None:
    """Write what a run needs to continue; the file is replaced only once the new one is complete.

    Args:
        path: The file to write.
        model: Its weights are saved.
        optimizer: Its state is saved.
        epoch: Epochs finished.
        settings: Plain numbers and strings that a resumed run must share, such as the model's name and the scale.
        scaler: Its state is saved, where there is one (float16 needs it).
    """
    path = Path(path)
    content = {
        "version": CHECKPOINT_VERSION,
        "settings": settings,
        "epoch": epoch,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": {} if scaler is None else scaler.state_dict(),
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def load_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    settings: dict[str, Any],
    scaler: torch.amp.GradScaler | None = None,
) -> int:
    """Continue from a checkpoint: loads weights, optimiser and random state in place. Nothing is unpickled but tensors.

    Args:
        path: A file that `save_checkpoint` wrote.
        model: Gets the weights; it may be on another device than the one that saved.
        optimizer: Gets the optimiser's state.
        settings: What this run uses; it must equal what was saved.
        scaler: Gets the scaler's state, if one was saved.

    Returns:
        Epochs finished.

    Raises:
        FormatError: The file is not a checkpoint of this release, or the settings differ.
        CorruptError: The file is damaged.
        FileNotFoundError: There is no such file.
    """
    with open(path, "rb") as file:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            # torch.load raises whatever its zip and pickle readers stumble over; all of it means this one thing.
            raise CorruptError(
                f"{path}: not a checkpoint, or damaged ({error}). Start again without --resume."
            ) from error
    found = content.get("version") if isinstance(content, dict) else None
    if found != CHECKPOINT_VERSION:
        raise FormatError(f"{path}: checkpoint version {found}; this release reads {CHECKPOINT_VERSION}.")
    if content["settings"] != settings:
        raise FormatError(
            f"{path}: made with {content['settings']}, this run has {settings}. They must be equal to resume."
        )
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    if scaler is not None and content.get("scaler"):
        scaler.load_state_dict(content["scaler"])
    torch.set_rng_state(content["rng"])
    if torch.cuda.is_available() and len(content["cuda_rng"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(content["cuda_rng"])
    return int(content["epoch"])
