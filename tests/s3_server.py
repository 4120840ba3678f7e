"""A small server that speaks as much of S3 as a dataset takes, and one that serves files without parts of them."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

Buckets = dict[str, dict[str, bytes]]
# So few that listing anything takes several requests.
PAGE = 3


class Handler(BaseHTTPRequestHandler):
    """ListObjectsV2, HeadObject and GetObject, with ranges; PutObject, also in parts, and DeleteObject."""

    protocol_version = "HTTP/1.1"
    buckets: Buckets
    requests: list[str]

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        url = urlsplit(self.path)
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        self.requests.append(f"{self.command} {self.path} {self.headers.get('Range', '')}".rstrip())
        objects = self.buckets.get(bucket)
        if objects is None:
            self._error(404, "NoSuchBucket")
        elif not key:
            query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
            self._send(200, self._list(objects, query), {"Content-Type": "application/xml"})
        elif key not in objects:
            self._error(404, "NoSuchKey")
        else:
            data, headers = objects[key], {"ETag": f'"{hash(objects[key]) & 0xFFFFFFFF:08x}"', "Accept-Ranges": "bytes"}
            headers["Last-Modified"] = "Mon, 01 Jan 2024 00:00:00 GMT"
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if asked is None:
                self._send(200, data, headers)
                return
            first, last = int(asked[1]), min(int(asked[2] or len(data) - 1), len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            self._send(206, data[first : last + 1], headers)

    def do_PUT(self) -> None:
        objects, key, query = self._written()
        if objects is None:
            return
        if "partNumber" in query:
            key = f"{query['uploadId']}-{int(query['partNumber']):05}"
        objects[key] = self.rfile.read(int(self.headers["Content-Length"]))
        self._send(200, b"", {"ETag": '"0"'})

    def do_POST(self) -> None:
        objects, key, query = self._written()
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if objects is None:
            return
        if "uploads" in query:
            text = f"<InitiateMultipartUploadResult><UploadId>parts/{key}</UploadId></InitiateMultipartUploadResult>"
        else:
            parts = sorted(name for name in objects if name.startswith(f"{query['uploadId']}-"))
            objects[key] = b"".join(objects.pop(name) for name in parts)
            text = "<CompleteMultipartUploadResult><ETag>0</ETag></CompleteMultipartUploadResult>"
        self._send(200, text.encode(), {"Content-Type": "application/xml"})

    def do_DELETE(self) -> None:
        objects, key, _ = self._written()
        if objects is not None:
            objects.pop(key, None)
            self._send(204, b"", {})

    def _written(self) -> tuple[dict[str, bytes] | None, str, dict[str, str]]:
        """Return the bucket that a request changes, the key and the query; no bucket if the request was refused."""
        url = urlsplit(self.path)
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        self.requests.append(f"{self.command} {self.path}")
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        if bucket not in self.buckets:
            self._error(404, "NoSuchBucket")
        return self.buckets.get(bucket), key, query

    def _list(self, objects: dict[str, bytes], query: dict[str, str]) -> bytes:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        found: dict[str, str] = {}
        for key, data in sorted(objects.items()):
            if not key.startswith(prefix):
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folder = prefix + rest.partition(delimiter)[0] + delimiter
                found[folder] = f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
            else:
                found[key] = (
                    f"<Contents><Key>{escape(key)}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
                    f"<ETag>&quot;0&quot;</ETag><Size>{len(data)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
                )
        after = query.get("continuation-token", "")
        items = [(key, text) for key, text in found.items() if key > after]
        page, more = items[:PAGE], len(items) > PAGE
        token = f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>" if more else ""
        body = "".join(text for _, text in page)
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<IsTruncated>{str(more).lower()}</IsTruncated><KeyCount>{len(page)}</KeyCount>{token}{body}"
            "</ListBucketResult>"
        ).encode()

    def _error(self, status: int, code: str) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
        self._send(status, body.encode(), {"Content-Type": "application/xml"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class NoRanges(Handler):
    """Plain files; whoever asks for a part gets the whole, as from Python's own http.server, and folders list links."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path).lstrip("/")
        self.requests.append(f"{self.command} {self.path}")
        objects = self.buckets["files"]
        if path in objects:
            self._send(200, objects[path], {})
            return
        path = path.rstrip("/") + "/"
        below = {key[len(path) :].partition("/") for key in objects if key.startswith(path)}
        links = sorted({name + slash for name, slash, _ in below})
        page = "".join(f'<a href="{link}">{link}</a>' for link in ("?C=N", "../", *links))
        self._send(200 if links else 404, page.encode(), {"Content-Type": "text/html"})


@contextmanager
def serve(buckets: Buckets, handler: type[Handler] = Handler) -> Iterator[tuple[str, list[str]]]:
    """Serve buckets (objects by bucket and key); yield the server's URL and the list of its requests."""
    requests: list[str] = []
    own = type("OwnHandler", (handler,), {"buckets": buckets, "requests": requests})
    with ThreadingHTTPServer(("127.0.0.1", 0), own) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", requests
        finally:
            server.shutdown()
            thread.join()
