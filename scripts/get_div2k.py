"""Fetches and unpacks DIV2K, the usual super-resolution photographs; an interrupted download resumes."""

from __future__ import annotations

import argparse
import http.client
import os
import re
import shutil
import stat
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

BASE_URL = "https://data.vision.ee.ethz.ch/cvl/DIV2K/"
# Name of a part -> its archive, and the folder inside the archive that is the part.
PARTS = {
    "train_hr": ("DIV2K_train_HR.zip", "DIV2K_train_HR"),
    "valid_hr": ("DIV2K_valid_HR.zip", "DIV2K_valid_HR"),
    **{
        f"{split}_x{scale}": (f"DIV2K_{split}_LR_bicubic_X{scale}.zip", f"DIV2K_{split}_LR_bicubic/X{scale}")
        for split in ("train", "valid")
        for scale in (2, 3, 4)
    },
}
# As people know them: by the names of the archives, in any case.
_NAMES = {
    spelling.casefold(): name
    for name, (archive, _) in PARTS.items()
    for spelling in (name, archive.removesuffix(".zip"), archive.removesuffix(".zip").removeprefix("DIV2K_"))
}
CHUNK_NBYTES = 1 << 20
ATTEMPTS = 5


class DownloadError(Exception):
    """The download cannot continue; the message has the reason and the remedy."""


# --- Downloading ---


class Part(NamedTuple):
    """The part of a download on disk: `NAME.part`, with the version of the file in `NAME.part.etag`."""

    path: Path
    etag_path: Path

    @classmethod
    def of(cls, destination: Path) -> Part:
        return cls(
            destination.with_name(destination.name + ".part"), destination.with_name(destination.name + ".part.etag")
        )

    def nbytes(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def etag(self) -> str:
        """Return the validator to send with If-Range, or "" where the server gave none that allows it."""
        return self.etag_path.read_text().strip() if self.etag_path.exists() else ""

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self.etag_path.unlink(missing_ok=True)


def download(
    url: str, destination: Path, *, timeout: float = 30.0, attempts: int = ATTEMPTS, pause: float = 2.0
) -> None:
    """Fetch a file over HTTP, resuming an earlier partial download.

    The bytes go to `NAME.part`, which becomes NAME when it is complete. It is continued only if the server confirms
    that its file is still the same one (If-Range); otherwise the download starts over.

    Args:
        url: http or https.
        destination: The file to make. If it exists, nothing is done.
        timeout: Seconds without a byte after which a connection counts as dead.
        attempts: Connections in a row that may break without bringing a byte.
        pause: Seconds before the next connection; twice as long after each one that brought nothing.

    Raises:
        DownloadError: The address is wrong, the server refuses, or the connection keeps breaking.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise DownloadError(f"{url}: not an http or https address.")
    if destination.exists():
        return
    part = Part.of(destination)
    failures = 0
    while True:
        before = part.nbytes()
        try:
            _continue_download(url, part, timeout=timeout)
            break
        except urllib.error.HTTPError as error:
            with error:
                if error.code < 500 and error.code not in (408, 429):
                    raise DownloadError(f"{url}: the server answers {error.code} {error.reason}.") from error
                problem: Exception = error
        except (http.client.HTTPException, OSError) as error:
            problem = error
        failures = 0 if part.nbytes() > before else failures + 1
        if failures >= attempts:
            raise DownloadError(
                f"{url}: gave up after {attempts} connections that brought nothing ({_reason(problem)}). "
                f"{part.nbytes():,} bytes are kept; run the same command again to continue."
            )
        time.sleep(pause * 2 ** max(failures - 1, 0))
    os.replace(part.path, destination)
    part.discard()


def _continue_download(url: str, part: Part, *, timeout: float) -> None:
    """Make one connection and append its data to the part; returns when the file is complete."""
    offset = part.nbytes() if part.etag() else 0
    headers = {"User-Agent": "lmdbloader-get-div2k", "Accept-Encoding": "identity"}
    if offset:
        headers |= {"Range": f"bytes={offset}-", "If-Range": part.etag()}
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        # The file ends at or before our last byte: the part is complete, or the file has become shorter.
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and offset:
            error.close()
            if _total_nbytes(error.headers.get("Content-Range", "")) == offset:
                return
            part.discard()
            return _continue_download(url, part, timeout=timeout)
        raise
    with response:
        if response.status == http.HTTPStatus.PARTIAL_CONTENT:
            if not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
                raise DownloadError(
                    f"{url}: asked for bytes from {offset}, got {response.headers.get('Content-Range')}."
                )
            total = _total_nbytes(response.headers["Content-Range"])
        else:
            offset = 0
            total = int(response.headers["Content-Length"]) if "Content-Length" in response.headers else None
            part.discard()
            part.etag_path.write_text(_validator(response.headers))
        received = _append(response, part.path, offset=offset, total=total, label=url.rsplit("/", 1)[-1])
    if total is not None and received < total:
        raise ConnectionError(f"the connection ended after {received:,} of {total:,} bytes")
    if total is not None and received > total:
        part.discard()
        raise DownloadError(f"{url}: {received:,} bytes arrived, {total:,} were announced. Run the same command again.")


def _append(response: http.client.HTTPResponse, path: Path, *, offset: int, total: int | None, label: str) -> int:
    """Write the response's data after the first `offset` bytes of the file; returns its size."""
    with (
        open(path, "ab") as file,
        tqdm(total=total, initial=offset, unit="B", unit_scale=True, desc=label, disable=None, leave=True) as bar,
    ):
        while chunk := response.read(CHUNK_NBYTES):
            try:
                file.write(chunk)
            except OSError as error:
                raise DownloadError(f"{path}: {error.strerror}. What was downloaded is kept.") from error
            bar.update(len(chunk))
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def _validator(headers: http.client.HTTPMessage) -> str:
    """Return the value for If-Range: a strong ETag, else the time of the last change, else ""."""
    etag = headers.get("ETag", "")
    return etag if etag and not etag.startswith("W/") else headers.get("Last-Modified", "")


def _total_nbytes(content_range: str) -> int | None:
    """Return the file's size from a Content-Range header.

    >>> _total_nbytes("bytes 5-9/10"), _total_nbytes("bytes */10"), _total_nbytes("bytes 5-9/*")
    (10, 10, None)
    """
    match = re.fullmatch(r"bytes (?:\d+-\d+|\*)/(\d+)", content_range)
    return int(match[1]) if match else None


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error) or type(error).__name__


# --- Unpacking ---


def unpack(archive: Path, folder: str, out: Path) -> Path:
    """Unpack one folder of a zip archive to the same place under `out`.

    Everything is first unpacked next to it and moved once it is complete, every file checked by the archive's CRC.

    Args:
        archive: The zip file.
        folder: The folder inside it, such as "DIV2K_train_LR_bicubic/X2".
        out: The folder to unpack into.

    Returns:
        The unpacked folder. If it exists already, nothing is done.

    Raises:
        DownloadError: The archive is damaged (then it is deleted), does not hold the folder, holds a path that would
            leave `out`, or does not fit on the disk.
    """
    target = out / folder
    if target.exists():
        return target
    scratch = out / f".unpacking-{archive.stem}"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        with _opened_zip(archive) as zipped:
            members = _safe_members(zipped, archive)
            _check_room(members, out)
            for member in tqdm(members, unit="file", desc=f"unpack {archive.name}", disable=None, leave=True):
                zipped.extract(member, scratch)
        if not (scratch / folder).is_dir():
            raise DownloadError(f"{archive}: holds no folder {folder}; it is not the archive that was expected.")
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(scratch / folder, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


@contextmanager
def _opened_zip(archive: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(archive) as zipped:
            yield zipped
    except (zipfile.BadZipFile, EOFError, RuntimeError, zlib.error) as error:
        archive.unlink(missing_ok=True)
        raise DownloadError(
            f"{archive}: the archive was damaged ({error}) and is deleted; run the same command to fetch it again."
        ) from error
    except OSError as error:
        raise DownloadError(f"{archive}: cannot be unpacked: {error.strerror or error}.") from error


def _safe_members(zipped: zipfile.ZipFile, archive: Path) -> list[zipfile.ZipInfo]:
    """Return the members that are files, or refuse all of them if one would land outside the folder or is a link."""
    members = zipped.infolist()
    for member in members:
        parts = re.split(r"[/\\]", member.filename)
        kind = stat.S_IFMT(member.external_attr >> 16)
        if parts[0] == "" or ".." in parts or ":" in member.filename or kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise DownloadError(
                f"{archive}: refused, its member {member.filename!r} leads out of the folder or is a link."
            )
    return [member for member in members if not member.is_dir()]


def _check_room(members: Sequence[zipfile.ZipInfo], out: Path) -> None:
    needed, there = sum(member.file_size for member in members), shutil.disk_usage(out)
    if there.total and needed > there.free:  # some file systems state no size
        raise DownloadError(f"{out}: unpacking needs {needed / 1e9:.1f} GB, {there.free / 1e9:.1f} GB are free.")


# --- The command ---


def get_part(name: str, out: Path, *, base_url: str, timeout: float, keep_zip: bool) -> Path:
    """Download and unpack one part; returns its folder. A part whose folder exists costs nothing."""
    archive_name, folder = PARTS[name]
    archive = out / archive_name
    if not (out / folder).exists():
        download(base_url.rstrip("/") + "/" + archive_name, archive, timeout=timeout)
        unpack(archive, folder, out)
    if not keep_zip:
        archive.unlink(missing_ok=True)
    return out / folder


def part_named(text: str) -> str:
    """Return the name of a part as written on the command line: `train_HR`, `DIV2K_train_LR_bicubic_X2` or `train_x2`.

    Any other text is returned as it is.
    """
    return _NAMES.get(text.casefold().removesuffix(".zip"), text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Then: lmdbloader convert OUT/DIV2K_train_HR train.lmdb --scale 2",
    )
    parser.add_argument(
        "out", type=Path, metavar="OUT", help="folder to download into and to unpack in; made if absent"
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        type=part_named,
        choices=[*PARTS, "all"],
        default=["train_hr", "valid_hr"],
        metavar="PART",
        help=f"which archives: {', '.join(PARTS)}, or all "
        "(default: train_hr valid_hr, 4 GB; LR images can be made from them). The names of the archives mean the same: "
        "train_HR, train_LR_bicubic_X2",
    )
    parser.add_argument("--base-url", default=BASE_URL, help="where the archives are (default: %(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=30.0, help="seconds without a byte before reconnecting (default: 30)"
    )
    parser.add_argument("--keep-zip", action="store_true", help="keep the archives after unpacking")
    options = parser.parse_args(argv)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        for name in PARTS if "all" in options.parts else dict.fromkeys(options.parts):
            folder = get_part(
                name, options.out, base_url=options.base_url, timeout=options.timeout, keep_zip=options.keep_zip
            )
            print(f"{name}: {folder}")
    except (DownloadError, OSError) as error:
        print(f"get_div2k: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nget_div2k: stopped; run the same command again to continue.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
