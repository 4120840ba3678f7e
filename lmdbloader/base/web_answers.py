"""Answers of web servers that are read no further than they were asked for, for fsspec's file system of HTTP."""

from __future__ import annotations

import re
from typing import Any

import aiohttp

# Of an answer to a request without a range, such as a page with links to a folder's files.
_MOST_NBYTES = 2**28


class TooLongError(OSError):
    """A server sends more bytes than were asked for."""


class BoundedResponse(aiohttp.ClientResponse):
    """An answer whose `read` ends at the range that was asked for: a server may send without end."""

    async def read(self) -> bytes:
        """Return the body.

        Raises:
            TooLongError: It is longer than the range.
        """
        if self._body is None:
            most = _nbytes_of(self.request_info.headers.get("Range", ""))
            parts: list[bytes] = []
            left = most + 1
            while left and (part := await self.content.read(left)):
                parts.append(part)
                left -= len(part)
            if not left:
                self.close()
                if self.status < 400:  # else what the server says about its error is cut short
                    raise TooLongError(
                        f"the server sends more than the {most} bytes that were asked for: the file was changed, or "
                        "the server does not send parts of files; copy it to a disk first"
                    )
            self._body = b"".join(parts)
        return await super().read()


def _nbytes_of(requested: str) -> int:
    """Return the length of a range.

    >>> _nbytes_of("bytes=10-19")
    10
    """
    found = re.fullmatch(r"bytes=(\d+)-(\d+)", requested)
    return _MOST_NBYTES if found is None else int(found[2]) - int(found[1]) + 1


def bounded(client: Any) -> dict[str, Any]:
    """Return options of fsspec's file system of HTTP with answers that are bounded, given those of its client."""
    return {"client_kwargs": {**(client or {}), "response_class": BoundedResponse}}
