"""A finished dataset is uploaded to a URL, its manifest last, so that nobody opens an incomplete one.

The service needs no locks and no renaming. Until the manifest is there, the file UPLOAD_FILE has its content: it says
which dataset the other files belong to. Files of another one are removed before it is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from lmdbloader.base.option_names import option
from lmdbloader.base.progress import ProgressLine
from lmdbloader.base.text import command, plain
from lmdbloader.base.units import show_nbytes
from lmdbloader.errors import CorruptError, DestinationError, DiskError, FormatError
from lmdbloader.format.digests import Digest, digest_from_disk
from lmdbloader.format.layout import LEFT_OUT_FILE, MANIFEST_FILE, SKIPPED_FILE, UPLOAD_FILE
from lmdbloader.format.manifest import Manifest
from lmdbloader.store import read_manifest
from lmdbloader.store.remote.opening import describe
from lmdbloader.store.remote.service import Service, wrong_length
from lmdbloader.store.writing.work import others_of


def upload(
    folder: Path,
    manifest: Manifest,
    url: str,
    *,
    overwrite: bool,
    check: bool,
    progress: bool,
    log: Callable[[str], None],
) -> str:
    """Upload a dataset, given its manifest, unless it is there; return the URL. Options and errors as `stage`."""
    service = Service(url)
    url, sizes = service.url, service.sizes()
    there = _manifest_at(service, sizes)
    # Only a dataset of this package, or a part of one, is ever removed.
    if others := others_of(sizes) or ([] if there is not None or UPLOAD_FILE in sizes else sorted(sizes)):
        raise DestinationError(
            f"{url}: holds {others[0]!r}, which is of no dataset that this release knows. Choose another URL."
        )
    has_grown = there is not None and there.parts == manifest.parts[: len(there.parts)]
    if sizes and not (overwrite or has_grown):
        what = "a dataset is there already" if MANIFEST_FILE in sizes else "a part of another dataset is there"
        raise DestinationError(f"{url}: {what}. Choose another URL, or overwrite it ({option('overwrite', True)}).")
    known = {} if there is None else there.files
    kept = {name for name, file in manifest.files.items() if known.get(name) == file and sizes.get(name) == file[1]}
    if check and kept:
        log(plain(f"{url}: reading the copy that is there"))
        kept = {name for name in kept if _digest_at(service, name) == manifest.files[name][0]}
    missing = {name: file for name, file in manifest.files.items() if name not in kept}
    if MANIFEST_FILE in sizes and there == manifest:
        if not missing:
            log(plain(f"{url}: staged already"))
            return url
        log(plain(f"{url}: a copy is there, but damaged; it is uploaded again"))
    nbytes = sum(size for _, size in missing.values())
    log(plain(f"{url}: uploading {show_nbytes(nbytes)} from {folder}"))
    with ProgressLine("checking", nbytes, "B", shown=progress) as bar:
        for name, (expected, size) in missing.items():  # before anything is removed at the URL
            if (found := digest_from_disk(folder / name)) != expected:
                reason = f"its digest is {found}, expected {expected}: it is damaged, or was changed"
                raise CorruptError(f"{folder / name}: {reason}. {command('verify', folder)} finds the damage.")
            bar.update(size)
    if sizes:  # of what an interruption leaves, the dataset is known
        service.put(UPLOAD_FILE, b"" if there is None else there.to_json())
    for name in sorted(sizes.keys() - kept - {UPLOAD_FILE}, key=lambda name: name != MANIFEST_FILE):
        service.remove(name)
    service.put(UPLOAD_FILE, manifest.to_json())
    with ProgressLine("uploading", nbytes, "B", shown=progress) as bar:
        for name in missing:
            service.put(name, folder / name, bar.update)
    for name in (SKIPPED_FILE, LEFT_OUT_FILE):
        if (folder / name).is_file():
            service.put(name, folder / name)
    if read_manifest(folder) != manifest:
        raise DestinationError(f"{folder}: was changed by another process meanwhile. Upload it again.")
    _finish(service, manifest)
    log(plain(f"{url}: uploaded"))
    return url


def _manifest_at(service: Service, sizes: Mapping[str, int | None]) -> Manifest | None:
    """Return the manifest of the files at a URL, of a complete dataset or not; None if it is not known."""
    with contextlib.suppress(FormatError):
        for name in (MANIFEST_FILE, UPLOAD_FILE):
            if name in sizes:
                return describe(service, name)[0]
    return None


def _digest_at(service: Service, name: str) -> str:
    digest = Digest()
    for piece in service.pieces(name):
        digest.update(piece)
    return str(digest)


def _finish(service: Service, manifest: Manifest) -> None:
    """Write the manifest, if all files have arrived; another process may have uploaded the same dataset."""
    sizes = service.sizes()
    if _manifest_at(service, sizes) != manifest:
        raise DestinationError(f"{service.url}: another process has begun to upload there. Upload it again.")
    for name, (_, nbytes) in manifest.files.items():
        if sizes.get(name) != nbytes:
            raise wrong_length(service.url, name, sizes.get(name) or 0, nbytes)
    service.put(MANIFEST_FILE, manifest.to_json())
    with contextlib.suppress(DiskError):  # without the right to remove: the file does no harm
        service.remove(UPLOAD_FILE)
