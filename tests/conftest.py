"""What every test stands on: real photographs in a folder, quiet hypothesis settings, and a cache folder of its own."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import BROWSERS, Browser, find_browser
from hypothesis import settings
from nursery import Nursery

from lmdbloader.kernels.calls import libraries

# Read once, when torch is imported: its threads, and those of every process that a test starts, do not spin while they
# wait for each other. The tests that run beside them have better use for the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A deadline measures the machine's other work, not the code.
settings.register_profile("lmdbloader", deadline=None, print_blob=True)
settings.load_profile("lmdbloader")

PHOTOGRAPHS = ("astronaut", "cat", "coffee", "rocket", "retina", "hubble_deep_field", "immunohistochemistry", "camera")


# Their tests take ten seconds and more each.
LONGEST = (
    "test_kernels_building", "test_snippets", "test_faults", "test_notebooks", "test_docs", "test_slurm",
    "test_benchmarks",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what takes longest first: processes that share the tests then end together, with the short ones."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)


@pytest.fixture(autouse=True)
def empty_memory_file_system() -> Iterator[None]:
    """Empty the files of memory:// after each test: all tests of a process share them."""
    yield
    module = sys.modules.get("fsspec.implementations.memory")
    if module is not None:
        module.MemoryFileSystem.store.clear()
        module.MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture(scope="session", autouse=True)
def short_waits() -> Iterator[None]:
    """Let torch wait for a worker's end for two seconds instead of five.

    A worker gets no word to end if its iterator goes with the traceback of a test's error: then torch waits in vain,
    whenever garbage is collected, and kills it.
    """
    from torch.utils.data import _utils

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 2.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread_of_torch() -> None:
    """Let torch compute in one thread: processes that share the tests, and their threads, share the cores too.

    On a busy machine two threads train a small model nine times as slowly, and in CI one such training never ended.
    """
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Point the user's cache folder at an empty one, so that no test reads or leaves measurements of this machine."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def keep_signals() -> Iterator[None]:
    """The command sets a handler; here it must not outlive its call."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return a headless Chromium; where there is none the test is skipped."""
    program = find_browser()
    if program is None:
        pytest.skip(f"no Chromium on PATH (looked for {', '.join(BROWSERS)}): what a page looks like is not tested")
    started = Browser(program, tmp_path_factory.mktemp("browser"))
    yield started
    started.close()


@pytest.fixture(scope="session", autouse=True)
def built_kernels() -> None:
    """Build the kernels from the present sources, so that no process that a test starts has to do it."""
    libraries.load()


@pytest.fixture(scope="module", autouse=True)
def short_collections(built_kernels: None) -> None:
    """Let the garbage collector skip what lives to the end: torch, thousands of tests, what Numba keeps of kernels.

    After some kernels have been compiled a collection takes a second without this, and some tests make two each.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of eight small real photographs, 288 x 192 RGB PNG, cut from those that scikit-image carries."""
    import skimage.data
    from PIL import Image

    folder = tmp_path_factory.mktemp("photographs") / "photos"
    folder.mkdir()
    for name in PHOTOGRAPHS:
        photograph = Image.fromarray(getattr(skimage.data, name)()).convert("RGB")
        left, top = (photograph.width - 288) // 2, (photograph.height - 192) // 2
        photograph.crop((left, top, left + 288, top + 192)).save(folder / f"{name}.png")
    return folder


@pytest.fixture(scope="session")
def nursery(own_cache: Path, built_kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Starts programs that have imported lmdbloader and torch already."""
    made = Nursery(tmp_path_factory.mktemp("nursery"))
    yield made
    made.close()


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """CUDA whose events have the times of a list, in milliseconds, in the order in which they are recorded."""
    import torch

    times: list[float] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.time = -1.0
            self.is_ready = False
            self.number = len(events)
            events.append(self)

        def record(self, stream: object) -> None:
            self.time = times.pop(0) if times else 0.0

        def query(self) -> bool:
            # The device comes to every second one as soon as it is asked, as to those of another stream.
            self.is_ready = self.is_ready or self.number % 2 == 1
            return self.is_ready

        def elapsed_time(self, other: Event) -> float:
            if not (self.is_ready and other.is_ready):
                raise RuntimeError("CUDA error: device not ready")
            return other.time - self.time

    events: list[Event] = []

    def synchronize(device: object) -> None:
        for event in events:
            event.is_ready = True

    for name, value in (("Event", Event), ("current_stream", lambda _: None), ("synchronize", synchronize)):
        monkeypatch.setattr(torch.cuda, name, value)
    return times


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make groups of a few samples, and commit every few groups."""
    monkeypatch.setattr("lmdbloader.conversion.samples.GROUP_NBYTES", 3000)
    monkeypatch.setattr("lmdbloader.store.writing.part.TRANSACTION_NBYTES", 10_000)
    monkeypatch.setattr("lmdbloader.conversion.from_python._SLOW_SAMPLES", 100)
