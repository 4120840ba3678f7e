"""The rules by which facts about a machine and a dataset are good, worth a note, or a problem."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from lmdbloader.base import system
from lmdbloader.base.arguments import is_url
from lmdbloader.base.text import counted
from lmdbloader.base.units import GIB, KIB, MIB, show_nbytes
from lmdbloader.lab.checkup.findings import DatasetFacts, Finding
from lmdbloader.lab.machine import Machine

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
    elif cores == 1 and found.num_online > 1:
        yield Finding("cores", "problem", value, f"Loading and training take turns on one core. {more}")
    elif cores == 1:
        yield Finding("cores", "note", value, "Loading and training take turns on one core.")
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
    if usable:
        value = f"{show_nbytes(free)} free of {show_nbytes(usable)}"
        if found.limit_nbytes is not None:
            value += f", the limit of a control group on a machine with {show_nbytes(found.total_nbytes)}"
        remedy = "Loading needs memory for batches, and the page cache keeps data that was read before: free some, "
        remedy += "or ask for more (--mem of Slurm, --memory of Docker, resources.limits.memory of Kubernetes)."
        if free < min(_LITTLE_MEMORY, usable / 4):
            yield Finding("memory", "problem", value, remedy)
        elif free < usable / 10:
            yield Finding("memory", "note", value, remedy)
        else:
            yield Finding("memory", "good", value)
    else:
        yield Finding("memory", "note", "unknown: /proc/meminfo cannot be read")
    size, left = found.shm_nbytes, found.shm_free_nbytes
    remedy = (
        "torch's own DataLoader hands batches over there and ends with a bus error when it is full; a Loader and "
        "lmdbloader.dataloader do not need it. --shm-size=8g of Docker, or an emptyDir with medium: Memory at /dev/shm "
        "in Kubernetes, makes it larger."
    )
    if size is None or left is None:
        if system.QUEUES_NEED_FILES:
            yield Finding("/dev/shm", "note", "there is none", remedy)
    else:
        value = f"{show_nbytes(left)} free of {show_nbytes(size)}"
        verdict = "problem" if left < _NO_SHM else "note" if left < _SMALL_SHM else "good"
        if verdict == "problem":
            yield Finding("/dev/shm", "problem", value, f"Remove what fills it. {remedy}")
        elif verdict == "note":
            yield Finding("/dev/shm", "note", value, remedy)
        else:
            yield Finding("/dev/shm", "good", value)


def _images(machine: Machine) -> Iterator[Finding]:
    found = machine.libraries
    if found.pillow == "pillow-simd":
        yield Finding("Pillow", "good", f"pillow-simd {found.pillow_version}")
    else:
        yield Finding(
            "Pillow",
            "note",
            f"Pillow {found.pillow_version}",
            "Only where Pillow resizes, in converting with --scale or --max-resolution and in Python transforms: "
            "pillow-simd is up to 9 times as fast. Reading a dataset does not need it.",
        )
    have = [f"in Pillow {found.libjpeg_turbo}"] * bool(found.libjpeg_turbo)
    have += [f"in simplejpeg {found.simplejpeg}"] * bool(found.simplejpeg)
    if found.libjpeg_turbo and found.simplejpeg:
        yield Finding("libjpeg-turbo", "good", ", ".join(have))
    elif have:
        lacking = "Pillow has another libjpeg" if not found.libjpeg_turbo else "simplejpeg is not installed"
        remedy = "Decoding JPEG through Pillow is then several times slower: install Pillow's wheel from PyPI."
        if found.libjpeg_turbo:
            remedy = "Some JPEG files are then decoded slowly: pip install simplejpeg."
        yield Finding("libjpeg-turbo", "note", f"{have[0]}; {lacking}", remedy)
    else:
        remedy = "JPEG is decoded several times slower: pip install simplejpeg, and Pillow's wheel from PyPI."
        yield Finding("libjpeg-turbo", "problem", "none", remedy)


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


# Of the memory that is free, batches and the model take a part.
_FOR_THE_CACHE = 0.9
_MOSTLY = 0.9
# Images that are stored much larger than any network is trained at; ImageNet is trained at 224.
_LARGE_SIDE = 768


def fits_memory(dataset: DatasetFacts, machine: Machine) -> bool:
    """Return whether the page cache can keep the whole dataset, or the dataset is in memory already."""
    # Its pages in the page cache count as free memory: the system may drop them.
    room = machine.memory.free_nbytes
    return dataset.filesystem.kind == "memory" or dataset.data_nbytes <= _FOR_THE_CACHE * room


def judge_dataset(dataset: DatasetFacts, machine: Machine) -> tuple[Finding, ...]:
    """Return the findings about reading a dataset on a machine."""
    fits = fits_memory(dataset, machine)
    return (
        *_filesystem(dataset, fits),
        *_cache(dataset, machine, fits),
        *_order(dataset, fits),
        *_storage(dataset),
    )


def _filesystem(dataset: DatasetFacts, fits: bool) -> Iterator[Finding]:
    found = dataset.filesystem
    value = str(found)
    stage = "`lmdbloader stage DB DIR` makes a checked copy on a disk of this machine, once for all jobs"
    if found.kind == "network":
        value += f", from {found.source}" if found.source else ""
        careful = 'With io="pread" a failing server always raises an error.'
        if fits:
            remedy = f"The first epoch comes over the network, later ones from memory. {stage}. {careful}"
            yield Finding("file system", "note", value, remedy)
        else:
            remedy = f"Every epoch comes over the network, as it does not fit in memory. {stage}. {careful}"
            if found.type.startswith("nfs"):
                remedy += f"{_nfs(found.options)}"
            yield Finding("file system", "problem", value, remedy)
    elif found.kind == "memory":
        remedy = f"It takes {show_nbytes(dataset.data_nbytes)} of memory, and is gone when the machine restarts."
        yield Finding("file system", "note", value, remedy)
    elif found.kind == "overlay":
        remedy = "It is in a container's image or writable layer. Mount the folder from outside, so that the "
        remedy += "data outlives the container."
        yield Finding("file system", "note", value, remedy)
    elif found.device == "spinning disk" and not fits:
        remedy = f"It makes about 130 random reads a second. {stage}, ideally an SSD."
        yield Finding("file system", "problem", value, remedy)
    elif found.device == "spinning disk":
        yield Finding("file system", "note", value, "The first epoch is slow: read it with order='sequential' once.")
    elif found.kind == "unknown":
        yield Finding("file system", "note", value, f"It is not known whether that is a disk or a network. {stage}.")
    else:
        yield Finding("file system", "good", value)


def _nfs(options: str) -> str:
    """Return advice on the mount's options."""
    words = dict(word.partition("=")[::2] for word in options.split(","))
    advice = ""
    if not words.get("nconnect"):
        advice += " Mount it with nconnect=8 or more: one TCP connection is often the limit."
    rsize = words.get("rsize", "")
    if rsize.isdecimal() and int(rsize) < 256 * KIB:
        advice += f" rsize={rsize} makes many small requests: mount it with rsize=1048576."
    return advice


def _cache(dataset: DatasetFacts, machine: Machine, fits: bool) -> Iterator[Finding]:
    size, room = show_nbytes(dataset.data_nbytes), show_nbytes(machine.memory.free_nbytes)
    share = dataset.residency
    inside = "how much of it is in memory is unknown" if share is None else f"{share:.0%} of it is in memory now"
    if dataset.filesystem.kind == "memory":
        yield Finding("page cache", "good", f"{size}, all in memory")
    elif fits:
        value = f"{size}, fits in {room} of free memory; {inside}"
        slow = dataset.filesystem.kind == "network" or dataset.filesystem.device == "spinning disk"
        if slow and share is not None and share < _MOSTLY:
            data = shlex.quote(f"{dataset.path}/data.mdb")
            if dataset.num_parts:
                data = f"{shlex.quote(dataset.path)}/part-*/data.mdb"
            is_remote = is_url(dataset.path)
            remedy = f"Read it once before training{'.' if is_remote else f': cat {data} > /dev/null'}"
            yield Finding("page cache", "note", value, remedy)
        else:
            yield Finding("page cache", "good", value)
    else:
        value = f"{size}, more than the {room} of free memory; {inside}"
        remedy = "Every epoch reads from storage. A smaller dataset would not: --max-resolution, --codec lz4, JPEG."
        yield Finding("page cache", "note", value, remedy)


def _order(dataset: DatasetFacts, fits: bool) -> Iterator[Finding]:
    each = f"{show_nbytes(dataset.sample_nbytes)} a sample, {counted(dataset.num_samples, 'sample')}"
    if fits:
        yield Finding("order", "good", f"{each}: any order is as fast, once it is in memory")
    else:
        yield Finding(
            "order",
            "note",
            f"{each}: order='random' reads each sample separately from storage",
            "Use Loader(..., order='quasi_random'): blocks of 2 MiB, of which 192 at a time are mixed, so that storage "
            "sees large reads; `lmdbloader plan` shows how much that saves.",
        )


def _storage(dataset: DatasetFacts) -> Iterator[Finding]:
    if not dataset.codecs:
        return
    value = ", ".join(f"{name} {share:.0%}" for name, share in dataset.codecs.items())
    side = dataset.image_side
    value += f"; images of {side} pixels" if side else ""
    encoded = dataset.codecs.get("jpeg", 0.0) + dataset.codecs.get("file", 0.0)
    if encoded > 0.5 and side is not None and side > _LARGE_SIDE:
        yield Finding(
            "stored as",
            "note",
            value,
            "If you train at a few hundred pixels, most of what is decoded is thrown away: convert with "
            "--max-resolution (a little above the size that you train at).",
        )
    else:
        yield Finding("stored as", "good", value)
