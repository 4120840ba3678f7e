"""What people look for in the documentation, and the page that they must find."""

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
    "how-to/self-supervision": """
        self-supervised, SSL, contrastive, multi-crop, SimCLR, BYOL, DINO, MAE, I-JEPA, lightly
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
    "how-to/sr-trainers": "Real-ESRGAN, neosr, traiNNer-redux",
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
