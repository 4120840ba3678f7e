"""The folders of the cache: which one a version of a dataset has, and the one to use while its server is away."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import platform
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lmdbloader.base import system
from lmdbloader.base.arguments import path_text
from lmdbloader.base.disk_errors import explain_full_disk
from lmdbloader.base.user_cache import cache_folder
from lmdbloader.errors import FormatError, OptionError
from lmdbloader.format.layout import REMOTE_FILE
from lmdbloader.format.manifest import MAX_MANIFEST_NBYTES, Manifest, parse_manifest
from lmdbloader.store.remote.parts import data_nbytes
from lmdbloader.store.remote.pieces import LAYOUT, holds_all
from lmdbloader.store.remote.service import Service

# The name of the manifest's copy in the cache, where it must not make the folder look like a complete dataset.
MANIFEST_NAME = "manifest.remote.json"
# A file system where the status of a file may be this old has a server: other machines may have the folder, too.
_OF_SERVERS_SECONDS = 60.0
_MOST_NBYTES = 2**20


@dataclass(frozen=True, slots=True)
class Copy:
    """A dataset of which every byte is cached.

    Attributes:
        folder: Of its manifest, its index and its pieces.
        version: As the service said when it was opened last.
        manifest: Its manifest.
    """

    folder: Path
    version: str
    manifest: Manifest


def root_of(cache_dir: str | os.PathLike[str] | None, url: str) -> Path:
    """Return the folder of all cached datasets, which may be missing.

    Raises:
        OptionError: The user has no home, and no folder is given.
    """
    if cache_dir is not None:
        return Path(path_text("cache_dir", cache_dir)).absolute()
    own = cache_folder()
    if own is None:
        raise OptionError(f"{url}: there is no home folder to cache it in. Write cache_dir=FOLDER.")
    return own / "remote"


def make_folder(root: Path, service: Service, version: str, manifest: Manifest) -> Path:
    """Return the folder of one version of a dataset, made if it is missing.

    Raises:
        OSError: It cannot be made.
    """
    with explain_full_disk(root):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = root / _name_of(root, service, version, manifest)
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def write_facts(folder: Path, service: Service, version: str) -> None:
    """Note what a folder holds, and that the server has just said so."""
    facts = {"url": _public(service.url), "endpoint": service.endpoint, "version": version}
    put(folder / REMOTE_FILE, json.dumps(facts, indent=2).encode())
    with suppress(OSError):  # the folder is that of another user
        os.utime(folder / REMOTE_FILE)


def last_copy(root: Path, service: Service) -> Copy | None:
    """Return what is cached of the version of a dataset that the server stated last, None unless all of it is.

    An older version is not considered: the server said that it had been replaced.
    """
    found = [facts for folder in root.glob(f"{glob.escape(_prefix(service.url))}-*") if (facts := _facts(folder))]
    me = [_public(service.url), service.endpoint]
    mine = [(at, folder, version) for at, folder, *whose, version in found if whose == me]
    if not mine:
        return None
    _, folder, version = max(mine)
    try:
        with open(folder / MANIFEST_NAME, "rb") as file:
            manifest = parse_manifest(file.read(MAX_MANIFEST_NBYTES + 1), service.url)
        has_index = os.stat(folder / manifest.index_file).st_size == manifest.sizes["index_nbytes"]
        if has_index and folder.name == _name_of(root, service, version, manifest):
            return Copy(folder, version, manifest) if holds_all(folder, data_nbytes(manifest)) else None
    except (OSError, FormatError):
        pass
    return None


def put(path: Path, data: bytes) -> None:
    """Write a file in one step, unless it has this content: processes that open a dataset together write the same."""
    try:
        if path.read_bytes() == data:
            return
    except FileNotFoundError:
        pass
    import tempfile

    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
        try:
            file.write(data)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _facts(folder: Path) -> tuple[int, Path, str, str, str] | None:
    """Return when a folder was opened last with its server, the folder, and its URL, endpoint and version."""
    path = folder / REMOTE_FILE
    try:
        with open(path, "rb") as file:
            facts = json.loads(file.read(_MOST_NBYTES))
        return path.stat().st_mtime_ns, folder, str(facts["url"]), str(facts["endpoint"]), str(facts["version"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _public(url: str) -> str:
    """Return a URL without a user's name and password, which do not belong on a disk.

    >>> _public("https://me:secret@host/a/train.lmdb"), _public("s3://bucket/a@b")
    ('https://host/a/train.lmdb', 's3://bucket/a@b')
    """
    scheme, separator, rest = url.partition("://")
    server, slash, path = rest.partition("/")
    return f"{scheme}{separator}{server.rpartition('@')[2]}{slash}{path}"


def _prefix(url: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", url.rpartition("/")[2])[:60] or "dataset"


def _name_of(root: Path, service: Service, version: str, manifest: Manifest) -> str:
    key = [
        service.url, service.endpoint, data_nbytes(manifest), version, manifest.manifest_digest, _machine(root), LAYOUT,
    ]  # fmt: skip
    digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=10).hexdigest()
    return f"{_prefix(service.url)}-{digest}"


def _machine(folder: Path) -> str:
    """Return an identifier of this machine if the folder is on a network mount; "" on a local disk.

    The states of pieces are in a shared map, of which machines would not see each other's changes.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        settling = system.settling_seconds(descriptor)
    finally:
        os.close(descriptor)
    return "" if settling is not None and settling < _OF_SERVERS_SECONDS else system.machine_id() or platform.node()
