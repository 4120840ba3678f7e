"""The blocks of a GIF file, walked to count its frames without decoding any: Pillow decodes the pixels."""

from __future__ import annotations

from lmdbloader.errors import ImageError

SIGNATURES = (b"GIF87a", b"GIF89a")

_EXTENSION, _IMAGE, _TRAILER = 0x21, 0x2C, 0x3B


def check_single_frame(data: memoryview, name: str) -> None:
    """Check that a GIF file is complete and holds exactly one frame.

    Raises:
        ImageError: It is cut short, damaged, or holds no frame or several.
    """
    num_frames = 0
    try:
        position = 13 + _color_table_nbytes(data[10])
        while data[position] != _TRAILER:
            if data[position] == _EXTENSION:
                position += 2
            elif data[position] == _IMAGE:
                num_frames += 1
                position += 10 + _color_table_nbytes(data[position + 9]) + 1
            else:
                raise ImageError(name, f"the GIF file is damaged: unknown block at byte {position}")
            while data[position]:
                position += 1 + data[position]
            position += 1
    except IndexError:
        raise ImageError(name, f"the GIF file is cut short: it ends at byte {len(data)} inside a block") from None
    if num_frames != 1:
        raise ImageError(name, f"the GIF file holds {num_frames} frames; only files with a single one can be used")


def _color_table_nbytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0
