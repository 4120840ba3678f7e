"""Writes and reads the file from which an interrupted training run continues.

The file is a zip archive of `torch.save` with a digest as the archive's comment; `torch.load` reads it too.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from lmdbloader.base import system
from lmdbloader.base.arguments import shown
from lmdbloader.base.files import NotRegularError, open_regular
from lmdbloader.errors import CorruptError, DestinationError, FormatError, NotFoundError, OptionError

if TYPE_CHECKING:
    from lmdbloader.loader import Loader

__all__ = ["load_checkpoint", "save_checkpoint"]

# Versions 1 and 2 had no digest.
CHECKPOINT_VERSION = 3

# A zip archive ends with the length of its comment, of 16 bits, and the comment: here the SHA-256 of all bytes before.
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
    """Write a checkpoint, from which a run can continue; it replaces the file only when it is complete.

    Args:
        path: The file to write.
        model: Its weights are saved.
        optimizer: Its state is saved.
        epoch: Epochs finished.
        settings: Plain numbers and strings that a resumed run must share, such as the model's name and the scale.
            Give a path as its text.
        scaler: Its state is saved, if there is one (float16 needs it).
        loader: Its place is saved, for a run that continues in the middle of an epoch.

    Raises:
        DestinationError: Something other than a file is there: a folder, or a device such as /dev/null.
        OptionError: A setting could not be read back, or would not be equal then.
    """
    path = Path(path)
    # A rename puts the file there, and a superuser's would replace the device.
    if path.exists() and not path.is_file():
        raise DestinationError(f"{path}: is not a file, and a checkpoint would replace it. Choose another name.")
    _check_settings(settings)
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
) -> int:
    """Continue from a checkpoint: load weights, optimiser and random state in place. Only tensors are unpickled.

    A checkpoint that is refused changes nothing: model, optimizer, scaler, loader and random state stay as they were.

    Args:
        path: A file of `save_checkpoint`.
        model: Gets the weights; it may be on another device than the model that was saved.
        optimizer: Gets the optimiser's state.
        settings: Of this run; they must equal the saved ones.
        scaler: Gets the scaler's state, if one was saved.
        loader: Its next iteration is the rest of the epoch that was interrupted, else the epoch after the finished
            ones.

    Returns:
        Epochs finished.

    Raises:
        FormatError: The file is not a checkpoint of this release, the settings differ, or it is of another model or of
            an optimiser with other groups of weights.
        CorruptError: The file is damaged, truncated or not a checkpoint, and torch has read none of it; or a part is
            missing or invalid.
        OptionError: An epoch was interrupted, and the loader has another dataset, order or seed.
        NotFoundError: The file does not exist.
    """
    content = _load_content(path)
    _check_same(content["settings"], settings, path)
    _check_model(content["model"], model, path)
    _check_optimizer(content["optimizer"], optimizer, path)
    _check_random_state(content, path)
    if scaler is not None and content["scaler"]:
        _expect(scaler.state_dict().keys() <= content["scaler"].keys(), path, "scaler")
    # It checks before it changes anything, and nothing after it fails.
    if loader is not None:
        place = content["loader"]
        if place and place.get("position") != 0:
            loader.load_state_dict(place)
        else:
            # The loaders of image files in scripts/ have a seed of their own.
            if isinstance(seed := place.get("seed"), int) and hasattr(loader, "_replace_drawn"):
                loader._replace_drawn(seed)
            loader.set_epoch(content["epoch"])
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    if scaler is not None and content["scaler"]:
        scaler.load_state_dict(content["scaler"])
    torch.set_rng_state(content["rng"])
    if torch.cuda.is_available() and len(content["cuda_rng"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(content["cuda_rng"])
    return int(content["epoch"])


def _load_content(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a checkpoint of this release, with all of its parts."""
    with _open(path) as file:
        _check_digest(file, path)
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            # The errors of torch's zip and pickle readers: these bytes were written like that.
            raise CorruptError(f"{path}: torch cannot load it ({error}). Start again without --resume.") from error
    found = content.get("version") if isinstance(content, dict) else None
    if found != CHECKPOINT_VERSION:
        raise FormatError(f"{path}: checkpoint version {found}; this release reads {CHECKPOINT_VERSION}.")
    for part in ("settings", "model", "optimizer", "scaler", "loader"):
        _expect(isinstance(content.get(part), dict), path, part)
    epoch = content.get("epoch")
    _expect(isinstance(epoch, int) and not isinstance(epoch, bool) and 0 <= epoch < 2**63, path, "epoch")
    return content  # type: ignore[no-any-return]


def _check_same(found: dict[str, Any], wanted: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Raise FormatError if a run has other settings than a checkpoint; names those that differ."""
    if found == wanted:
        return
    names = [name for name in [*wanted, *(found.keys() - wanted)] if [found.get(name)] != [wanted.get(name)]]
    was, now = (
        ", ".join(f"{name}={shown(values[name])}" if name in values else f"no {name}" for name in names)
        for values in (found, wanted)
    )
    raise FormatError(f"{path}: made with {was}; this run has {now}. They must be equal to resume.")


def _check_settings(settings: dict[str, Any]) -> None:
    """Raise OptionError if a setting would be read back as another value: no run could continue with it."""
    for name, value in settings.items():
        buffer = BytesIO()
        try:
            torch.save({name: value}, buffer)
            buffer.seek(0)
            comes_back = bool(torch.load(buffer, weights_only=True) == {name: value})
            why = "it would be read back as another value"
        except Exception as error:  # of pickle, torch's reader or a comparison
            comes_back, why = False, str(error).partition("\n")[0][:200]
        if not comes_back:
            raise OptionError(
                f"settings[{name!r}] is {shown(value)} of type {type(value).__name__}, which a checkpoint cannot hold "
                f"({why}): expected plain numbers and text. Give its text: str(...)"
            )


def _open(path: str | os.PathLike[str]) -> IO[bytes]:
    try:
        return open(open_regular(path), "rb")
    except FileNotFoundError as error:
        raise NotFoundError(f"{os.fspath(path)}: there is no such checkpoint") from error
    except IsADirectoryError as error:
        raise CorruptError(f"{os.fspath(path)}: is a folder; expected the file of a checkpoint") from error
    except NotRegularError as error:
        raise CorruptError(f"{os.fspath(path)}: {error.strerror}; expected the file of a checkpoint") from error


def _expect(holds: bool, path: str | os.PathLike[str], part: str) -> None:
    if not holds:
        raise CorruptError(
            f"{path}: its part {part!r} is missing or invalid, although the digest is right: save_checkpoint did not "
            "write it this way. Start again without --resume."
        )


def _check_model(state: dict[str, Any], model: torch.nn.Module, path: str | os.PathLike[str]) -> None:
    """Raise FormatError if weights are not those of a model."""
    wanted = model.state_dict()
    for name in [*wanted, *state]:
        found, expected = (_described(weights[name]) if name in weights else "none" for weights in (state, wanted))
        if found != expected:
            raise FormatError(
                f"{path}: made with another model: the checkpoint has {found} for {name!r}, and this model has "
                f"{expected}. Build the model that it was made with, or start again without --resume."
            )


def _described(weights: Any) -> str:
    # Weights without a shape yet take any; values other than tensors are checked by the module that has them.
    if not isinstance(weights, torch.Tensor) or torch.nn.parameter.is_lazy(weights):
        return "something"
    return f"weights {tuple(weights.shape)}"


def _check_optimizer(state: dict[str, Any], optimizer: torch.optim.Optimizer, path: str | os.PathLike[str]) -> None:
    """Raise CorruptError if it is not the state of an optimiser, FormatError if it is that of another one."""
    groups, each = state.get("param_groups"), state.get("state")
    _expect(isinstance(each, dict) and all(isinstance(value, dict) for value in each.values()), path, "optimizer")
    _expect(isinstance(groups, list), path, "optimizer")
    for group in groups or []:
        _expect(isinstance(group, dict) and isinstance(group.get("params"), list), path, "optimizer")
    found = [len(group["params"]) for group in groups or []]
    expected = [len(group["params"]) for group in optimizer.param_groups]
    if found != expected:
        raise FormatError(
            f"{path}: made with another optimiser: the checkpoint has groups of {found} weights, and this one has "
            f"{expected}. Build the optimiser that it was made with, or start again without --resume."
        )


def _check_random_state(content: dict[str, Any], path: str | os.PathLike[str]) -> None:
    cuda = content.get("cuda_rng")
    _expect(isinstance(cuda, list), path, "cuda_rng")
    states = [("rng", "cpu", content.get("rng"))]
    if torch.cuda.is_available() and len(cuda or []) == torch.cuda.device_count():
        states += [("cuda_rng", "cuda", state) for state in cuda or []]
    for part, device, state in states:
        try:
            torch.Generator(device).set_state(state)  # type: ignore[arg-type]
            is_state = True
        except (TypeError, RuntimeError):
            is_state = False
        _expect(is_state, path, part)


class _Digested:
    """A file for `torch.save` that ends with the digest of its bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        # The archive's last bytes, the length of its comment, are held back.
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
        """Do nothing: `finish` writes the end."""

    def finish(self) -> None:
        comment = f"lmdbloader checkpoint sha256 {self._digest.hexdigest()}".encode()
        self._file.write(_LENGTH.pack(len(comment)) + comment)

    def _pass_on(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        self._file.write(data)


def _check_digest(file: IO[bytes], path: str | os.PathLike[str]) -> None:
    """Raise CorruptError if a file was changed since it was written; go back to its beginning."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - _END_NBYTES, 0))
    end = file.read()
    written = _COMMENT.fullmatch(end[_LENGTH.size :])
    again = "Start again without --resume."
    if written is None or _LENGTH.unpack(end[: _LENGTH.size]) != (len(end) - _LENGTH.size,):
        raise CorruptError(
            f"{path}: does not end with a checkpoint's digest: it was truncated or damaged, or it is not a checkpoint "
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
