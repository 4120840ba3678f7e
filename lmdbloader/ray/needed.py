"""Imports Ray, an optional requirement, where it is needed; or raises an error that says how to install it."""

from __future__ import annotations

from typing import Any

from lmdbloader.errors import OptionError

_INSTALL = "pip install 'lmdbloader[ray]', in a clone pip install '.[ray]'"


def need_ray(call: str, *, data: bool = False) -> Any:
    """Return the package Ray.

    Args:
        call: What needs it, for the message.
        data: Whether ray.data is needed too, which has requirements of its own.

    Raises:
        OptionError: It cannot be imported.
    """
    try:
        import ray

        if data:
            import ray.data
    except ImportError as error:
        what = "Ray with ray.data" if data else "Ray"
        raise OptionError(
            f"{call} needs {what}, which cannot be imported ({error}). Install it: {_INSTALL}."
        ) from error
    return ray
