"""`doctor`: looks at the machine, at a dataset on it, and at a pass through a Loader, and judges what it finds."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from lmdbloader.base import system
from lmdbloader.base.arguments import is_url
from lmdbloader.base.option_names import option
from lmdbloader.base.text import counted
from lmdbloader.base.units import GIB, MIB, show_nbytes
from lmdbloader.errors import OptionError
from lmdbloader.lab.checkup.findings import Checkup, DatasetFacts, Finding, Verdict, dataset_facts
from lmdbloader.lab.machine import Machine, describe
from lmdbloader.lab.stored import FOR_THE_CACHE, LARGER, in_fewer_bytes, share_of


def doctor(
    path: str | os.PathLike[str] | None = None,
    *,
    batch_size: int | None = None,
    step_seconds: float | None = None,
    crop: int | None = None,
    loader: Iterable[Any] | None = None,
) -> Checkup:
    """Look for causes of slow loading on this machine; each fact gets a verdict and a remedy.

    Args:
        path: A dataset, to be judged with its file system and the memory of this machine.
        batch_size: Samples in a batch. With `step_seconds`, a Loader reads the dataset for a few seconds, and the
            result names the bottleneck.
        step_seconds: Time of a training step without waiting for data.
        crop: Side of the windows that are read; needed if images differ in size.
        loader: With `step_seconds`, in place of `batch_size`: your own Loader or DataLoader, with your transforms.

    Returns:
        The findings; `print` shows them as a table, `is_healthy` says whether none of them is a problem.

    Raises:
        OptionError: Options do not go together, or one is out of its range.
        NotFoundError: There is nothing at `path`.
        FormatError: Not a finished dataset of this format version.
        CorruptError: A file is cut short or damaged.

    >>> found = doctor()
    >>> found.finding("cores").verdict in ("good", "note", "problem")
    True
    """
    has_pass, has_size = step_seconds is not None, batch_size is not None
    if loader is not None:
        fits = has_pass and not has_size and crop is None
    else:
        fits = has_pass == has_size and (has_pass or crop is None) and (path is not None or not has_pass)
    if not fits:
        raise OptionError(
            f"a pass through a Loader needs a dataset, {option('batch_size')} and {option('step_seconds')}, and takes "
            f"{option('crop')}; with a loader of your own {option('step_seconds')} alone"
        )
    machine = describe(path)
    facts = None if path is None else dataset_facts(path)
    found = examine(machine, facts)
    if step_seconds is None:
        return found
    from lmdbloader.lab.checkup.rehearsal import judge_pass, loader_for, try_out

    made = None
    # Not `loader or ...`: the truth of a DataLoader is its length, and one of a stream has none.
    if loader is None and facts is not None and batch_size is not None:
        loader = made = loader_for(facts, batch_size, crop)
    try:
        profile, used = try_out(() if loader is None else loader, step_seconds)
    finally:
        if made is not None:
            made.close()
    findings = judge_pass(profile, used, step_seconds, machine.memory.free_nbytes)
    return replace(found, findings=(*found.findings, *findings), profile=profile)


def examine(machine: Machine, dataset: DatasetFacts | None = None) -> Checkup:
    """Judge facts: of a machine, and of a dataset on it."""
    findings = judge_machine(machine)
    if dataset is not None:
        findings += judge_dataset(dataset, machine)
    return Checkup(findings, machine, dataset)


# Decoding, copying and the training loop itself need a core each, for each GPU.
_CORES_PER_GPU = 2
_LITTLE_MEMORY = GIB
# Docker gives a container 64 MiB by default.
_SMALL_SHM, _NO_SHM = GIB, MIB


def judge_machine(machine: Machine) -> tuple[Finding, ...]:
    """Return the findings about a machine."""
    return (*_cores(machine), *_threads(machine), *_memory(machine), *_images(machine), *_gpu(machine))


def _cores(machine: Machine) -> Iterator[Finding]:
    found = machine.processor
    cores, gpus = found.num_usable, len(machine.devices) if machine.libraries.sees_accelerator else 0
    value = f"{cores} of {found.num_online}" if cores < found.num_online else f"{cores}"
    limits = []
    if found.num_allowed < found.num_online:
        limits.append(f"a CPU affinity of {found.num_allowed}")
    if found.quota is not None and found.quota < found.num_online:
        limits.append(f"a control group that grants {found.quota}")
    value += f", because of {' and '.join(limits)}" if limits else ""
    more = (
        "Ask for more: --cpus-per-task of Slurm, --cpus of Docker, resources.limits.cpu of Kubernetes, or start the "
        "process without taskset."
    )
    if gpus and cores < _CORES_PER_GPU * gpus:
        value += f", for {gpus} GPU{'s' * (gpus > 1)}"
        yield Finding("cores", "problem", value, f"Fewer than {_CORES_PER_GPU} for each GPU starve it. {more}")
    elif cores == 1:
        verdict: Verdict = "problem" if found.num_online > 1 else "note"
        yield Finding("cores", verdict, value, f"Loading and training take turns on one core. {more}")
    elif limits:
        yield Finding("cores", "note", value, f"Nothing to do if that is what this job was given. {more}")
    else:
        yield Finding("cores", "good", value)


def _threads(machine: Machine) -> Iterator[Finding]:
    cores, pools = machine.processor.num_usable, machine.thread_pools
    too_many = []
    if pools.torch > cores:
        too_many.append(
            (f"torch starts {pools.torch} threads", f"OMP_NUM_THREADS={cores}, or torch.set_num_threads({cores})")
        )
    if pools.opencv is not None and pools.opencv > cores:
        too_many.append((f"OpenCV starts {pools.opencv} threads", f"cv2.setNumThreads({cores}), in worker processes 0"))
    for name, text in pools.environment.items():
        # A list of numbers is for nested parallelism; the first one counts.
        first = text.split(",")[0].strip()
        # Where torch obeys it, that was said.
        if first.isdecimal() and int(first) > cores and not (name == "OMP_NUM_THREADS" and pools.torch > cores):
            too_many.append((f"{name}={text}", f"{name}={cores}"))
    if too_many:
        value = f"{', '.join(what for what, _ in too_many)} on {cores} core{'s' * (cores > 1)}"
        settings = "; ".join(how for _, how in too_many)
        remedy = f"Threads that wait for each other's cores slow each other down. Set {settings}."
        yield Finding("threads", "problem", value, remedy)
        return
    value = f"torch {pools.torch}" + (f", OpenCV {pools.opencv}" if pools.opencv is not None else "")
    if pools.opencv is not None and pools.opencv > 1:
        remedy = "Each worker process starts as many: call cv2.setNumThreads(0) in them."
        yield Finding("threads", "note", f"{value}, on {cores} cores", remedy)
    else:
        yield Finding("threads", "good", f"{value}, on {cores} core{'s' * (cores > 1)}")


def _memory(machine: Machine) -> Iterator[Finding]:
    found = machine.memory
    free, usable = found.free_nbytes, found.usable_nbytes
    if not usable:
        yield Finding("memory", "note", "unknown: /proc/meminfo cannot be read")
    else:
        value = f"{show_nbytes(free)} free of {show_nbytes(usable)}"
        if found.limit_nbytes is not None:
            value += f", the limit of a control group on a machine with {show_nbytes(found.total_nbytes)}"
        remedy = (
            "Free some, or ask for more (--mem of Slurm, --memory of Docker, resources.limits.memory of Kubernetes)."
        )
        yield _judged("memory", value, remedy, problem=free < min(_LITTLE_MEMORY, usable / 4), note=free < usable / 10)
    size, left = found.shm_nbytes, found.shm_free_nbytes
    remedy = (
        "torch's own DataLoader hands batches over there and ends with a bus error when it is full. --shm-size=8g of "
        "Docker, or an emptyDir with medium: Memory at /dev/shm in Kubernetes, makes it larger."
    )
    if size is not None and left is not None:
        value = f"{show_nbytes(left)} free of {show_nbytes(size)}"
        is_full = left < _NO_SHM
        remedy = f"Remove what fills it. {remedy}" if is_full else remedy
        yield _judged("/dev/shm", value, remedy, problem=is_full, note=left < _SMALL_SHM)
    elif system.QUEUES_NEED_FILES:
        yield Finding("/dev/shm", "note", "there is none", remedy)


def _judged(name: str, value: str, remedy: str, *, problem: bool, note: bool) -> Finding:
    if problem or note:
        return Finding(name, "problem" if problem else "note", value, remedy)
    return Finding(name, "good", value)


def _images(machine: Machine) -> Iterator[Finding]:
    found = machine.libraries
    remedy = "Converting with --scale or --max-resolution is up to 9 times as fast with pillow-simd."
    is_slow = found.pillow != "pillow-simd"
    yield _judged("Pillow", f"{found.pillow} {found.pillow_version}", remedy, problem=False, note=is_slow)
    have = [f"in Pillow {found.libjpeg_turbo}"] * bool(found.libjpeg_turbo)
    have += [f"in simplejpeg {found.simplejpeg}"] * bool(found.simplejpeg)
    lacking = "another libjpeg in Pillow" if have and not found.libjpeg_turbo else ""
    yield _judged(
        "libjpeg-turbo",
        ", ".join([*have, lacking] if lacking else have) or "none",
        "JPEG is then decoded several times slower: pip install simplejpeg, and Pillow's wheel from PyPI.",
        problem=not have,
        note=len(have) < 2,
    )


def _gpu(machine: Machine) -> Iterator[Finding]:
    found, count = machine.libraries, len(machine.devices)
    build = f"torch {found.torch}"
    names = ", ".join(dict.fromkeys(device.name for device in machine.devices))
    value = f"{count} x {names}" if count > 1 else names
    if not count:
        seen = "a GPU that torch sees" if found.sees_accelerator else "none"
        yield Finding("GPU", "good", f"{seen}; {build}")
    elif found.sees_accelerator:
        yield Finding("GPU", "good", f"{value}; {build} for {_for(found.torch_cuda)}")
    elif found.torch_cuda is None:
        remedy = (
            "The GPU is not used. Install a build with CUDA: the command for your driver is on "
            "https://pytorch.org/get-started/locally."
        )
        yield Finding("GPU", "problem", f"{value}; {build} is built without GPU support", remedy)
    else:
        if found.visible_devices is not None and found.visible_devices.strip() in ("", "-1"):
            remedy = f"CUDA_VISIBLE_DEVICES={found.visible_devices!r} hides it: unset it."
        else:
            remedy = (
                "The GPU is not used. torch.cuda.init() says why; most often the driver is older than "
                f"{_for(found.torch_cuda)} needs (nvidia-smi shows it), or the container was started without --gpus."
            )
        yield Finding("GPU", "problem", f"{value}; {build} for {_for(found.torch_cuda)} does not see it", remedy)


def _for(version: str | None) -> str:
    return version if version and "ROCm" in version else f"CUDA {version}"


_MOSTLY = 0.9
# Images that are stored much larger than any network is trained at; ImageNet is trained at 224.
_LARGE_SIDE = 768
# The share of the bytes of photographs that delta saves, at least (`benchmarks/results`).
_DELTA_SAVES = 0.4


def judge_dataset(dataset: DatasetFacts, machine: Machine) -> tuple[Finding, ...]:
    """Return the findings about reading a dataset on a machine."""
    # Its pages in the page cache count as free memory: the system may drop them.
    fits = dataset.filesystem.kind == "memory" or dataset.data_nbytes <= FOR_THE_CACHE * machine.memory.free_nbytes
    findings = _filesystem(dataset, fits), _cache(dataset, machine, fits), _order(dataset, fits)
    return (*findings, *_storage(dataset))


def _filesystem(dataset: DatasetFacts, fits: bool) -> Finding:
    found = dataset.filesystem
    value = str(found)
    stage = "`lmdbloader stage DB DIR` makes a checked copy on a disk of this machine, once for all jobs"
    verdict: Verdict = "note"
    if found.kind == "network":
        value += f", from {found.source}" if found.source else ""
        when = "The first epoch comes over the network, later ones from memory."
        if not fits:
            verdict, when = "problem", "Every epoch comes over the network, as it does not fit in memory."
        remedy = f'{when} {stage}. With io="pread" a failing server always raises an error.'
    elif found.kind == "memory":
        remedy = f"It takes {show_nbytes(dataset.data_nbytes)} of memory, and is gone when the machine restarts."
    elif found.kind == "overlay":
        remedy = "It is in a container's image or writable layer. Mount the folder from outside, so that it lasts."
    elif found.device == "spinning disk":
        verdict, remedy = "problem", f"It makes about 130 random reads a second. {stage}, ideally an SSD."
        if fits:
            verdict, remedy = "note", "The first epoch is slow: read it with order='sequential' once."
    elif found.kind == "unknown":
        remedy = f"It is not known whether that is a disk or a network. {stage}."
    else:
        return Finding("file system", "good", value)
    return Finding("file system", verdict, value, remedy)


def _cache(dataset: DatasetFacts, machine: Machine, fits: bool) -> Finding:
    size, room = show_nbytes(dataset.data_nbytes), show_nbytes(machine.memory.free_nbytes)
    share = dataset.residency
    is_slow = dataset.filesystem.kind == "network" or dataset.filesystem.device == "spinning disk"
    inside = "how much of it is in memory is unknown" if share is None else f"{share:.0%} of it is in memory now"
    if dataset.filesystem.kind == "memory":
        return Finding("page cache", "good", f"{size}, all in memory")
    if not fits:
        value = f"{size}, more than the {room} of free memory; {inside}"
        fewer = in_fewer_bytes(dataset.path, dataset.codecs) if dataset.image_side else ""
        left = 1 - _DELTA_SAVES * share_of(dataset.codecs, LARGER)
        if fewer and (is_slow or left * dataset.data_nbytes <= FOR_THE_CACHE * machine.memory.free_nbytes):
            remedy = f"Every epoch reads from storage. {fewer}"
        else:
            how = f"--max-resolution, {'--codec delta, ' if fewer else ''}JPEG"
            remedy = f"Every epoch reads from storage. A smaller dataset would not: {how}."
        return Finding("page cache", "note", value, remedy)
    is_cold = is_slow and share is not None and share < _MOSTLY
    data = f"{shlex.quote(dataset.path)}/*.mdb"
    remedy = f"Read it once before training{'.' if is_url(dataset.path) else f': cat {data} > /dev/null'}"
    return _judged(
        "page cache", f"{size}, fits in {room} of free memory; {inside}", remedy, problem=False, note=is_cold
    )


def _order(dataset: DatasetFacts, fits: bool) -> Finding:
    each = f"{show_nbytes(dataset.sample_nbytes)} a sample, {counted(dataset.num_samples, 'sample')}"
    if fits:
        return Finding("order", "good", f"{each}: any order is as fast, once it is in memory")
    return Finding(
        "order",
        "note",
        f"{each}: order='random' reads each sample separately from storage",
        "Use Loader(..., order='quasi_random'), which reads blocks of 2 MiB.",
    )


def _storage(dataset: DatasetFacts) -> Iterator[Finding]:
    if not dataset.codecs:
        return
    value = ", ".join(f"{name} {share:.0%}" for name, share in dataset.codecs.items())
    side = dataset.image_side or 0
    value += f"; images of {side} pixels" if side else ""
    encoded = dataset.codecs.get("jpeg", 0.0) + dataset.codecs.get("file", 0.0)
    remedy = "If you train at a few hundred pixels, most of what is decoded is thrown away: convert with "
    remedy += "--max-resolution (a little above the size that you train at)."
    yield _judged("stored as", value, remedy, problem=False, note=encoded > 0.5 and side > _LARGE_SIDE)
