"""The kinds of machine that libraries are built for."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from lmdbloader.kernels.calls.libraries import file_name, processor_kinds


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of machine.

    Attributes:
        system: As `platform.system()` names it.
        kind: Of processor, as `processor_kinds` names it.
        triple: LLVM's name of machine, system and binary interface.
        processor: LLVM's name of the oldest processor that can run the library.
        linked_for: zig's name of the machine, with the oldest C library that suffices.
        wheel: The platform in a wheel's name.
    """

    system: str
    kind: str
    triple: str
    processor: str
    linked_for: str
    wheel: str

    @property
    def name(self) -> str:
        """The name of the target, such as "linux-x86-64-v3"."""
        return f"{self.system.lower()}-{self.kind}"

    @property
    def converts_to_half(self) -> bool:
        """Whether the processor has an instruction that converts float32 to float16."""
        return self.kind != "x86-64-v2"

    @property
    def file_name(self) -> str:
        """The file name of its library."""
        return file_name(self.kind, self.system)


_LEVELS = (2, 3, 4)
TARGETS = (
    *(
        Target("Linux", f"x86-64-v{n}", "x86_64-unknown-linux-gnu", f"x86-64-v{n}", "x86_64-linux-gnu.2.17",
               "manylinux_2_17_x86_64.manylinux2014_x86_64")
        for n in _LEVELS
    ),
    Target("Linux", "aarch64", "aarch64-unknown-linux-gnu", "generic", "aarch64-linux-gnu.2.17",
           "manylinux_2_17_aarch64.manylinux2014_aarch64"),
    *(
        Target("Windows", f"x86-64-v{n}", "x86_64-pc-windows-gnu", f"x86-64-v{n}", "x86_64-windows-gnu", "win_amd64")
        for n in _LEVELS
    ),
    Target("Darwin", "aarch64", "arm64-apple-macosx11.0.0", "apple-m1", "aarch64-macos.11.0", "macosx_11_0_arm64"),
    *(
        Target("Darwin", f"x86-64-v{n}", "x86_64-apple-macosx10.15.0", f"x86-64-v{n}", "x86_64-macos.10.15",
               "macosx_10_15_x86_64")
        for n in _LEVELS[:2]  # few Macs have AVX-512, and no recent ones
    ),
)  # fmt: skip


def targets_here() -> tuple[Target, ...]:
    """Return the targets of this system and machine, the best processor last."""
    here = platform.system()
    return tuple(t for kind in processor_kinds() for t in TARGETS if t.system == here and t.kind == kind)


def targets_of_wheel(wheel: str) -> tuple[Target, ...]:
    """Return the targets whose libraries a wheel for a platform holds."""
    return tuple(t for t in TARGETS if t.wheel == wheel)
