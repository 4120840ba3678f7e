"""The search of the documentation's site: what people look for, where they must find it, and the ranking in Python.

The theme's search is lunr in a worker. `Search` computes the same order from the same index without a browser;
`tests/test_docs.py` compares the two.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

# Each page, and what people look for who must find it among the first three.
_SOUGHT = {
    "installation": "install, pip, conda, wheel, Docker, Windows, macOS, aarch64, glibc",
    "pillow-simd": "pillow-simd",
    "faq": "FAQ, license, citation, cite, contributing",
    "troubleshooting": """
        troubleshooting, OOM, out of memory, deadlock, hang, hangs, freeze, bus error, shm, too many open files,
        MDB_MAP_FULL, MDB_READERS_FULL, NCCL timeout, killed, No space left on device, memory leak, fork,
        GLIBC_2.17, CUDA out of memory, DataLoader worker killed, crash, segmentation fault, command not found,
        different results
    """,
    "how-to/clusters": "Slurm, sbatch, NFS, Lustre, HPC, multi-node, local SSD",
    "how-to/containers": "Singularity, Apptainer, Kubernetes, Podman, NUMA",
    "how-to/load": """
        deterministic, reproducible, reproducibility, seed, shuffle, DataLoader
    """,
    "how-to/transform": """
        normalization, normalize, data augmentation, augmentation, mixup, cutmix, bfloat16, progressive resizing
    """,
    "how-to/dataloader": "transformed, worker processes",
    "how-to/resume": "resume, checkpoint, StatefulDataLoader",
    "reference/loading": "pin memory, pin_memory, prefetch, channels_last, non_blocking",
    "how-to/distributed": """
        DDP, distributed, distributed training, multi-GPU, multiple GPUs, DistributedSampler, FSDP, torchrun,
        DistributedDataParallel
    """,
    "how-to/from-lmdb": "own LMDB, hand-written LMDB, lz4, unpickle, msgpack",
    "concepts/orders": """
        class imbalance, imbalanced, weights, WeightedRandomSampler, sampler, random order, curriculum
    """,
    "reference/transforms": "dtype, RandomResizedCrop, flip, ColorJitter",
    "reference/transform-gallery": """
        transform gallery, gallery, illustration of transforms, augmentations, augmentation examples, Cutout,
        random erasing, RandomErasing, color jitter, random crop, horizontal flip, solarize, label smoothing, MixUp,
        CutMix
    """,
    "reference/names": "collate_fn",
    "how-to/from-imagefolder": "RandAugment, rotation, Albumentations, ImageFolder",
    "how-to/subclass": "custom transform, custom dataset",
    "how-to/compiled-transform": """
        custom augmentation, numba, compiled transform, Operation, generate_code
    """,
    "how-to/mix": "balanced datasets, concat datasets",
    "how-to/convert": """
        convert, grayscale, JPEG, PNG, patches, compression, train val split
    """,
    "reference/convert-rules": "16-bit, TIFF, alpha channel, EXIF, CMYK",
    "how-to/convert-labels": "COCO, YOLO, annotations",
    "how-to/convert-sources": "tar shards, fsspec",
    "how-to/combine": "append, merge, subset",
    "how-to/write": "medical images",
    "how-to/write-samples": "numpy, torchvision dataset, Hugging Face datasets",
    "how-to/look": "extract, preview, visualize",
    "how-to/train-segmentation": "segmentation, mask, masks, semantic segmentation",
    "how-to/train-detection": "bounding box, object detection, detection, keypoints",
    "how-to/train-sr": "super-resolution, SRCNN, DIV2K, PSNR",
    "how-to/train-classifier": "classification, CIFAR, ResNet",
    "how-to/train-imagenet": "ImageNet, mixed precision",
    "how-to/from-basicsr": "BasicSR",
    "how-to/from-ffcv": "FFCV, migrate",
    "how-to/from-webdataset": "WebDataset, tar",
    "concepts/alternatives": "LitData, HDF5, TFRecord, DALI, MosaicML, Parquet",
    "how-to/frameworks": "Hugging Face, Lightning, timm, Accelerate, Transformers",
    "how-to/frameworks-more": "Keras, fastai, MONAI",
    "how-to/ray": "Ray",
    "how-to/remote": "S3, object storage, streaming, cache, GCS, bucket",
    "concepts/feeding": "GPU utilization",
    "how-to/profile": "bottleneck, profiling, slow",
    "how-to/tune": "num_workers, threads",
    "how-to/bench": "benchmark",
    "benchmarks": "data loading speed",
    "how-to/plan": "IOPS",
    "benchmarks/gpu": "H100",
    "reliability": "corrupt, checksum, power cut",
    "how-to/repair": "repair",
    "reference/untrusted": "security, pickle",
    "benchmarks/peers": "faster than FFCV, comparison with other loaders",
    "reference/checking": "verify",
    "reference/cli": "CLI",
    "reference/index": "API",
    "reference/format": "file format",
    "reference/errors": "exceptions",
    "concepts/glossary": "glossary",
    "concepts/kernels": "Numba, AVX2",
    "quickstart": "getting started, tutorial",
}
TERMS = {" ".join(term.split()): page for page, terms in _SOUGHT.items() for term in terms.split(",")}
FIRST = 3
_FIELDS = {"title": 1e3, "text": 1.0, "tags": 1e6}
_K1 = 1.2
# lunr's stop words, which are in no index.
_STOPPED = """
a able about across after all almost also am among an and any are as at be because been but by can cannot could dear
did do does either else ever every for from get got had has have he her hers him his how however i if in into is it
its just least let like likely may me might most must my neither no nor not of off often on only or other our own
rather said say says she should since so some than that the their them then there these they this tis to too twas us
wants was we were what when where which while who whom why will with would yet you your
"""
_STOP_WORDS = frozenset(_STOPPED.split())


@dataclass(frozen=True, slots=True)
class Hit:
    """A page that was found, and its best score."""

    page: str
    score: float


class Search:
    """The site's index, ranked as the theme's worker does it: BM25 without lengths, and whole pages first."""

    def __init__(self, site: Path) -> None:
        """Read the index of a built site."""
        index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
        assert index["config"]["pipeline"] == ["stopWordFilter"]  # neither stems nor trims
        self._separator = re.compile(index["config"]["separator"])
        docs = index["docs"]
        self._places: list[str] = [doc["location"] for doc in docs]
        # Of the parts of one page, the first is the page itself.
        firsts: set[str] = set()
        self._is_page = [not (page in firsts or firsts.add(page)) for page in map(_page_of, self._places)]
        self._counts = {field: [self._count(doc.get(field, "")) for doc in docs] for field in _FIELDS}
        self._boosts = [doc.get("boost", 1.0) for doc in docs]
        found = Counter(word for counts in self._counts.values() for words in counts for word in words)
        self._idf = {word: math.log(1 + abs((len(docs) - n + 0.5) / (n + 0.5))) for word, n in found.items()}

    def _count(self, text: str | list[str]) -> Counter[str]:
        parts = [text] if isinstance(text, str) else text
        pieces = (piece for part in parts for piece in re.split(r"<[^>]*>", part))
        words = (word.lower() for piece in pieces for word in self._separator.split(piece))
        return Counter(word for word in words if word and word not in _STOP_WORDS)

    def _terms(self, query: str) -> list[tuple[str, set[str]]]:
        """Return each term of a query with the words of the index that it stands for."""
        terms = []
        for typed in query.lower().split():
            *whole, last = filter(None, re.split(r"-+", typed))
            # As in the field of the page, the last piece may be the beginning of a word.
            starts = [(word, True) for word in filter(None, self._separator.split(last))]
            for word, is_start in [*((word, False) for word in whole), *starts]:
                words = (
                    {known for known in self._idf if known.startswith(word)} if is_start else {word} & set(self._idf)
                )
                terms.append((word, words))
        return terms

    def find(self, query: str) -> list[Hit]:
        """Return the pages in the order in which they are shown."""
        terms = self._terms(query)
        weights = Counter(word for _, words in terms for word in words)
        length = math.sqrt(sum(weight * weight for weight in weights.values())) or 1.0
        best: dict[str, float] = {}
        for at, (place, is_page) in enumerate(zip(self._places, self._is_page, strict=True)):
            matched = {word for field in _FIELDS for word in weights if word in self._counts[field][at]}
            if not matched:
                continue
            score = sum(
                weights[word] * self._weight(word, field, at)
                for word, field in itertools.product(matched, _FIELDS)
                if word in self._counts[field][at]
            )
            asked = {word for word, _ in terms if word not in _STOP_WORDS or any(m.startswith(word) for m in matched)}
            share = sum(any(word.startswith(term) for word in matched) for term in asked) / len(asked)
            score *= (1 + (is_page + share) ** 2) / length
            page = _page_of(place)
            best[page] = max(score, best.get(page, 0.0))
        return sorted((Hit(page, score) for page, score in best.items()), key=lambda hit: -hit.score)

    def _weight(self, word: str, field: str, at: int) -> float:
        count = self._counts[field][at][word]
        weight = self._idf[word] * (_K1 + 1) * count / (_K1 + count) * _FIELDS[field] * self._boosts[at]
        return round(weight, 3)


def _page_of(place: str) -> str:
    return place.partition("#")[0].removesuffix(".html")
