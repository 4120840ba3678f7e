"""Random and mutated files whose digests and checksums hold: an error of ours, or something that reads; no crash."""

from __future__ import annotations

import ctypes
import resource
import warnings
from collections.abc import Callable
from pathlib import Path

from . import fuzz_images, fuzz_payloads, fuzz_tables
from .cases import Case, run_cases
from .datasets import make_datasets
from .outcome import Outcome

# Memory in addition to that with everything imported, stacks of threads included. No file here exceeds 1 MB.
_MORE_NBYTES = 2**30
_M_ARENA_MAX = -8

Prepare = Callable[[dict[str, str], Path, int], Case]
# Of each kind its share of the inputs.
_KINDS: dict[str, tuple[Prepare, float]] = {
    "manifests": (fuzz_tables.prepare_manifests, 0.15),
    "index values": (fuzz_tables.prepare_index_values, 0.05),
    "index bytes": (fuzz_tables.prepare_index_bytes, 0.08),
    "records": (fuzz_tables.prepare_records, 0.32),
    "LMDB pages": (fuzz_tables.prepare_pages, 0.01),
    "payloads": (fuzz_payloads.prepare_payloads, 0.32),
    "payloads in datasets": (fuzz_payloads.prepare_in_datasets, 0.02),
    "image files": (fuzz_images.prepare_images, 0.05),
}


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Make about `count` inputs of all kinds."""
    paths = {name: str(path) for name, path in make_datasets(folder).items()}
    cases = {name: max(round(count * share), 1) for name, (_, share) in _KINDS.items()}
    found, failures = run_cases(_prepare, (paths, str(folder), seed, cases), sum(cases.values()), folder)
    failures = [f"{_place(int(line.split()[1].rstrip(':')), cases)[0]}, {line}" for line in failures]
    return Outcome({"inputs": sum(cases.values()), **cases, **dict(sorted(found.items()))}, failures)


def _prepare(paths: dict[str, str], folder: str, seed: int, cases: dict[str, int]) -> Case:
    warnings.simplefilter("error")
    # One heap for all threads: each further one would reserve 64 MB of the allowed address space.
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    ready: dict[str, Case] = {}

    def case(number: int) -> str:
        name, number = _place(number, cases)
        if name not in ready:
            _limit(None)  # imports are not counted
            own = Path(folder, name)
            own.mkdir(exist_ok=True)
            ready[name] = _KINDS[name][0](paths, own, seed)
            _limit(_MORE_NBYTES)
        return ready[name](number)

    return case


def _place(number: int, cases: dict[str, int]) -> tuple[str, int]:
    """Return the kind of a case, and its number among those of its kind."""
    for name, count in cases.items():
        if number < count:
            return name, number
        number -= count
    raise IndexError(number)


def _limit(more: int | None) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft = most if more is None else pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (soft, most))
