"""What people look for in the documentation, and the page that they must find."""

# Each page, and what people look for who must find it among the first three.
_SOUGHT = {
    "installation": "install, pip, conda, wheel, Docker, Windows, macOS, aarch64, glibc, pillow-simd",
    "faq": "FAQ, license, citation, cite, contributing, LitData, HDF5, TFRecord, DALI, MosaicML, Parquet, glossary",
    "troubleshooting": """
        troubleshooting, OOM, out of memory, deadlock, hang, hangs, freeze, bus error, shm, too many open
        files, MDB_MAP_FULL, MDB_READERS_FULL, NCCL timeout, killed, No space left on device, memory leak,
        fork, GLIBC_2.17, CUDA out of memory, DataLoader worker killed, crash, segmentation fault, command
        not found, different results
    """,
    "how-to/clusters": """
        Slurm, sbatch, NFS, Lustre, HPC, multi-node, local SSD, Singularity, Apptainer, Kubernetes, Podman,
        NUMA, resume on Slurm, requeue
    """,
    "how-to/load": """
        deterministic, reproducible, reproducibility, seed, shuffle, DataLoader, transformed, worker
        processes, resume, checkpoint, StatefulDataLoader, pin memory, pin_memory, prefetch, channels_last,
        non_blocking
    """,
    "how-to/transform": """
        normalization, normalize, data augmentation, augmentation, mixup, cutmix, bfloat16, progressive
        resizing
    """,
    "how-to/self-supervision": """
        self-supervised, SSL, contrastive, multi-crop, SimCLR, BYOL, DINO, MAE, I-JEPA, lightly
    """,
    "how-to/distributed": """
        DDP, distributed, distributed training, multi-GPU, multiple GPUs, DistributedSampler, FSDP,
        torchrun, DistributedDataParallel
    """,
    "how-to/migrate": """
        tar shards,
        own LMDB, hand-written LMDB, lz4, unpickle, msgpack, collate_fn, RandAugment, rotation,
        Albumentations, ImageFolder, FFCV, migrate, WebDataset, tar
    """,
    "how-to/balance": """
        class imbalance, imbalanced, weights, WeightedRandomSampler, sampler, random order, curriculum,
        balanced sampling, oversampling
    """,
    "reference/transforms": "dtype, RandomResizedCrop, flip, ColorJitter",
    "reference/transform-gallery": """
        transform gallery, gallery, illustration of transforms, augmentations, augmentation examples,
        Cutout, random erasing, RandomErasing, color jitter, random crop, horizontal flip, solarize, label
        smoothing, MixUp, CutMix
    """,
    "how-to/custom": """
        custom transform, custom dataset, custom augmentation, numba, compiled transform, Operation,
        generate_code
    """,
    "how-to/combine": "balanced datasets, concat datasets, append, merge, subset",
    "how-to/convert": """
        convert, grayscale, JPEG, PNG, patches, compression, train val split, 16-bit, TIFF, alpha channel,
        EXIF, CMYK
    """,
    "how-to/labels": """
        COCO, YOLO, annotations, segmentation, mask, masks, semantic segmentation, bounding box, object
        detection, detection, keypoints
    """,
    "how-to/remote": "fsspec, S3, object storage, streaming, cache, GCS, bucket",
    "how-to/write": "numpy, torchvision dataset, Hugging Face datasets",
    "how-to/look": "extract, preview, visualize",
    "how-to/train-sr": "super-resolution, SRCNN, DIV2K, PSNR",
    "how-to/train-classifier": "classification, CIFAR, ResNet, ImageNet, mixed precision",
    "how-to/sr-trainers": "BasicSR, Real-ESRGAN, neosr, traiNNer-redux",
    "how-to/frameworks": "Hugging Face, Lightning, timm, Accelerate, Transformers, Keras, fastai, MONAI",
    "how-to/parts": "Ray",
    "how-to/feeding": "GPU utilization, bottleneck, profiling, slow, num_workers, threads, benchmark",
    "benchmarks/index": "data loading speed",
    "how-to/plan": "IOPS, how large will it be",
    "benchmarks/gpu": "H100",
    "concepts/reliability": "corrupt, checksum, power cut, repair, security, pickle",
    "benchmarks/peers": "faster than FFCV, comparison with other loaders",
    "reference/conversion": "verify",
    "reference/cli": "CLI",
    "reference/index": "API, exceptions",
    "reference/format": "file format",
    "concepts/how-it-works": "Numba, AVX2",
    "index": "getting started, tutorial",
    "how-to/scientific": "medical images, satellite, DICOM, uint16, patients, GeoTIFF, microscopy",
    "how-to/evaluate": "cross-validation, k-fold, EMA, exponential moving average, inference, predict in order",
    "how-to/multi-scale": "multi-scale, x2 x3 x4",
    "how-to/degradations": "degradations, BSRGAN",
    "how-to/clips": "video super-resolution, REDS, Vimeo-90K",
}
TERMS = {" ".join(term.split()): page for page, terms in _SOUGHT.items() for term in terms.split(",")}
FIRST = 3
