"""Writes and reads the file from which an interrupted training run continues.

The file is what `torch.save` writes, a zip archive, with a digest as the archive's comment: `torch.load` reads it too.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from lmdbloader.errors import CorruptError, FormatError

if TYPE_CHECKING:
    from lmdbloader.loader import Loader

__all__ = ["load_checkpoint", "save_checkpoint"]

# Versions 1 and 2 had no digest.
CHECKPOINT_VERSION = 3

# A zip archive ends with the length of its comment, of 16 bits, and the comment: here the SHA-256 of all before them.
_COMMENT = re.compile(rb"lmdbloader checkpoint sha256 ([0-9a-f]{64})")
_LENGTH = struct.Struct("<H")
_END_NBYTES = _LENGTH.size + len("lmdbloader checkpoint sha256 ") + 64
_READ_NBYTES = 2**20


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
            archive = _Digested(file)
            torch.save(content, archive)  # type: ignore[arg-type]  # it asks for `write` alone
            archive.finish()
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
        CorruptError: The file is damaged, cut short, or not a checkpoint; torch has seen none of it then.
        OptionError: An epoch was under way, and the loader has another dataset, order or seed.
        FileNotFoundError: There is no such file.
    """
    with open(path, "rb") as file:
        _check_digest(file, path)
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            # torch.load raises whatever its zip and pickle readers stumble over: these bytes were written like that.
            raise CorruptError(f"{path}: torch cannot load it ({error}). Start again without --resume.") from error
    found = content.get("version") if isinstance(content, dict) else None
    if found != CHECKPOINT_VERSION:
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


class _Digested:
    """Passes on what `torch.save` writes, and ends it with its digest."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        # The archive's last bytes, which say that it has no comment, are held back.
        self._last = b""

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if len(view) < _LENGTH.size:
            view = memoryview(self._last + view)
            self._last = b""
        self._pass_on(self._last)
        self._pass_on(view[: -_LENGTH.size])
        self._last = bytes(view[-_LENGTH.size :])
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Do nothing: `finish` ends it."""

    def finish(self) -> None:
        comment = f"lmdbloader checkpoint sha256 {self._digest.hexdigest()}".encode()
        self._file.write(_LENGTH.pack(len(comment)) + comment)

    def _pass_on(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        self._file.write(data)


def _check_digest(file: IO[bytes], path: str | os.PathLike[str]) -> None:
    """Check that a file is as it was written, and go back to its beginning.

    Raises:
        CorruptError: It is not.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - _END_NBYTES, 0))
    end = file.read()
    written = _COMMENT.fullmatch(end[_LENGTH.size :])
    again = "Start again without --resume."
    if written is None or _LENGTH.unpack(end[: _LENGTH.size]) != (len(end) - _LENGTH.size,):
        raise CorruptError(
            f"{path}: does not end with a checkpoint's digest: it was cut short or damaged, or it is not a checkpoint "
            f"of this release. {again}"
        )
    file.seek(0)
    digest = hashlib.sha256()
    left = size - _END_NBYTES
    while left > 0 and (data := file.read(min(left, _READ_NBYTES))):
        digest.update(data)
        left -= len(data)
    found, expected = digest.hexdigest(), written[1].decode()
    if found != expected:
        raise CorruptError(f"{path}: damaged: its SHA-256 is {found}, written was {expected}. {again}")
    file.seek(0)
