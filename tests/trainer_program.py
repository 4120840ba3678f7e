"""Runs the train.py of BasicSR, neosr or traiNNer-redux on a machine without CUDA, and writes what its model was fed.

python trainer_program.py SOURCES PROGRAM ROOT OUT -opt FILE ...
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import operator
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Seen = list[list[Any]]


class CpuForCuda(TorchFunctionMode):
    """Carries out on the CPU what is asked of CUDA."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function with the CPU in place of CUDA."""
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.view and isinstance(args[-1], int):
            func = torch.Tensor.reshape  # filter2D views what it has padded, which on the CPU may be channels last
        named = {name: _on_cpu(value) for name, value in (kwargs or {}).items()}
        return func(*map(_on_cpu, args), **named)


def _on_cpu(value: Any) -> Any:
    is_cuda = str(value) == "cuda" if isinstance(value, (str, torch.device)) else False
    return "cpu" if is_cuda else value


def _is_asked_by_a_trainer() -> bool:
    """Whether there is CUDA: torch and others are told the truth."""
    caller: str = sys._getframe(1).f_globals["__name__"]
    return caller.partition(".")[0] in ("train", "basicsr", "neosr", "traiNNer")


def pretend_cuda() -> None:
    """Replace the functions of torch.cuda that those programs call: two of them refuse to start without it."""
    load, stream = torch.load, types.SimpleNamespace(wait_stream=lambda other: None)
    properties = types.SimpleNamespace(name="CPU", total_memory=0, major=8, minor=0, multi_processor_count=1)
    vars(torch.cuda).update(
        is_available=_is_asked_by_a_trainer, device_count=lambda: 1, current_device=lambda: 0,
        get_device_name=lambda: "CPU", get_device_capability=lambda: (8, 0), max_memory_allocated=lambda: 0,
        get_device_properties=lambda device: properties,
        set_per_process_memory_fraction=lambda **options: None,
        Stream=lambda: stream, current_stream=lambda: stream, stream=lambda given: contextlib.nullcontext(),
    )  # fmt: skip
    torch.load = lambda *args, **options: load(*args, **{**options, "map_location": "cpu"})
    torch.set_default_device = lambda device: None


def supply_modules(set_item: Callable[[Any, str, Any], object] = operator.setitem) -> None:
    """Supply two modules that BasicSR imports: one that newer torchvision lacks, and one that its setup.py writes."""
    from torchvision.transforms import functional

    functions = types.ModuleType("torchvision.transforms.functional_tensor")
    functions.rgb_to_grayscale = functional.rgb_to_grayscale  # type: ignore[attr-defined]
    version = types.ModuleType("basicsr.version")
    vars(version).update(__version__="1.4.2", __gitsha__="")
    for module in (functions, version):
        set_item(sys.modules, module.__name__, module)


def noted(data: dict[str, Any]) -> list[Any]:
    """Return the paths of a batch, and a digest of each tensor."""
    digests = {
        name: hashlib.sha256(value.numpy().tobytes()).hexdigest()[:16]
        for name, value in data.items()
        if name[-4:] != "path"
    }
    return [data["gt_path"], digests]


def main() -> None:
    """Train."""
    sources, program, root, out, *rest = sys.argv[1:]
    sys.path.insert(0, sources)
    sys.argv = ["train.py", *rest]
    os.chdir(root)
    supply_modules()
    pretend_cuda()
    seen: Seen = []
    with CpuForCuda():
        module = importlib.import_module("basicsr.train" if program == "basicsr" else "train")
        import lmdbloader.integrations.basicsr  # noqa: F401 - this line is what users add to train.py

        build = module.build_model

        def build_model(opt: Any) -> Any:
            model = build(opt)
            feed = model.feed_data

            def feed_data(data: dict[str, Any]) -> None:
                if len(data["gt_path"]) > 1:  # not of validation
                    seen.append(noted(data))
                feed(data)

            model.feed_data = feed_data
            return model

        module.build_model = build_model
        module.train_pipeline(root)
    Path(out).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
