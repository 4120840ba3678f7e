"""File systems of fsspec for tests, which note what is requested: one for one thread, and one for many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

#: (path, first byte, number of bytes) of each request for content.
Requests = list[tuple[str, int, int]]


class _File(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> bytes:
        content: bytes = self.fs.part(self.path, start, end)
        return content


class _Objects:
    """Objects, shared by all instances of a file system; one may be a local file, of holes.

    Attributes:
        before: Called with the path and the first byte of a request before it is answered.
    """

    objects: ClassVar[dict[str, bytes | Path]]
    requests: ClassVar[Requests]
    before: ClassVar[Callable[[str, int], object] | None] = None
    cachable = False

    def part(self, path: str, start: int | None, end: int | None) -> bytes:
        if self.before is not None:
            type(self).before(path, start or 0)  # type: ignore[misc]
        found = self.objects[path]
        if isinstance(found, Path):
            with open(found, "rb") as file:
                file.seek(start or 0)
                content = file.read(-1 if end is None else end - (start or 0))
        else:
            content = found[start:end]
        self.requests.append((path, start or 0, len(content)))
        return content

    def facts(self, path: str) -> dict[str, Any]:
        if path not in self.objects:
            raise FileNotFoundError(path)
        found = self.objects[path]
        nbytes = found.stat().st_size if isinstance(found, Path) else len(found)
        return {"name": path, "size": nbytes, "type": "file", "created": 1.0}

    def below(self, path: str) -> list[dict[str, Any]]:
        return [self.facts(key) for key in sorted(self.objects) if key.startswith(path.rstrip("/") + "/")]


class OneByOne(_Objects, AbstractFileSystem):  # type: ignore[misc]
    """counted://: as of most services, requests are made one after the other."""

    protocol = "counted"
    objects: ClassVar[dict[str, bytes | Path]] = {}
    requests: ClassVar[Requests] = []

    def info(self, path: str, **options: object) -> dict[str, Any]:
        return self.facts(self._strip_protocol(path))

    def ls(self, path: str, detail: bool = True, **options: object) -> list[dict[str, Any]]:
        return self.below(self._strip_protocol(path))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: object) -> bytes:
        return self.part(self._strip_protocol(path), start, end)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> _File:
        options.pop("autocommit", None)
        return _File(self, path, mode, **options)


class AtOnce(_Objects, AsyncFileSystem):  # type: ignore[misc]
    """together://: as of S3 and HTTP, many requests are made at once."""

    protocol = "together"
    objects: ClassVar[dict[str, bytes | Path]] = {}
    requests: ClassVar[Requests] = []

    async def _info(self, path: str, **options: object) -> dict[str, Any]:
        return self.facts(self._strip_protocol(path))

    async def _ls(self, path: str, detail: bool = True, **options: object) -> list[dict[str, Any]]:
        return self.below(self._strip_protocol(path))

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: object) -> bytes:
        return self.part(self._strip_protocol(path), start, end)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> _File:
        options.pop("autocommit", None)
        return _File(self, path, mode, **options)


KINDS = (OneByOne, AtOnce)


def register() -> None:
    """Let fsspec know both, without objects."""
    for kind in KINDS:
        kind.objects.clear()
        kind.requests.clear()
        fsspec.register_implementation(kind.protocol, kind, clobber=True)
