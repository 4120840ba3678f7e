"""Makes `.venv-peers`: torch for the CPU, lmdbloader's requirements, and each peer that can be installed here.

    python benchmarks/peers/environment.py
    python benchmarks/peers/environment.py --torch-index https://download.pytorch.org/whl/cpu

A peer that cannot be installed is left out, and the reason goes into `missing.json` of the environment, for the page.
FFCV is built, on Debian with libopencv-dev, libturbojpeg0-dev, pkg-config and build-essential; SPDL needs libavdevice59
and libavfilter8. lmdbloader itself is used from this repository.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TORCH, TORCHVISION = "2.13.0", "0.28.0"
OURS = ("lmdb", "lz4", "numpy", "pillow", "pyarrow", "pyyaml", "simplejpeg", "tqdm")


@dataclass(frozen=True, slots=True)
class Package:
    """What a peer needs.

    Attributes:
        name: As pip names it, with a version where it matters.
        requirements: Installed first.
        options: Of pip. Several packages ask for a torch with CUDA: without their requirements they take ours.
    """

    name: str
    requirements: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


ALONE = ("--no-deps",)
# Compiled by pip: FFCV's setup imports nothing of ours, but needs the setuptools of this environment.
BUILT = ("--no-deps", "--no-build-isolation")
PACKAGES = (
    Package(f"torchvision=={TORCHVISION}", (), ALONE),
    Package("h5py"),
    Package("opencv-python-headless"),
    Package(
        "ffcv==1.0.2",
        ("numba", "opencv-python-headless", "terminaltables", "assertpy", "fastargs", "pytorch_pfn_extras",
         "setuptools", "wheel", "PyTurboJPEG", "pandas", "scipy", "tqdm"),
        BUILT,
    ),
    Package("webdataset"),
    Package("datasets"),
    Package("litdata", ("obstore", "tifffile", "lightning-utilities", "boto3", "requests", "filelock"), ALONE),
    Package(
        "mosaicml-streaming",
        ("zstd", "python-snappy", "brotli", "cramjam", "catalogue", "xxhash", "requests", "matplotlib", "transformers"),
        ALONE,
    ),
    Package("grain"),
    Package("spdl"),
    Package("nvidia-dali-cuda120"),
    Package("turboloader"),
)  # fmt: skip


class InstallError(Exception):
    """pip failed; the message has its last line."""


def last_line(text: str) -> str:
    """Return the line of pip's errors that says what failed.

    >>> last_line("note: a note\\nERROR: No matching distribution found for x\\n\\n[notice] A new release of pip")
    'ERROR: No matching distribution found for x'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error:", "fatal error", "modulenotfounderror"))]
    return (errors or lines or ["pip printed nothing"])[-1][:300]


class Environment:
    """A virtual environment, and the constraints of everything that goes into it."""

    def __init__(self, folder: Path, torch_index: str | None) -> None:
        self.folder, self.python = folder, folder / "bin" / "python"
        self._index = ["--extra-index-url", torch_index] if torch_index else []

    def make(self) -> None:
        """Make it, with torch, unless it is there.

        Raises:
            InstallError: torch or a requirement of lmdbloader cannot be installed.
        """
        if not self.python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(self.folder)], check=True)
        (self.folder / "constraints.txt").write_text(f"torch=={TORCH}\ntorchvision=={TORCHVISION}\n")
        self.install(f"torch=={TORCH}", *OURS)

    def install(self, *words: str) -> None:
        """Install packages.

        Raises:
            InstallError: pip failed.
        """
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *self._index]
        done = subprocess.run(
            [*pip, "--constraint", str(self.folder / "constraints.txt"), *words], capture_output=True, text=True
        )
        if done.returncode:
            raise InstallError(last_line(done.stderr))

    def install_peers(self, packages: Sequence[Package]) -> dict[str, str]:
        """Install what can be; return the reason for each package that cannot."""
        missing: dict[str, str] = {}
        for package in packages:
            name = package.name.partition("==")[0]
            try:
                if package.requirements:
                    self.install(*package.requirements)
                self.install(*package.options, package.name)
            except InstallError as error:
                missing[name] = str(error)
            print(f"{package.name}: {missing.get(name, 'installed')}", flush=True)
        (self.folder / "missing.json").write_text(json.dumps(missing, indent=1) + "\n", "utf-8")
        return missing


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the environment; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, default=ROOT / ".venv-peers", metavar="DIR", help="default: .venv-peers")
    parser.add_argument("--torch-index", metavar="URL", help="one more package index, for another build of torch")
    options = parser.parse_args(arguments)
    environment = Environment(options.env, options.torch_index)
    try:
        environment.make()
    except InstallError as error:
        print(f"environment.py: {error}", file=sys.stderr)
        return 2
    environment.install_peers(PACKAGES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
