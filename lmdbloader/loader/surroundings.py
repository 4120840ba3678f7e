"""The settings in the thread of a loop, such as `torch.no_grad()`, for functions that other threads call for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

T = TypeVar("T")
_DEVICES = ("cpu", "cuda")


class _Autocast(NamedTuple):
    """Of one kind of device."""

    enabled: bool
    dtype: torch.dtype


class _Settings(NamedTuple):
    """Those of torch that each thread has for itself; a new thread has the defaults."""

    grad: bool
    inference: bool
    autocast: tuple[_Autocast, ...]
    caches: bool
    device: torch.device
    cuda: int | None

    @classmethod
    def here(cls) -> _Settings:
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            tuple(_Autocast(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES),
            torch.is_autocast_cache_enabled(),
            torch.get_default_device(),
            torch.cuda.current_device() if torch.cuda.is_initialized() else None,  # type: ignore[no-untyped-call]
        )

    def apply(self, stack: ExitStack, here: _Settings) -> None:
        """Set what differs in this thread, until the stack is closed."""
        if self.cuda is not None and self.cuda != here.cuda:
            stack.enter_context(torch.cuda.device(self.cuda))
        if self.device != here.device:
            stack.enter_context(_DefaultDevice(self.device))
        if self.inference != here.inference:
            stack.enter_context(torch.inference_mode(self.inference))
        if self.grad != torch.is_grad_enabled():
            stack.enter_context(torch.set_grad_enabled(self.grad))
        # These two are for an autocast in the function, and stay until others are set.
        torch.set_autocast_cache_enabled(self.caches)
        for device, (enabled, dtype) in zip(_DEVICES, self.autocast, strict=True):
            torch.set_autocast_dtype(device, dtype)
            if enabled:
                stack.enter_context(torch.autocast(device, cache_enabled=self.caches))


class _DefaultDevice(DeviceContext):
    """The default device of one thread: torch's own class keeps it in a variable of all threads."""

    def __enter__(self) -> Any:
        return TorchFunctionMode.__enter__(self)  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        TorchFunctionMode.__exit__(self, *error)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The settings in the thread that makes this object, such as `torch.no_grad()` around its loop."""

    _settings: _Settings = field(default_factory=_Settings.here)
    _variables: Context = field(default_factory=copy_context)

    def run(self, call: Callable[[], T]) -> T:
        """Return the result of a call under these settings; one call at a time."""
        return self._variables.run(self._call, call)

    def _call(self, call: Callable[[], T]) -> T:
        here = _Settings.here()
        if here == self._settings:
            return call()
        with ExitStack() as stack:
            self._settings.apply(stack, here)
            return call()
