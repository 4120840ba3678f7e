"""Frames of video files, decoded by PyAV: listed by number, and read in order as images without compression."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lmdbloader.conversion.sources.listing import Listing, Names, Sources, Span, Spans, litter_in
from lmdbloader.errors import SourceError

_SUFFIXES = frozenset(b".avi .m4v .mkv .mov .mp4 .mpeg .mpg .ts .webm .y4m".split())


def is_video(path: bytes) -> bool:
    """Return whether a file is a video by its suffix."""
    return os.path.splitext(path)[1].lower() in _SUFFIXES


def find_frames(place: Path) -> Listing:
    """Return the frames of all video files below a folder; frame 3 of a/b.mp4 has the name a/b.mp4/00000003.

    The span of a frame starts at the frame's number, and is as long as its packet.

    Raises:
        SourceError: PyAV is not installed, or a file cannot be read.
    """
    found = (os.fsencode(path.relative_to(place)) for path in place.rglob("*"))
    files = sorted(name for name in found if is_video(name) and litter_in(name) is None)
    paths = tuple(os.path.join(os.fsencode(place), name) for name in files)
    nbytes = [[size for _, size in _packets(path)] for path in paths]
    names = (b"%s/%08d" % (file, k) for file, sizes in zip(files, nbytes, strict=True) for k in range(len(sizes)))
    which = np.repeat(np.arange(len(paths), dtype=np.int32), [*map(len, nbytes)])
    start = np.array([k for sizes in nbytes for k in range(len(sizes))], np.int64)
    spans = Spans(paths, which, start, np.array([size for sizes in nbytes for size in sizes], np.int64))
    return Listing("images", Sources(Names.join(os.fsencode(place), names), spans.nbytes, spans=spans))


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
    """The video that a thread reads, the times of its frames, and the number of the next one."""

    path, times, next = b"", list[int](), 0
    container: Any
    frames: Iterator[Any]

    def frame(self, path: bytes, number: int) -> Any:
        if path != self.path:
            self.times = [time for time, _ in _packets(path)]
            self.container, self.path, self.next = _opened(path), path, -1
        if number != self.next:
            self.container.seek(self.times[number], stream=self.container.streams.video[0])
            self.frames = self.container.decode(video=0)
        self.next = number + 1
        return next(frame for frame in self.frames if (frame.pts or 0) >= self.times[number])


_decoder = _Decoder()


def read_frame(file: Span) -> bytes:
    """Return a frame as a PNM file, 8-bit RGB.

    Raises:
        OSError: It cannot be decoded.
    """
    try:
        frame = _decoder.frame(file.path, file.start)
        if frame.pts != _decoder.times[file.start]:
            raise ValueError("a frame is missing")
        pixels = frame.to_ndarray(format="rgb24")
    except (ValueError, IndexError, StopIteration, SourceError) as error:  # PyAV's errors are ValueErrors or OSErrors
        _decoder.path = b""
        raise OSError(f"frame {file.start} of {os.fsdecode(file.path)} cannot be decoded: {error}") from error
    return bytes(b"P6 %d %d 255 " % (frame.width, frame.height) + pixels.tobytes())
