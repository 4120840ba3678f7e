"""BasicSR's LMDB: a PNG file a key in an LMDB for each half, decoded by OpenCV, as its PairedImageDataset does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch_loader import SETTINGS as LOADER
from torch_loader import Stored, open_loader, pixel_fields, write_labels

NAME = "BasicSR's LMDB"
PACKAGES = ("lmdb", "opencv-python-headless")
JOBS = ("pairs",)
NOT = {"crops": "a format of pairs, without labels", "crops-jpeg": "a format of pairs, without labels"}
SETTINGS = f"PNG at compression level 1, opened once in each worker, cv2.imdecode in one thread; {LOADER}"


def write(job: Any, samples: Any, folder: Path) -> None:
    """Write an LMDB for each half."""
    import cv2
    import lmdb

    for name, column in pixel_fields(samples).items():
        environment = lmdb.open(str(folder / f"{name}.lmdb"), map_size=2 * column.nbytes + len(column) * 8192 + 2**22)
        lines = []
        with environment.begin(write=True) as transaction:
            for number, pixels in enumerate(column):
                data = cv2.imencode(".png", pixels[:, :, ::-1], [cv2.IMWRITE_PNG_COMPRESSION, 1])[1]
                transaction.put(f"{number:08d}".encode("ascii"), data.tobytes())
                lines.append(f"{number:08d}.png ({pixels.shape[0]},{pixels.shape[1]},3) 1\n")
        environment.close()
        (folder / f"{name}.lmdb" / "meta_info.txt").write_text("".join(lines))
    write_labels(samples, folder)


class _Png(Stored):
    _transactions: dict[str, Any] | None = None

    def __getitem__(self, index: int) -> dict[str, Any]:
        import cv2
        import lmdb

        if self._transactions is None:
            cv2.setNumThreads(1)
            self._transactions = {
                name: lmdb.open(
                    f"{self.folder}/{name}.lmdb", readonly=True, lock=False, readahead=False, meminit=False
                ).begin(buffers=True)
                for name in self.job.out
            }
        fields = {}
        for name, transaction in self._transactions.items():
            data = np.frombuffer(transaction.get(f"{index:08d}".encode("ascii")), np.uint8)
            fields[name] = cv2.imdecode(data, cv2.IMREAD_COLOR)[:, :, ::-1]
        return self.sample(index, fields)


def open(job: Any, folder: Path, batch_size: int, workers: int, seed: int) -> Any:
    """Open both LMDBs."""
    return open_loader(_Png(job, folder), batch_size, workers, seed)
