"""The manifest of data and index files that are complete: their digests and sizes."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from lmdbloader.format.digests import digest_of_file, read_digest
from lmdbloader.format.manifest import Description, Manifest
from lmdbloader.store.diskerrors import naming
from lmdbloader.store.index import Spool, content_digest, digest_columns
from lmdbloader.store.opening import map_file


def make_manifest(description: Description, spool: Spool, index: Path, data: Path) -> Manifest:
    """Return the manifest of a dataset.

    Args:
        description: What of it does not follow from the files.
        spool: The index's columns.
        index: index.arrow, as the spool has written it.
        data: data.mdb, to which nothing is added any more.

    Raises:
        OSError: A file cannot be read.
    """
    content = map_file(index)
    descriptor = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with naming(data):
            data_digest = read_digest(descriptor, description.digest)
    finally:
        os.close(descriptor)
    return description.manifest(
        num_samples=spool.num_samples,
        sizes={
            "payload_nbytes": spool.total("stored_nbytes"),
            "raw_nbytes": spool.total("raw_nbytes"),
            "data_nbytes": data.stat().st_size,
            "index_nbytes": len(content),
        },
        content_digest=content_digest(
            digest_columns(pa.ipc.open_file(pa.py_buffer(content)).get_batch(0)), description.digest
        ),
        index_digest=digest_of_file(content, description.digest),
        data_digest=data_digest,
    )
