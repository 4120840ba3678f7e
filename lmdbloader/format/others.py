"""Recognises what is at a path instead of a dataset, and has the line that makes a dataset of it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from lmdbloader.base.suggestions import nearest
from lmdbloader.base.text import first_of
from lmdbloader.format.layout import DATA_FILE, INDEX_FILE, MANIFEST_FILE

# So many entries of a folder are examined: enough to recognise it, and quick on a file server.
_MOST_ENTRIES, _MOST_FOLDERS, _MOST_LEVELS = 200, 20, 3

# Names in the folder of a set: its parts, and its index.
_A_PART, _OF_A_SET = re.compile(r"part-[0-9]{5,}"), re.compile(r"index-[0-9]{5,}\.arrow")

# Files by suffix: their kind, and the line that makes a dataset. {path} and {out} are for Python, {file} and {name}
# for a shell.
_FILES = {
    ".beton": "is a dataset of FFCV. Convert the images that it was made from: `lmdbloader convert IMAGES {name}`",
    ".tar": "is a tar. Convert it: `lmdbloader convert {file} {name}`",
    **dict.fromkeys(
        (".zip", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar"),
        "is an archive. Unpack it, and convert the folder: `lmdbloader convert FOLDER {name}`",
    ),
    **dict.fromkeys(
        (".h5", ".hdf5"),
        "is an HDF5 file. Write its samples: "
        'lmdbloader.write(({"image": image} for image in h5py.File({path})["images"]), {out})',
    ),
    ".npy": "is a file of NumPy. Write its samples: "
    'lmdbloader.write(({"image": image} for image in numpy.load({path})), {out})',
    ".npz": "is a file of NumPy. Write its samples: "
    'lmdbloader.write(({"image": image} for image in numpy.load({path})["images"]), {out})',
    ".parquet": "is a Parquet file. Write its samples: "
    'lmdbloader.write(datasets.load_dataset("parquet", data_files={path}, split="train"), {out})',
    ".arrow": "is an Arrow file. Write its samples: lmdbloader.write(datasets.Dataset.from_file({path}), {out})",
    **dict.fromkeys(
        (".pkl", ".pickle", ".pt", ".pth", ".tfrecord", ".rec", ".mds", ".mat"),
        "is a file of another library. Read it with that one, and write its samples: lmdbloader.write(samples, {out})",
    ),
    **dict.fromkeys(
        (".lmdb", ".mdb"),
        "is an LMDB that lmdbloader did not write. If its values are image files, convert it: "
        "`lmdbloader convert {file} {name}`",
    ),
}


def describe_file(path: Path) -> str:
    """Return what a file is and the line to write, as the end of a sentence; "" if unknown."""
    if path.name in (DATA_FILE, INDEX_FILE, MANIFEST_FILE) and is_dataset_folder(path.parent):
        whole = path.parent.parent
        if _A_PART.fullmatch(path.parent.name) and is_dataset_folder(whole):
            return (
                f"is a file of a part of a set. Open the set: LMDBDataset({str(whole)!r}), or this part alone: "
                f"LMDBDataset({str(path.parent)!r})"
            )
        return f"is a file of a dataset. Open its folder: LMDBDataset({str(path.parent)!r})"
    if _OF_A_SET.fullmatch(path.name) and is_dataset_folder(path.parent):
        return f"is a file of a set of parts. Open its folder: LMDBDataset({str(path.parent)!r})"
    text = _FILES.get(path.suffix.lower(), "")
    if not text and path.suffix.lower() in _image_suffixes():
        return f"is an image. Convert its folder: `lmdbloader convert {shlex.quote(str(path.parent))} train.lmdb`"
    return _filled(text, path)


def describe_folder(folder: Path) -> str:
    """Return what a folder is and the line to write, as the end of a sentence; "" if unknown."""
    with suppress(OSError):
        return _describe_folder(folder)
    return ""


def _describe_folder(folder: Path) -> str:
    names = _names(folder)
    datasets = [name for name in names if is_dataset_folder(folder / name)]
    if datasets:
        noun = "the datasets" if datasets[1:] else "the dataset"
        return f"holds {noun} {first_of(datasets)}. Write {str(folder / datasets[0])!r}"
    if DATA_FILE in names:
        return _filled(f"{_FILES['.lmdb']}, or both halves of pairs with `--hr` and `--lr`", folder)
    if "dataset_dict.json" in names:
        line = 'for name, split in datasets.load_from_disk({path}).items(): lmdbloader.write(split, f"{name}.lmdb")'
        return "is a dataset of Hugging Face. Write each split: " + line.replace("{path}", repr(str(folder)))
    if "dataset_info.json" in names or "state.json" in names:
        text = "is a dataset of Hugging Face. Write its samples: "
        return _filled(text + "lmdbloader.write(datasets.load_from_disk({path}), {out})", folder)
    found = [Path(name).suffix.lower() for name in names]
    if ".mds" in found:
        text = "is a dataset of MosaicML Streaming. Write its samples: "
        line = "lmdbloader.write(streaming.StreamingDataset(local={path}, batch_size=1), {out})"
        return _filled(text + line, folder)
    if ".tar" in found:
        return _filled("holds tars. Convert them: `lmdbloader convert {file} {name}`", folder)
    if any(suffix in _image_suffixes() for suffix in _suffixes_below(folder)):
        from lmdbloader.format.folder_names import is_split  # not needed to open a dataset

        splits = [name for name in names if is_split(name) and (folder / name).is_dir()]
        line = "`lmdbloader convert {file} {name}`" if not splits[1:] else "`lmdbloader convert {file} {name} --split`"
        return _filled(f"holds images. Convert them: {line}", folder)
    other = next((name for name in names if Path(name).suffix.lower() in _FILES), None)
    return "" if other is None else f"holds {other}, which {describe_file(folder / other)}"


def suggest_path(path: Path) -> str:
    """Return a sentence with the path that was probably meant, with a space before it; "" if none is known."""
    text = str(path)
    if collapsed := re.fullmatch(r"([a-z0-9]{2,}):/([^/].*)", text):
        return (
            f" A URL has two slashes, of which a Path keeps one: write the text {f'{collapsed[1]}://{collapsed[2]}'!r}."
        )
    if text.startswith("~"):
        with suppress(RuntimeError):
            return f" Only a shell expands ~: write {str(path.expanduser())!r}."
    with suppress(OSError):
        names = _names(path.parent)
        meant = f"{path.name}.lmdb" if f"{path.name}.lmdb" in names else nearest(path.name, names)
        if meant is not None:
            return f" Did you mean {str(path.with_name(meant))!r}?"
    return ""


def is_dataset_folder(folder: Path) -> bool:
    """Return whether a folder has the names of a dataset's files."""
    data = (folder / DATA_FILE,)
    return (folder / MANIFEST_FILE).is_file() and any(path.is_file() for path in data)


def _names(folder: Path) -> list[str]:
    """Return the names of some entries of a folder, sorted."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in islice(entries, _MOST_ENTRIES))


def _filled(text: str, path: Path) -> str:
    name = f"{path.stem or 'train'}.lmdb"
    if name == path.name:  # of an LMDB that is called so
        name = "train.lmdb" if path.name != "train.lmdb" else "new.lmdb"
    values = {"path": repr(str(path)), "out": repr(name), "file": shlex.quote(str(path)), "name": shlex.quote(name)}
    for key, value in values.items():
        text = text.replace(f"{{{key}}}", value)
    return text


def _suffixes_below(folder: Path) -> Iterator[str]:
    """Yield suffixes of files in a folder and some folders below it, those of upper levels first."""
    level = [folder]
    for _ in range(_MOST_LEVELS):
        below = []
        for place in level[:_MOST_FOLDERS]:
            with suppress(OSError), os.scandir(place) as entries:
                for entry in islice(entries, _MOST_ENTRIES):
                    if not entry.is_dir(follow_symlinks=False):
                        yield Path(entry.name).suffix.lower()
                    elif not entry.name.startswith("."):  # hidden ones are not converted
                        below.append(Path(entry.path))
        level = below


def _image_suffixes() -> frozenset[str]:
    from lmdbloader.images.decode import IMAGE_SUFFIXES  # not needed to open a dataset

    return IMAGE_SUFFIXES
