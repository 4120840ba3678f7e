"""Ray, which is optional, and the connection to a cluster: an existing one, or a new one on this machine."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lmdbloader.base.cores import count_cores
from lmdbloader.base.option_names import option
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


# Ray would reserve a third of the memory for objects, and tasks exchange none but their small results.
_STORE_NBYTES = 100 * 2**20
_HOST_PORT = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:/\[\]]+)):([0-9]+)")
_ANSWER_SECONDS = 10.0


@contextmanager
def connected(ray: Any, address: str | None, num_cpus: int | None) -> Iterator[bool]:
    """Connect to a cluster for a `with` statement; yield whether a new one was started on this machine.

    A connection that the program has already is used, and left open.

    Args:
        ray: The package.
        address: The cluster's address; None for the cluster that this program is connected to, that of RAY_ADDRESS,
            or else a new one.
        num_cpus: The CPUs of a new cluster; None for the cores that this process may use.

    Raises:
        OptionError: No cluster answers at the address, this program is connected to another one, or a new one cannot
            be started.
    """
    if ray.is_initialized():
        now = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", now):
            raise OptionError(
                f"{option('address', address)}: this program is connected to the Ray cluster {now}. Leave it out, or "
                "call ray.shutdown() first."
            )
        yield False
        return
    is_new = address is None and not os.environ.get("RAY_ADDRESS")
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if is_new:
        settings |= {"num_cpus": max(1, num_cpus or count_cores()), "include_dashboard": False}
        settings |= {"object_store_memory": _STORE_NBYTES, "address": "local"}
    elif address is not None:
        settings["address"] = address
    _check_answers(address or os.environ.get("RAY_ADDRESS", ""), _shown(address))
    try:
        ray.init(**settings)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        meant = "a local Ray cluster cannot be started" if is_new else f"no Ray cluster answers at {_shown(address)}"
        raise OptionError(f"{option('address')}: {meant}: {' '.join(str(error).split())}") from error
    try:
        yield is_new
    finally:
        ray.shutdown()


def _check_answers(address: str, shown: str) -> None:
    """Raise OptionError if nothing listens at HOST:PORT, which Ray would try for minutes.

    Other addresses ("auto", ray://...) are left to Ray.
    """
    found = _HOST_PORT.fullmatch(address)
    if found is None:
        return
    try:
        socket.create_connection((found[1] or found[2], int(found[3])), _ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise OptionError(
            f"{option('address')}: no Ray cluster answers at {shown}: {error}. Expected HOST:PORT of a running one; "
            "`ray start --head` prints it."
        ) from error


def _shown(address: str | None) -> str:
    return address or f"{os.environ.get('RAY_ADDRESS')} (the variable RAY_ADDRESS)"
