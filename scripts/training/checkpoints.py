"""Writes and reads the file from which an interrupted training run continues: an archive of `torch.save`."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lmdbloader.base import system
from lmdbloader.base.arguments import shown
from lmdbloader.base.files import NotRegularError, open_regular
from lmdbloader.errors import CorruptError, DestinationError, FormatError, NotFoundError, OptionError

if TYPE_CHECKING:
    from lmdbloader.loader import Loader

__all__ = ["load_checkpoint", "save_checkpoint"]

CHECKPOINT_VERSION = 4
_PARTS = {"settings": dict, "epoch": int, "model": dict, "optimizer": dict, "scaler": dict, "loader": dict}


def save_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    epoch: int,
    settings: dict[str, Any],
    scaler: torch.amp.GradScaler | None = None,
    loader: Loader | None = None,
    average: torch.nn.Module | None = None,
) -> None:
    """Write a checkpoint, from which a run can continue; it replaces the file only when it is complete.

    Args:
        path: The file to write.
        model: Its weights are saved.
        optimizer: Its state is saved.
        epoch: Epochs finished.
        settings: What a resumed run must share, such as the model's name and the scale: numbers, text, and lists or
            dicts of them, as JSON has them.
        scaler: Its state is saved, if there is one (float16 needs it).
        loader: Its place is saved, for a run that continues in the middle of an epoch.
        average: Of weights averaged over the steps: its weights are saved as `model`, those of the model as `trained`.

    Raises:
        DestinationError: Something other than a file is there: a folder, or a device such as /dev/null.
        OptionError: A setting could not be read back, or would not be equal then.
    """
    path = Path(path)
    # A rename puts the file there, and a superuser's would replace the device.
    if path.exists() and not path.is_file():
        raise DestinationError(f"{path}: is not a file, and a checkpoint would replace it. Choose another name.")
    for name, value in settings.items():
        if not _is_json(value):
            raise OptionError(
                f"settings[{name!r}] is {shown(value)}; expected a number or a text, as str(...) makes it"
            )
    content = {
        "version": CHECKPOINT_VERSION,
        "settings": settings,
        "epoch": epoch,
        "model": (model if average is None else average).state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": {} if scaler is None else scaler.state_dict(),
        "loader": {} if loader is None else loader.state_dict(),
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }
    if average is not None:
        content["trained"] = model.state_dict()
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            torch.save(content, file)
            file.flush()
            system.flush(file.fileno())
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
    average: torch.nn.Module | None = None,
) -> int:
    """Continue from a checkpoint: load weights, optimizer and random state in place. Only tensors are unpickled.

    After an error the model and the optimizer may have been changed in part.

    Args:
        path: A file of `save_checkpoint`.
        model: Gets the weights; it may be on another device than the model that was saved.
        optimizer: Gets the optimizer's state.
        settings: Of this run; they must equal the saved ones.
        scaler: Gets the scaler's state, if one was saved.
        loader: Its next iteration is the rest of the epoch that was interrupted, else the epoch after the finished
            ones.
        average: Gets the averaged weights, if they were saved with one.

    Returns:
        Epochs finished.

    Raises:
        FormatError: The file is not a checkpoint of this release, the settings differ, or it is of another model or of
            another optimizer.
        CorruptError: The file is damaged, truncated or not a checkpoint, and torch has read none of it; or a part is
            missing.
        OptionError: An epoch was interrupted, and the loader has another dataset, order or seed.
        NotFoundError: The file does not exist.
    """
    content = _load_content(path)
    _check_same(content["settings"], settings, path)
    try:
        if average is not None:
            average.load_state_dict(content["model"])
        model.load_state_dict(content["model" if average is None else "trained"])
        optimizer.load_state_dict(content["optimizer"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise FormatError(f"{path}: made with another model or optimizer: {error}") from error
    if loader is not None:
        place = content["loader"]
        if place and place.get("position") != 0:
            loader.load_state_dict(place)
        else:
            # The loaders of image files in scripts/ have a seed of their own.
            if isinstance(seed := place.get("seed"), int) and hasattr(loader, "_replace_drawn"):
                loader._replace_drawn(seed)
            loader.set_epoch(content["epoch"])
    if scaler is not None and content["scaler"]:
        scaler.load_state_dict(content["scaler"])
    torch.set_rng_state(content["rng"])
    if torch.cuda.is_available() and len(content["cuda_rng"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(content["cuda_rng"])
    return int(content["epoch"])


def _load_content(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a checkpoint of this release, with all of its parts."""
    again = "Start again without --resume."
    try:
        with open(open_regular(path), "rb") as file:
            with zipfile.ZipFile(file) as archive:
                damaged = archive.testzip()  # reads all parts, and compares their CRC-32
            if damaged is not None:
                raise CorruptError(f"{path}: its part {damaged} is damaged. {again}")
            file.seek(0)
            content = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise NotFoundError(f"{os.fspath(path)}: there is no such checkpoint") from error
    except (IsADirectoryError, NotRegularError) as error:
        raise CorruptError(f"{os.fspath(path)}: {error.strerror}; expected the file of a checkpoint") from error
    except CorruptError:
        raise
    except Exception as error:  # of the readers of archives and pickles
        raise CorruptError(f"{path}: truncated, damaged or not a checkpoint ({error}). {again}") from error
    found = content.get("version") if isinstance(content, dict) else None
    if found != CHECKPOINT_VERSION:
        raise FormatError(f"{path}: checkpoint version {found}; this release reads {CHECKPOINT_VERSION}.")
    for part, kind in _PARTS.items():
        if not isinstance(content.get(part), kind):
            raise CorruptError(f"{path}: its part {part!r} is missing: save_checkpoint did not write it. {again}")
    return content  # type: ignore[no-any-return]


def _check_same(found: dict[str, Any], wanted: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Raise FormatError if a run has other settings than a checkpoint; names those that differ."""
    names = [name for name in [*wanted, *(found.keys() - wanted)] if [found.get(name)] != [wanted.get(name)]]
    if not names and found.keys() == wanted.keys():
        return
    was, now = (
        ", ".join(f"{name}={shown(values[name])}" if name in values else f"no {name}" for name in names)
        for values in (found, wanted)
    )
    raise FormatError(f"{path}: made with {was}; this run has {now}. They must be equal to resume.")


def _is_json(value: Any) -> bool:
    """Return whether a value comes back from JSON as it is; not NaN, which equals nothing."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False
