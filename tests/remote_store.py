"""A small dataset behind a server that speaks S3, and what may go wrong there: for tests of datasets at URLs."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from part_sets import make_set, tree
from s3_server import Handler, serve

import lmdbloader

NUM_SAMPLES = 500
VARIABLES = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


def write_dataset(path: Path, *, seed: int = 0, num_samples: int = NUM_SAMPLES) -> Path:
    """Write images that do not compress, 12 KiB each, with labels and texts."""
    noise = np.random.default_rng(seed).integers(0, 256, (num_samples, 64, 64, 3), np.uint8)
    samples = ({"image": noise[i], "label": i, "caption": f"{i} " * 60} for i in range(num_samples))
    lmdbloader.write(samples, path)
    return path


def write_parts(path: Path, counts: Sequence[int], *, seed: int = 0) -> Path:
    """Write a dataset with parts of so many images, as `write_dataset` does."""
    noise = np.random.default_rng(seed).integers(0, 256, (sum(counts), 64, 64, 3), np.uint8)
    samples = [{"image": noise[i], "label": i, "caption": f"{i} " * 60} for i in range(len(noise))]
    ends = np.cumsum(counts).tolist()
    return make_set(path, [samples[end - count : end] for count, end in zip(counts, ends, strict=True)])


def objects_of(path: Path, name: str = "train.lmdb") -> dict[str, bytes]:
    return {f"{name}/{key}": content for key, content in tree(path).items()}


@dataclass
class Server:
    """A running server.

    Attributes:
        url: Its endpoint.
        requests: One line for each that arrived.
        objects: What the bucket `bucket` holds.
        fault: Called with the number of a request for data and its range; returns what goes wrong with it, or "".
        refusal: Called with each request that changes something; returns the status of its refusal, or 0.
        rate: Bytes a second of all answers together, 0 for no limit.
        delay: Seconds before each answer.
        num_open, most_open: Requests that are being answered now, and the most at once.
    """

    url: str
    requests: list[str]
    objects: dict[str, bytes]
    fault: Callable[[int, int], str] = lambda number, start: ""
    refusal: Callable[[str], int] = lambda request: 0
    rate: float = 0.0
    delay: float = 0.0
    num_data: int = 0
    num_open: int = 0
    most_open: int = 0
    free_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges of data files that were requested, first and last byte."""
        return [(first, last) for _, first, last in self.ranges_of_parts()]

    def ranges_of_parts(self) -> list[tuple[str, int, int]]:
        """Return the ranges with the names of their files."""
        found = [re.search(r"^GET .*?/(data[-\d]*\.mdb).* bytes=(\d+)-(\d+)$", line) for line in self.requests]
        return [(match[1], int(match[2]), int(match[3])) for match in found if match]


class Faulty(Handler):
    """S3 with faults."""

    server_of_test: Server

    def _answer(self) -> None:
        server = self.server_of_test
        with server.lock:
            server.num_open += 1
            server.most_open = max(server.most_open, server.num_open)
        try:
            super()._answer()
        finally:
            with server.lock:
                server.num_open -= 1

    def _written(self) -> tuple[dict[str, bytes] | None, str, dict[str, str]]:
        objects, key, query = super()._written()
        if objects is not None and (status := self.server_of_test.refusal(self.requests[-1])):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._error(status, {403: "AccessDenied", 503: "SlowDown"}[status])
            return None, key, query
        return objects, key, query

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        server = self.server_of_test
        if status == 206 and ".mdb" in self.path:
            with server.lock:
                number, server.num_data = server.num_data, server.num_data + 1
                if server.rate:
                    server.free_at = max(server.free_at, time.monotonic()) + len(body) / server.rate
            time.sleep(max(server.free_at - time.monotonic(), 0) + server.delay)
            fault = server.fault(number, int(headers["Content-Range"].split()[1].partition("-")[0]))
            if fault == "503":
                self._error(503, "SlowDown")
                return
            if fault == "cut":
                self._cut(body, headers)
                return
            if fault == "hang":
                time.sleep(3)
                self.close_connection = True
                return
            if fault == "short":
                body = body[: len(body) // 2]
            if fault == "wrong":
                body = bytes(len(body))
        super()._send(status, body, headers)

    def _cut(self, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(206)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2])
        self.close_connection = True


@contextmanager
def serving(objects: dict[str, bytes]) -> Iterator[Server]:
    """Serve objects as s3://bucket, with the variables set."""
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'lmdbloader[remote]'")
    handler = type("FaultyOfTest", (Faulty,), {})
    with serve({"bucket": objects}, handler) as (url, requests), pytest.MonkeyPatch.context() as patch:
        server = handler.server_of_test = Server(url, requests, objects)
        for name, value in {**VARIABLES, "AWS_ENDPOINT_URL": url}.items():
            patch.setenv(name, value)
        yield server


def same(a: object, b: object) -> bool:
    """Return whether two samples of the dataset are equal."""
    return bool((a.image == b.image).all()) and (a.label, a.caption) == (b.label, b.caption)  # type: ignore[attr-defined]


def cached_nbytes(folder: Path) -> int:
    """Return the bytes that the pieces in a cache folder take on the disk."""
    return sum(os.stat(path).st_blocks * 512 for path in folder.glob("*/data"))
