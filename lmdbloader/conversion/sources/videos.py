"""Frames of video files, decoded by PyAV: listed by number, and read in order as images without compression."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lmdbloader.conversion.sources.listing import Listing, Names, Others, Sources, Span, Spans, walk_names
from lmdbloader.errors import SourceError

_SUFFIXES = frozenset(b".avi .m4v .mkv .mov .mp4 .mpeg .mpg .ts .webm .y4m".split())


def is_video(path: bytes) -> bool:
    """Return whether a file is a video by its suffix."""
    return os.path.splitext(path)[1].lower() in _SUFFIXES


def find_frames(place: Path) -> Listing:
    """Return the frames of all video files below a folder; that of number k of a/b.mp4 has the name a/b/0000000k.

    The span of a frame has its number as start, and the bytes of its packet.

    Raises:
        SourceError: PyAV is not installed, two files have one name, or a file cannot be read.
    """
    top, others = os.fsencode(place), Others()
    files = list(walk_names(partial(_videos_in, top, others), others))
    names: list[bytes] = []
    which, start, sizes = list[int](), list[int](), list[int]()
    for k, name in enumerate(files):
        stem = os.path.splitext(name)[0]
        if k and stem == os.path.splitext(files[k - 1])[0]:
            raise SourceError(f"{place}: {os.fsdecode(files[k - 1])} and {os.fsdecode(name)} would be one clip")
        nbytes = [size for _, size in _packets(os.path.join(top, name))]
        names += [b"%s/%08d" % (stem, number) for number in range(len(nbytes))]
        which += [k] * len(nbytes)
        start += range(len(nbytes))
        sizes += nbytes
    paths = tuple(os.path.join(top, name) for name in files)
    spans = Spans(paths, np.array(which, np.int32), np.array(start, np.int64), np.array(sizes, np.int64))
    sources = Sources(Names.join(top, names), np.array(sizes, np.int64), spans=spans)
    return Listing("images", sources, ignored=others.ignored())


def _videos_in(top: bytes, others: Others, folder: bytes) -> Iterator[bytes]:
    with os.scandir(os.path.join(top, folder[:-1])) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield folder + entry.name + b"/"
            elif is_video(entry.name):
                yield folder + entry.name
            else:
                others.add(folder + entry.name)


def _opened(path: bytes) -> Any:
    try:
        av: Any = importlib.import_module("av")
    except ModuleNotFoundError as error:
        raise SourceError(f"{os.fsdecode(path)}: video files need PyAV: pip install 'lmdbloader[video]'") from error
    try:
        container = av.open(os.fsdecode(path))
        container.streams.video[0].thread_type = "AUTO"
    except (av.FFmpegError, IndexError) as error:
        raise SourceError(f"{os.fsdecode(path)}: cannot be read as a video ({error})") from error
    return container


def _packets(path: bytes) -> list[tuple[int, int]]:
    """Return the time and the bytes of each frame's packet, in the order of the times."""
    with _opened(path) as container:
        packets = list(container.demux(container.streams.video[0]))
    return sorted((packet.pts, packet.size) for packet in packets if packet.pts is not None)


class _Decoder(threading.local):
    """The video that a thread reads, and where it is."""

    path: bytes = b""
    times: dict[int, int]
    next = 0
    frames: Iterator[Any]
    container: Any

    def frame(self, path: bytes, number: int) -> Any:
        if path != self.path:
            self.times = {k: time for k, (time, _) in enumerate(_packets(path))}
            self.container, self.path, self.next = _opened(path), path, -1
        if number != self.next:
            self.container.seek(self.times[number], stream=self.container.streams.video[0])
            self.frames = self.container.decode(video=0)
        self.next = number + 1
        return next(frame for frame in self.frames if (frame.pts or 0) >= self.times[number])


_decoder = _Decoder()


def read_frame(file: Span) -> bytes:
    """Return a frame as a PNM file: RGB of 8 bits.

    Raises:
        OSError: It cannot be decoded.
    """
    try:
        frame = _decoder.frame(file.path, file.start)
        if frame.pts != _decoder.times[file.start]:
            raise ValueError("a frame is missing")
        pixels: npt.NDArray[np.uint8] = frame.to_ndarray(format="rgb24")
    except (ValueError, KeyError, StopIteration, SourceError) as error:  # PyAV's errors are ValueErrors or OSErrors
        _decoder.path = b""
        raise OSError(f"frame {file.start} of {os.fsdecode(file.path)} cannot be decoded: {error}") from error
    return b"P6 %d %d 255 " % (pixels.shape[1], pixels.shape[0]) + pixels.tobytes()
