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


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have the kernels compiled and kept, so that no process that a test starts has to say that it is compiling."""
    import numpy as np
    from PIL import Image

    import lmdbloader
    from lmdbloader.transforms import RandomCrop

    folder = tmp_path_factory.mktemp("compiled")
    (folder / "photos").mkdir()
    shades = np.arange(40 * 40 * 3, dtype=np.uint8).reshape(40, 40, 3)
    Image.fromarray(shades).save(folder / "photos" / "a.png")
    lmdbloader.convert(folder / "photos", folder / "pairs", patch_size=16, scale=2, codec="lz4", workers=1)
    lmdbloader.verify(folder / "pairs")
    ds = lmdbloader.LMDBDataset(folder / "pairs")
    next(iter(lmdbloader.Loader(ds, 2, transforms=[RandomCrop(8)])))
    (folder / "jpegs").mkdir()
    Image.fromarray(shades).save(folder / "jpegs" / "a.jpg")
    for name, options in (("kept", {}), ("made", {"write_mode": "jpg", "max_resolution": 30, "subset": 1})):
        lmdbloader.convert(folder / "jpegs", folder / name, workers=1, **options)  # type: ignore[arg-type]
        assert lmdbloader.LMDBDataset(folder / name)[0].image.shape[0] == 3
    large = np.resize(shades, (400, 400, 3))
    lmdbloader.write([{"image": large, "more": b"bytes"}], folder / "large", codec="lz4")
    whole = lmdbloader.LMDBDataset(folder / "large")
    assert whole[0].more == b"bytes"
    assert whole.crop(0, top=1, left=1, height=2, width=2).shape == (3, 2, 2)


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
