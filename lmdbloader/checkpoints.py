"""Writes and reads the file from which an interrupted training run continues."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lmdbloader.errors import CorruptError, FormatError

if TYPE_CHECKING:
    from lmdbloader.loader import Loader

__all__ = ["load_checkpoint", "save_checkpoint"]

# Version 1 had no place within an epoch.
CHECKPOINT_VERSION = 2


def save_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    epoch: int,
    settings: dict[str, Any],
    scaler: torch.amp.GradScaler | None = None,
    loader: Loader | None = None,
) -> None:
    """Write what a run needs to continue; the file is replaced only once the new one is complete.

    Args:
        path: The file to write.
        model: Its weights are saved.
        optimizer: Its state is saved.
        epoch: Epochs finished.
        settings: Plain numbers and strings that a resumed run must share, such as the model's name and the scale.
        scaler: Its state is saved, where there is one (float16 needs it).
        loader: Its place is saved, for a run that goes on in the middle of an epoch.
    """
    path = Path(path)
    content = {
        "version": CHECKPOINT_VERSION,
        "settings": settings,
        "epoch": epoch,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": {} if scaler is None else scaler.state_dict(),
        "loader": {} if loader is None else loader.state_dict(),
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
    loader: Loader | None = None,
) -> int:
    """Continue from a checkpoint: loads weights, optimiser and random state in place. Nothing is unpickled but tensors.

    Args:
        path: A file that `save_checkpoint` wrote.
        model: Gets the weights; it may be on another device than the one that saved.
        optimizer: Gets the optimiser's state.
        settings: What this run uses; it must equal what was saved.
        scaler: Gets the scaler's state, if one was saved.
        loader: Its next iteration becomes the rest of the epoch that was under way, else the epoch after those
            finished.

    Returns:
        Epochs finished.

    Raises:
        FormatError: The file is not a checkpoint of this release, or the settings differ.
        CorruptError: The file is damaged.
        OptionError: An epoch was under way, and the loader has another dataset, order or seed.
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
    if found not in (1, CHECKPOINT_VERSION):
        raise FormatError(f"{path}: checkpoint version {found}; this release reads {CHECKPOINT_VERSION}.")
    if content["settings"] != settings:
        raise FormatError(
            f"{path}: made with {content['settings']}, this run has {settings}. They must be equal to resume."
        )
    if loader is not None:
        place = content.get("loader")
        if place and place["position"]:
            loader.load_state_dict(place)
        else:
            loader.set_epoch(int(content["epoch"]))
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    if scaler is not None and content.get("scaler"):
        scaler.load_state_dict(content["scaler"])
    torch.set_rng_state(content["rng"])
    if torch.cuda.is_available() and len(content["cuda_rng"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(content["cuda_rng"])
    return int(content["epoch"])
