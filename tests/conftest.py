"""What every test stands on: real photographs in a folder, quiet hypothesis settings, and a cache folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# A deadline measures the machine's other work, not the code.
settings.register_profile("lmdbloader", deadline=None, print_blob=True)
settings.load_profile("lmdbloader")

PHOTOGRAPHS = ("astronaut", "cat", "coffee", "rocket", "retina", "hubble_deep_field", "immunohistochemistry", "camera")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Point the user's cache folder at an empty one, so that no test reads or leaves measurements of this machine."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of eight small real photographs, 288 x 192 RGB PNG, cut from those that scikit-image carries."""
    import skimage.data
    from PIL import Image

    folder = tmp_path_factory.mktemp("photographs") / "photos"
    folder.mkdir()
    for name in PHOTOGRAPHS:
        photograph = Image.fromarray(getattr(skimage.data, name)()).convert("RGB")
        left, top = (photograph.width - 288) // 2, (photograph.height - 192) // 2
        photograph.crop((left, top, left + 288, top + 192)).save(folder / f"{name}.png")
    return folder
