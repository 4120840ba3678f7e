"""Applies chains of degradations to the images of a batch, and writes both images of each pair into a batch."""

from __future__ import annotations

import numpy as np

from lmdbloader.kernels import assemble_columns as col
from lmdbloader.kernels.degrade import noise, steps
from lmdbloader.kernels.degrade import sharpen as sharp
from lmdbloader.kernels.degrade.blur import GAUSSIAN, blur, make_kernel, padded_room
from lmdbloader.kernels.degrade.draw import draw_chain
from lmdbloader.kernels.degrade.jpeg import compress_diffjpeg, compress_libjpeg, degrade_jpeg_room
from lmdbloader.kernels.degrade.resample import resample, resample_room
from lmdbloader.kernels.runtime.compile import kernel
from lmdbloader.kernels.runtime.memory import array_at, f32_at, i32_at, part, u8_at, u16_at, u64_at
from lmdbloader.kernels.runtime.philox import NOISE_STREAM, philox
from lmdbloader.kernels.transform import opcodes as op
from lmdbloader.kernels.transform.geometry import begin
from lmdbloader.kernels.transform.place import finish

# The parts of a thread's working memory, in words of 8 bytes: three images, which also hold what `finish` needs; an
# image with a border; a kernel; a resize's bounds, weights and lines; noise; JPEG.
FIRST, SECOND, THIRD, PADDED, KERNEL, BOUNDS, WEIGHTS, LINE, NOISE, JPEG, NUM_ROOMS = range(11)
_SHARPENS_NOTHING, _SHARPENS_BOTH = 0, 2
# The side of BSRGAN's kernel for a blur that keeps every n-th pixel.
_SIZE_OF_EVERY = 25


@kernel
def degrade_rooms(channels, height, width):
    """Return the words of each part of the working memory.

    Args:
        channels, height, width: Of the largest image on the way.
    """
    bounds, weights, line = resample_room(height, width, height, width)
    image = (channels * height * width + 1) // 2
    return (
        image, image, image, padded_room(height, width, sharp.SIZE) // 2 + 1, steps.KERNEL_ROOM // 2 + 1,
        bounds // 2 + 1, weights // 2 + 1, line // 2 + 1, noise.POISSON_ROOM, degrade_jpeg_room(height, width) // 8 + 1,
    )  # fmt: skip


@kernel
def _floats(rooms, room):
    """Return a part of the working memory as float32."""
    return f32_at(rooms[room], 2 * (rooms[room + 1] - rooms[room]) // 8)


@kernel
def _blur(found, image, out, channels, height, width, rooms):
    weights, size = _floats(rooms, KERNEL), np.int64(found[steps.SIZE])
    separable = make_kernel(
        np.int64(found[steps.SHAPE]), size, found[steps.FIRST], found[steps.SECOND], found[steps.ANGLE],
        found[steps.BETA], weights,
    )  # fmt: skip
    blur(image, channels, height, width, size, separable, weights, out, _floats(rooms, PADDED))


@kernel
def _keep_every(found, image, out, channels, height, width, rooms):
    """Blur with a kernel that is moved by half of n - 1 pixels, and keep every n-th pixel, as BSRGAN does.

    The kernel is moved by linear interpolation, as `shift_pixel` there; a convolution turns it around.
    """
    every, weights, size = np.int64(found[steps.FACTOR]), _floats(rooms, KERNEL), np.int64(_SIZE_OF_EVERY)
    make_kernel(GAUSSIAN, size, found[steps.SPREAD], found[steps.SPREAD], 0.0, 1.0, weights)
    moved, total = part(weights, 2 * size, 2 * size), np.float32(0)
    for k in range(2 * size):
        moved[k] = np.float32(0)
    for k in range(size):
        at = min(k + 0.5 * (every - 1), size - 1.0)
        below = min(np.int64(at), size - 2)
        share = np.float32(at - below)
        moved[size - 1 - k] = weights[below] + share * (weights[below + 1] - weights[below])
        total += moved[size - 1 - k]
    for k in range(size):
        moved[k] /= total
    blur(image, channels, height, width, size, True, moved, image, _floats(rooms, PADDED))
    new_height, new_width = np.int64(found[steps.HEIGHT]), np.int64(found[steps.WIDTH])
    for c in range(channels):
        for y in range(new_height):
            row = part(image, (c * height + y * every) * width, width)
            target = part(out, (c * new_height + y) * new_width, new_width)
            for x in range(new_width):
                target[x] = row[x * every]


@kernel
def _resize(found, image, out, channels, height, width, rooms):
    new_height, new_width = np.int64(found[steps.HEIGHT]), np.int64(found[steps.WIDTH])
    mode, factor = np.int64(found[steps.MODE]), found[steps.FACTOR]
    if mode == steps.EVERY_NTH:
        _keep_every(found, image, out, channels, height, width, rooms)
        return
    bounds = i32_at(rooms[BOUNDS], 2 * (rooms[WEIGHTS] - rooms[BOUNDS]) // 8)
    resample(
        image, channels, height, width, out, new_height, new_width, mode, found[steps.IS_ANTIALIASED] != 0, factor,
        factor, bounds, _floats(rooms, WEIGHTS), _floats(rooms, LINE),
    )  # fmt: skip


@kernel
def _add_noise(found, image, channels, plane, key0, key1, rooms):
    work = u64_at(rooms[NOISE], noise.POISSON_ROOM)
    sigma, colors = found[steps.SIGMA], np.int64(found[steps.COLORS])
    gray, speckle = colors == steps.GRAY, found[steps.KIND] == steps.SPECKLE
    if sigma == 0.0:
        noise.clip(part(image, 0, channels * plane))
    elif found[steps.KIND] == steps.POISSON:
        noise.poisson(image, channels, plane, sigma, found[steps.VALUES], gray, True, key0, key1, work)
    elif colors == steps.CORRELATED:
        noise.correlated(image, channels, plane, sigma, speckle, True, key0, key1, work)
    else:
        noise.gaussian(image, channels, plane, sigma, gray, speckle, True, key0, key1, work)


@kernel
def _apply(code, found, image, out, channels, height, width, key0, key1, rooms):
    """Apply a step; return whether its result is in `out` instead of `image`. See `steps` for its numbers."""
    if code == steps.BLUR:
        _blur(found, image, out, channels, height, width, rooms)
        return True
    if code == steps.RESIZE:
        _resize(found, image, out, channels, height, width, rooms)
        return True
    if code == steps.NOISE:
        _add_noise(found, image, channels, height * width, key0, key1, rooms)
    elif code == steps.JPEG:
        work = u8_at(rooms[JPEG], rooms[NUM_ROOMS] - rooms[JPEG])
        noise.clip(part(image, 0, channels * height * width))
        if found[steps.ARITHMETIC_OF] == steps.LIBJPEG:
            quality = np.int64(found[steps.QUALITY])
            compress_libjpeg(image, channels, height, width, quality, True, image, work)
        else:
            compress_diffjpeg(image, channels, height, width, found[steps.QUALITY], image, work)
    return False


@kernel
def _widen(pixels, peak, out):
    for k in range(pixels.shape[0]):
        out[k] = np.float32(pixels[k]) / peak


@kernel
def _round(values, peak, out):
    for k in range(out.shape[0]):
        out[k] = np.int32(np.rint(min(max(values[k], np.float32(0)), np.float32(1)) * peak))


@kernel
def _write(pixels, channels, height, width, described, affine, geometry, out, spare):
    """Write an image into its place in the batch, its values converted."""
    begin(geometry, height, width)
    finish(
        pixels, width, height * width, channels, geometry, out, described[col.OUT_ITEMSIZE],
        described[col.CHANNELS_LAST] != 0, described[col.KIND], affine, np.uint64(described[col.TABLE]),
        described[col.TABLE_STEP], spare, False,
    )  # fmt: skip


@kernel
def _degrade_one(pixels, shape, table, drawn, order, sharpens, key, places, described, affine, rooms):
    """Degrade one image; see `degrade`. pixels: uint8 or uint16, the image; places: addresses of both results."""
    seed, epoch, sample, frame = key
    channels, height, width = shape
    count = channels * height * width
    peak = np.float32(255) if pixels.itemsize == 1 else np.float32(65535)
    geometry = part(rooms, NUM_ROOMS + 1, op.NUM_GEOMETRY)
    image, other, spare = _floats(rooms, FIRST), _floats(rooms, SECOND), _floats(rooms, THIRD)
    words = array_at(spare.ctypes.data, spare.shape[0], pixels)
    _widen(pixels, peak, image)
    if sharpens != _SHARPENS_NOTHING:
        sharp.sharpen(
            part(image, 0, count), channels, height, width, other, spare, _floats(rooms, KERNEL), _floats(rooms, PADDED)
        )
    if places[1]:
        sharpened = pixels
        if sharpens == _SHARPENS_BOTH:
            _round(image, peak, part(words, 0, count))
            sharpened = part(words, 0, count)
        unused = array_at(other.ctypes.data, other.shape[0], pixels)
        _write(sharpened, channels, height, width, described[1], affine[1], geometry, np.uint64(places[1]), unused)
    for k in range(order.shape[0]):
        number = order[k]
        found, code = drawn[number], table[number, steps.CODE]
        if found[steps.DONE] == 0:
            continue
        of_noise = philox(seed, NOISE_STREAM, sample, epoch, np.uint64(number), frame)
        moved = _apply(code, found, image, other, channels, height, width, of_noise[0], of_noise[1], rooms)
        if moved:
            image, other = other, image
        if code == steps.RESIZE:
            height, width = np.int64(found[steps.HEIGHT]), np.int64(found[steps.WIDTH])
            if table[number, steps.CLIPS]:
                noise.clip(part(image, 0, channels * height * width))
    if height != described[0, col.OUT_HEIGHT] or width != described[0, col.OUT_WIDTH]:
        return False
    small = part(words, 0, channels * height * width)
    _round(image, peak, small)
    unused = array_at(other.ctypes.data, other.shape[0], pixels)
    _write(small, channels, height, width, described[0], affine[0], geometry, np.uint64(places[0]), unused)
    return True


@kernel
def degrade(
    images, itemsize, shape, samples, frames, walks, tables, scale, sharpens, seed, epoch, out, described, affine,
    rooms, drawn, order,
):  # fmt: skip
    """Degrade images of a batch.

    Args:
        images: Address of (n, channels, height, width) uint8 or uint16; itemsize: bytes of a value.
        shape: channels, height, width.
        samples: (n,) int64, on which the draws depend.
        frames: Of a window, whose frames have the same sample and noise of their own; 1 for single images.
        walks, tables, scale: As for `draw_chain`.
        sharpens: 0: nothing; 1: what `lr` is made of; 2: `hr` too.
        seed, epoch: uint64.
        out: (2,) int64, addresses of `lr` and `hr` in the batch; `hr` may be 0, and is then not written.
        described: (2, NUM_DESCRIBED) int64, of both, see `assemble_columns`.
        affine: (2, 3, 2) float32, of both.
        rooms: int64, the addresses of NUM_ROOMS parts of the working memory and of its end; then NUM_GEOMETRY words.
        drawn, order: As for `draw_chain`, scratch.

    Returns:
        Whether all of them have the size that `described` says.
    """
    channels, height, width = shape
    chances, table, rules = tables
    count = channels * height * width
    places = part(rooms, NUM_ROOMS + 1 + op.NUM_GEOMETRY, 2)
    for j in range(samples.shape[0]):
        sample = np.uint64(samples[j])
        frame = j % frames
        variant = draw_chain(
            chances, table, rules, seed, epoch, sample, height, width, scale, walks, frame, drawn, order
        )
        key = seed, epoch, sample, np.uint64(frame)
        for k in range(2):
            d = described[k]
            nbytes = d[col.OUT_CHANNELS] * d[col.OUT_HEIGHT] * d[col.OUT_WIDTH] * d[col.OUT_ITEMSIZE]
            places[k] = out[k] + j * nbytes if out[k] else 0
        place = np.uint64(images + j * count * itemsize)
        if itemsize == 1:
            done = _degrade_one(
                u8_at(place, count), shape, table[variant], drawn, order, sharpens, key, places, described,
                affine, rooms,
            )  # fmt: skip
        else:
            done = _degrade_one(
                u16_at(place, count), shape, table[variant], drawn, order, sharpens, key, places, described,
                affine, rooms,
            )  # fmt: skip
        if not done:
            return False
    return True
