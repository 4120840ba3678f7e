"""The callback of Lightning's Trainer records steps: with a stand-in for the package, and with the package."""

from __future__ import annotations

import importlib
import logging
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch

from lmdbloader.errors import OptionError

MODULE = "lmdbloader.lab.lightning"


class Callback:
    """What Lightning's class is, as far as ours uses it: it has every hook."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *_: None


class Trainer:
    """Calls the hooks as Lightning's does."""

    is_global_zero = True

    def __init__(self, callback: Any) -> None:
        self.callback = callback

    def fit(
        self,
        model: Any,
        loader: Iterable[Any],
        *,
        epochs: int = 1,
        validation_seconds: float = 0.0,
        saving_seconds: float = 0.0,
        saves_first: bool = False,
    ) -> None:
        self.train_dataloader = loader
        self.call("on_train_start", model)
        try:
            for _ in range(epochs):
                self.call("on_train_epoch_start", model)
                for number, batch in enumerate(loader):
                    self.call("on_train_batch_start", model, batch, number)
                    self.call("on_before_zero_grad", model, None)
                    time.sleep(0.002)
                    self.call("on_before_backward", model, None)
                    time.sleep(0.003)
                    self.call("on_after_backward", model)
                    if saves_first:
                        self.save(model, saving_seconds)
                    self.call("on_train_batch_end", model, None, batch, number)
                    if not saves_first:
                        self.save(model, saving_seconds)
                    if validation_seconds:
                        self.call("on_validation_start", model)
                        time.sleep(validation_seconds)
                        self.call("on_validation_end", model)
        except Exception as error:
            self.call("on_exception", model, error)
            raise
        self.call("on_train_end", model)

    def save(self, model: Any, seconds: float) -> None:
        """Write a checkpoint, as a callback after this one does or one before it; callbacks are called first."""
        if seconds:
            self.call("on_save_checkpoint", model, {})
            time.sleep(seconds)

    def call(self, hook: str, *arguments: Any) -> None:
        getattr(self.callback, hook)(self, *arguments)


@pytest.fixture(params=["lightning.pytorch.callbacks", "pytorch_lightning.callbacks"])
def callback_class(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The callback, over a stand-in for one of the package's two names."""
    hide_lightning(monkeypatch)
    parts = request.param.split(".")
    for number in range(len(parts)):
        name = ".".join(parts[: number + 1])
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[request.param].Callback = Callback  # type: ignore[attr-defined]
    yield importlib.import_module(MODULE).ProfileCallback
    sys.modules.pop(MODULE, None)


def hide_lightning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let neither of the package's names be found, and have our module imported again."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("lightning", "pytorch_lightning")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    for name in ("lightning", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)


def model() -> Any:
    return types.SimpleNamespace(device=torch.device("cpu"))


BATCHES = [torch.zeros(4, 3, 8, 8)] * 6


def test_the_trainers_hooks_tell_the_phases(callback_class: Any, caplog: pytest.LogCaptureFixture) -> None:
    callback = callback_class(steps=8, warmup=2)
    with caplog.at_level(logging.INFO, "lmdbloader"):
        Trainer(callback).fit(model(), BATCHES, epochs=2, validation_seconds=0.03)
    found = callback.profile
    assert found.num_steps == 8
    assert found.num_samples == 32
    assert found.phases["forward"].p50 >= 0.002
    assert found.phases["backward"].p50 >= 0.003
    assert found.phases["data"].p50 < 0.02  # validation is not waiting for data
    assert found.bottleneck == "model"
    assert "Loading keeps up" in caplog.text


@pytest.mark.parametrize("saves_first", [False, True])
def test_writing_a_checkpoint_is_neither_waiting_nor_work(callback_class: Any, saves_first: bool) -> None:
    callback = callback_class(steps=8, warmup=2)
    Trainer(callback).fit(model(), BATCHES, epochs=2, saving_seconds=0.03, saves_first=saves_first)
    found = callback.profile
    assert found.num_steps == 8
    assert found.bottleneck == "model"
    assert found.step.p50 < 0.03


def test_waiting_for_batches_is_seen(callback_class: Any) -> None:
    class Slow:
        def __iter__(self) -> Iterator[torch.Tensor]:
            for batch in BATCHES:
                time.sleep(0.02)
                yield batch

    callback = callback_class(steps=4, warmup=1)
    Trainer(callback).fit(model(), Slow())
    assert callback.profile.bottleneck == "storage"


def test_a_training_that_ends_early_has_a_profile_of_its_steps(
    callback_class: Any, caplog: pytest.LogCaptureFixture
) -> None:
    callback = callback_class(steps=100, warmup=1)
    Trainer(callback).fit(model(), BATCHES)
    assert callback.profile.num_steps == 5
    callback = callback_class(steps=100, warmup=6)
    Trainer(callback).fit(model(), BATCHES)
    assert callback.profile is None
    assert "no profile: 6 steps were recorded" in caplog.text


def test_an_exception_ends_it(callback_class: Any) -> None:
    def failing() -> Iterator[torch.Tensor]:
        yield BATCHES[0]
        raise ZeroDivisionError

    callback = callback_class()
    with pytest.raises(ZeroDivisionError):
        Trainer(callback).fit(model(), failing())
    assert callback.profile is None


def test_a_number_out_of_range_is_refused(callback_class: Any) -> None:
    with pytest.raises(OptionError, match="steps=0"):
        callback_class(steps=0)


def test_without_lightning_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_lightning(monkeypatch)
    with pytest.raises(ModuleNotFoundError, match="pip install lightning"):
        importlib.import_module(MODULE)


@pytest.mark.filterwarnings("ignore")
def test_with_lightning_itself(tmp_path: Any) -> None:
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed")
    sys.modules.pop(MODULE, None)
    callback = importlib.import_module(MODULE).ProfileCallback(steps=6, warmup=2)

    class Small(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3 * 64, 1)

        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            time.sleep(0.002)
            return self.layer(batch.flatten(1)).mean()  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False, default_root_dir=tmp_path, callbacks=[callback],
    )  # fmt: skip
    trainer.fit(Small(), torch.utils.data.DataLoader([torch.zeros(3, 8, 8)] * 24, batch_size=4))
    assert callback.profile.num_steps == 6
    assert callback.profile.num_samples == 24
    assert callback.profile.phases["forward"].p50 >= 0.002
    assert {"backward", "update"} <= set(callback.profile.phases)
