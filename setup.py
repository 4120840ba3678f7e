"""Builds the libraries of compiled kernels into the package, and names wheels after the system that they are for."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # pip builds in an isolated environment, which does not have this folder

# The wheel's platform, to build for a system other than this one; scripts/make_wheels.py sets it.
PLATFORM = os.environ.get("LMDBLOADER_WHEEL", "")


def wheel_platform() -> str:
    """Return the platform in the wheel's name."""
    from lmdbloader.kernels.building.targets import TARGETS, targets_here

    known = sorted({target.wheel for target in TARGETS})
    if PLATFORM and PLATFORM not in known:
        raise SystemExit(f"LMDBLOADER_WHEEL is {PLATFORM!r}; kernels are made for these systems: {', '.join(known)}")
    here = targets_here()
    if not PLATFORM and not here:
        raise SystemExit("lmdbloader: no kernels are made for this system and processor; see docs/installation.md")
    return PLATFORM or here[0].wheel


class BuildWithKernels(build_py):  # type: ignore[misc]
    """Builds the kernels with the modules: for this processor in an editable installation, for all kinds in a wheel."""

    def run(self) -> None:
        """Copy the modules, then build."""
        super().run()
        from lmdbloader.kernels.building.linking import best_here, build
        from lmdbloader.kernels.building.targets import targets_here, targets_of_wheel
        from lmdbloader.kernels.calls.libraries import BUILT, INVENTORY

        if self.editable_mode:
            build([best_here()], BUILT, if_changed=True, report=print)
        else:
            out = Path(self.build_lib, BUILT.relative_to(HERE))
            targets = targets_of_wheel(wheel_platform())
            build(targets, out, units=BUILT / "units", report=print)
            if targets == targets_here():
                # Python that is started in the clone finds the package here, not where pip installs it.
                for name in (*(target.file_name for target in targets), INVENTORY):
                    shutil.copy2(out / name, BUILT / name)


class PlatformWheel(bdist_wheel):  # type: ignore[misc]
    """A wheel for every Python 3 of one platform: the libraries do not use Python."""

    def finalize_options(self) -> None:
        """Say that the wheel is not for all platforms."""
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        """Return the three parts of the wheel's name."""
        return "py3", "none", wheel_platform()


class WithLibraries(Distribution):
    """A package that is installed among those for one platform."""

    def has_ext_modules(self) -> bool:
        """Return True: it has compiled parts, though setuptools does not build them."""
        return True


def absolute(markdown: str, url: str) -> str:
    """Return a document whose relative links and pictures lead into a repository: PyPI shows README without its files.

    Args:
        markdown: The document.
        url: Of the repository, such as https://github.com/OWNER/NAME.
    """

    def replaced(found: re.Match[str]) -> str:
        is_picture = found["path"].endswith((".svg", ".png"))
        return f"]({url}/{'raw' if is_picture else 'blob'}/HEAD/{found['path']}"

    # Neither addresses nor places in the same document.
    return re.sub(r"\]\((?P<path>(?![a-z]+:|#)[^)\s]+)", replaced, markdown)


def addresses() -> dict[str, Any]:
    """Return what the metadata has with the repository's URL of setup.cfg, and nothing without."""
    config = configparser.ConfigParser()
    config.read(HERE / "setup.cfg", "utf-8")
    url = config.get("repository", "url", fallback="").strip().rstrip("/")
    if not url:
        return {}
    places = {
        "Source": "",
        "Documentation": "/tree/HEAD/docs",
        "Changelog": "/blob/HEAD/CHANGELOG.md",
        "Issues": "/issues",
    }
    return {
        "url": url,
        "project_urls": {name: url + place for name, place in places.items()},
        "long_description": absolute((HERE / "README.md").read_text("utf-8"), url),
    }


options: dict[str, Any] = {"cmdclass": {"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel}}
setup(distclass=WithLibraries, **options, **addresses())
