"""`lmdbloader.verify`: checks all of a dataset, or of a set of parts."""

from __future__ import annotations

import os
from collections.abc import Callable

from lmdbloader.base.arguments import local_path
from lmdbloader.errors import CorruptError, FormatError
from lmdbloader.store.care.dataset_check import check_dataset, is_foreign
from lmdbloader.store.care.findings import Verification, advice_for
from lmdbloader.store.care.set_check import check_set, check_set_without_manifest, parts_there
from lmdbloader.store.opening import read_manifest


def verify(path: str | os.PathLike[str], *, progress: Callable[[int], None] = lambda done: None) -> Verification:
    """Check all of a dataset, in any state; nothing is changed.

    Of a set, every part is checked as a dataset, and the index and the manifest of the set are compared with them.

    Args:
        path: The dataset's.
        progress: Called with the number of samples checked since the last call.

    Returns:
        All faults, and the remedy.

    Raises:
        NotFoundError: There is nothing at `path`.
        FormatError: It is not a finished dataset of this format version, or a newer release made it and this one
            cannot check all of it.
    """
    folder = local_path("path", path).absolute()
    try:
        manifest = read_manifest(path)
    except (FormatError, CorruptError):
        if is_foreign(folder):
            raise
        manifest = None
    if manifest is not None and manifest.parts:
        return check_set(folder, manifest, progress)
    if manifest is None and parts_there(folder):
        return check_set_without_manifest(folder, progress)
    found = check_dataset(folder, progress, given=path)
    return found.result(advice_for(found))
