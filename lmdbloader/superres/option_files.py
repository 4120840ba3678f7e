"""Reads what option files of Real-ESRGAN, BasicSR, neosr and traiNNer-redux say about degradations."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmdbloader.errors import OptionError

# How keys about degradations begin.
_DEGRADES = re.compile(
    r"(resize|noise|jpeg|blur|sinc|kernel|beta[gp]|thicklines|lq_usm|lq_resize|gaussian|poisson|gray|second_blur|final)"
)
# Keys without an effect in the projects' own code, or with one only together with another key.
_IGNORED = ("blur_kernel_size", "blur_kernel_size2", "lq_usm_radius_range")
_USM = ("l1_gt_usm", "percep_gt_usm", "gt_usm")  # the last one of RealESRNet


def read_options(path: Path, presets: Mapping[str, Mapping[str, Any]]) -> tuple[str, Any, dict[str, Any]]:
    """Return the name of a preset, the scale or None, and the arguments that a file gives.

    Args:
        path: YAML of Real-ESRGAN, BasicSR or traiNNer-redux, or TOML of neosr.
        presets: The arguments of "real_esrgan", "neosr" and "trainner_redux".

    Raises:
        OptionError: The file cannot be read, or a key about degradations is not supported.
    """
    found = _read(path)
    train = _section(_section(found, "datasets"), "train")
    keys = {**found, **train, **_section(found, "degradations")}
    name = "real_esrgan"
    if path.suffix == ".toml" or "degradations" in found:
        name = "neosr"
    elif "high_order_degradation" in found and ("resize_mode_list" in keys or "blur_prob" in keys):
        name = "trainner_redux"
    options = {}
    for key, value in keys.items():
        if key in presets[name]:
            options[key] = value
        elif _DEGRADES.match(str(key)) and key not in _IGNORED and value not in (0, False, None):
            raise OptionError(f"{path}: {key}: {value}: {name} has no such option here. Remove it, or set it to 0.")
    if not options:
        keys_found = ", ".join(map(str, found)) or "none"
        raise OptionError(f"{path}: no options of a degradation, such as resize_prob; found {keys_found}")
    if keys.get("high_order_degradation") is False:
        raise OptionError(f"{path}: high_order_degradation is off, so that nothing is degraded. Leave it out.")
    if name == "real_esrgan":
        options["gt_usm"] = any(bool(keys.get(key)) for key in _USM)
        options["lq_usm"] = options["gt_usm"] or "gt_usm" not in keys
    return name, found.get("scale"), options


def _section(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = of.get(name)
    return found if isinstance(found, Mapping) else {}


def _read(path: Path) -> Mapping[str, Any]:
    is_toml = path.suffix == ".toml"
    try:
        module = importlib.import_module("tomllib" if is_toml else "yaml")
    except ImportError as error:
        advice = "Use Python 3.11 or newer." if is_toml else "Install it: pip install pyyaml"
        raise OptionError(f"{path}: reading it needs {error.name}. {advice}") from error
    try:
        text = path.read_text("utf-8")
        found = module.loads(text) if is_toml else module.safe_load(text)
    except (OSError, ValueError, getattr(module, "YAMLError", ValueError)) as error:
        raise OptionError(f"{path}: {error}") from error
    if not isinstance(found, Mapping):
        raise OptionError(f"{path}: expected the options of a training, found {type(found).__name__}")
    return found
