"""What is good, worth knowing or a problem about reading one dataset on one machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from lmdbloader.base.units import KIB, show_nbytes
from lmdbloader.lab.checkup.facts import DatasetFacts
from lmdbloader.lab.checkup.findings import Finding
from lmdbloader.lab.machine import Machine

# Of the memory that is free, batches and the model take a part.
_FOR_THE_CACHE = 0.9
_MOSTLY = 0.9
# Images that are stored much larger than any network is trained at; ImageNet is trained at 224.
_LARGE_SIDE = 768


def fits_memory(dataset: DatasetFacts, machine: Machine) -> bool:
    """Return whether the page cache can keep the whole dataset, or the dataset lies in memory already."""
    # What of it is in the page cache counts as free memory: it may be given up.
    room = machine.memory.free_nbytes
    return dataset.filesystem.kind == "memory" or dataset.data_nbytes <= _FOR_THE_CACHE * room


def judge_dataset(dataset: DatasetFacts, machine: Machine) -> tuple[Finding, ...]:
    """Return what is to be said about reading a dataset on a machine."""
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
        careful = 'io="pread" makes an error of a server that fails in every case.'
        if fits:
            remedy = f"The first epoch comes over the network, later ones from memory. {stage}. {careful}"
            yield Finding("file system", "note", value, remedy)
        else:
            remedy = f"Every epoch comes over the network, as it does not fit in memory. {stage}. {careful}"
            if found.type.startswith("nfs"):
                remedy += f"{_nfs(found.options)}"
            yield Finding("file system", "problem", value, remedy)
    elif found.kind == "memory":
        remedy = f"Its {show_nbytes(dataset.data_nbytes)} take memory, and are gone when the machine starts anew."
        yield Finding("file system", "note", value, remedy)
    elif found.kind == "overlay":
        remedy = "It lies in a container's image or its writable layer. Mount the folder from outside, so that the "
        remedy += "data outlive the container."
        yield Finding("file system", "note", value, remedy)
    elif found.device == "spinning disk" and not fits:
        remedy = f"It makes about 130 random reads a second. {stage}, best an SSD."
        yield Finding("file system", "problem", value, remedy)
    elif found.device == "spinning disk":
        yield Finding("file system", "note", value, "The first epoch is slow: read it with order='sequential' once.")
    elif found.kind == "unknown":
        yield Finding("file system", "note", value, f"It is not known whether that is a disk or a network. {stage}.")
    else:
        yield Finding("file system", "good", value)


def _nfs(options: str) -> str:
    """Return what the mount's options leave out."""
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
    inside = "nobody tells how much of it is in memory" if share is None else f"{share:.0%} of it is in memory now"
    if dataset.filesystem.kind == "memory":
        yield Finding("page cache", "good", f"{size}, all in memory")
    elif fits:
        value = f"{size}, fits in {room} of free memory; {inside}"
        slow = dataset.filesystem.kind == "network" or dataset.filesystem.device == "spinning disk"
        if slow and share is not None and share < _MOSTLY:
            remedy = f"Read it once before training: cat {shlex.quote(f'{dataset.path}/data.mdb')} > /dev/null"
            yield Finding("page cache", "note", value, remedy)
        else:
            yield Finding("page cache", "good", value)
    else:
        value = f"{size}, more than the {room} of free memory; {inside}"
        remedy = "Every epoch reads from storage. A smaller dataset would not: --max-resolution, --codec lz4, JPEG."
        yield Finding("page cache", "note", value, remedy)


def _order(dataset: DatasetFacts, fits: bool) -> Iterator[Finding]:
    each = f"{show_nbytes(dataset.sample_nbytes)} a sample, {dataset.num_samples:,} samples"
    if fits:
        yield Finding("order", "good", f"{each}: any order is as fast, once it is in memory")
    else:
        yield Finding(
            "order",
            "note",
            f"{each}: order='random' reads each alone from storage",
            "Use Loader(..., order='quasi_random'): blocks of 4 MiB, shuffled in windows of 128 MiB, so that storage "
            "sees large reads; `lmdbloader plan` says what that saves.",
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
