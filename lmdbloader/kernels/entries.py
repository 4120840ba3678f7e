"""The kernels that Python calls, with the types of their arguments; their own docstrings say what they do."""

from __future__ import annotations

from lmdbloader.kernels.calls.entry import Entry

_FILE = "file: (i64, i64, i64, i64, i64)"
_PROGRAM = "program: (i64[:,:], f64[:,:], i64[:,:])"
_DRAWN = "drawn: (i64[:,:,:,:], f64[:,:,:,:], i64[:,:,:,:], i64[:], i64[:])"

assemble = Entry(
    f"assemble.assemble({_FILE}, verify: bool, columns: i64[:,:], given: i64[:,:,:],"
    f" described: i64[:,:], affine: f32[:,:,:], erased: u32[:,:,:], {_PROGRAM}, seed: u64,"
    " epoch: u64, rows: i64[:], samples: i64[:], out: i64[:,:], batch_size: i64, rooms: i64[:],"
    f" scratch: (i32[:], f32[:], f32[:]), {_DRAWN}, failed: i64[:]) -> i64"
)
measure = Entry(
    f"assemble.measure(columns: i64[:,:], {_PROGRAM}, rows: i64[:], {_DRAWN}, shapes: i64[:,:], failed: i64[:]) -> i64"
)
trace = Entry(
    f"assemble.trace(columns: i64[:,:], {_PROGRAM}, view: i64, seed: u64, epoch: u64, rows: i64[:], samples: i64[:],"
    f" {_DRAWN}, field: i64, counts: i64[:], places: f64[:,:], line: f32[:]) -> i64"
)
draw_many = Entry(
    f"transform.redraw.draw_many({_PROGRAM}, view: i64, seed: u64, epoch: u64, samples: i64[:], most: i64[:],"
    " geometry: i64[:,:,:,:], color: f64[:,:,:,:], rectangles: i64[:,:,:,:]) -> i64"
)
redraw = Entry(
    f"transform.redraw.redraw({_PROGRAM}, view: i64, geometry: i64[:,:,:,:], color: f64[:,:,:,:],"
    " inverses: f64[:,:,:,:], flips: u8[:,:,:], applied: u8[:,:], numbers: f64[:,:,:])"
)
gather = Entry(
    f"gather.gather({_FILE}, rows: i64[:], columns: (i64[:], u32[:], u32[:], u64[:], u8[:]),"
    " verify: bool, geometry: (u32[:], u32[:], u8[:], u8[:]), tile: i64, windows: i64[:,:], out: u8[:],"
    " out_start: i64[:], out_nbytes: i64[:], room: u8[:], scratch: u8[:], work: u8[:], failed: i64[:]) -> i64"
)
xxh3 = Entry("runtime.xxhash.xxh3(address: u64, nbytes: u64) -> u64")
xxh64_many = Entry("runtime.xxh64.xxh64_many(data: u8[:], start: i64[:], nbytes: i64[:], out: u64[:])")
hash_pieces = Entry(f"gather.hash_pieces({_FILE}, start: i64[:], nbytes: i64[:], home: i64, out: u64[:]) -> i64")
hash_many = Entry("gather.hash_many(data: u8[:], start: i64[:], nbytes: i64[:], out: u64[:])")

cut = Entry("patches.cut(image: T[:,:,:], top: i64, left: i64, height: i64, width: i64, out: T[:])", T="u8 u32 u16")
cut_many = Entry(
    "patches.cut_many(image: T[:,:,:], tops: i64[:], lefts: i64[:], height: i64, width: i64, out: T[:,:])", T="u8 u16"
)
cut_tiles = Entry("patches.cut_tiles(image: T[:,:,:], tile: i64, out: T[:])", T="u8 u16 u32")
lz4_decompress = Entry("lz4.lz4_decompress(source: u64, destination: u64, nbytes: i64, capacity: i64) -> i64")
delta_decompress = Entry(
    "delta.decode.delta_decompress(source: u64, destination: u64, nbytes: i64, capacity: i64) -> i64"
)
delta_compress = Entry(
    "delta.encode.delta_compress(image: u8[:], channels: i64, height: i64, width: i64, itemsize: i64, out: u8[:],"
    " most: i64, work: u8[:]) -> i64"
)
delta_room = Entry("delta.encode.delta_room(nbytes: i64, planes: i64) -> i64")
inflate = Entry("inflate.inflate(source: u8[:], nbytes: i64, out: u8[:], expected: i64, work: u32[:]) -> bool")
inflate_room = Entry("inflate.inflate_room() -> i64, i64")
unfilter_png = Entry("png.unfilter(raw: u8[:,:], zeros: u8[:], out: u8[:,:], step: i64) -> i64")

jpeg_room = Entry("jpeg.workspace.jpeg_room(nbytes: i64, height: i64, width: i64) -> i64")
keep_jpeg = Entry(
    "jpeg.kept.keep_jpeg(payload: u64, nbytes: i64, image: (i64, i64, i64), work: u64, block: u64) -> i64"
)
count_entries = Entry("jpeg.seek.count_entries(data: u8[:], work: u64) -> i64, i64")
count_blocks = Entry("jpeg.seek.count_blocks(work: u64) -> i64")
scan = Entry(
    "jpeg.seek.scan(data: u8[:], step: i64, work: u64, entries: u8[:], blocks: u64) -> i64, i64, i64, i64, i64"
)
encode_tokens = Entry(
    "jpeg.recode.encode_tokens(data: u8[:], blocks: u64, work: u64, widening: i64, tokens: u16[:], out: u8[:])"
    " -> i64, i64, i64"
)
restore = Entry("jpeg.recode.restore(payload: u64, nbytes: i64, work: u64, out: u8[:]) -> bool")
count_restored = Entry("jpeg.progressive.count_restored(payload: u64, nbytes: i64, work: u64) -> i64")
restore_scans = Entry(
    "jpeg.progressive.restore_scans(payload: u64, nbytes: i64, work: u64, blocks: u16[:], out: u8[:]) -> bool"
)
restored_nbytes = Entry("jpeg.recode.restored_nbytes(payload: u64, nbytes: i64) -> i64")

resize_scratch = Entry(
    "resize.antialias.resize_scratch(height: i64, width: i64, out_height: i64, out_width: i64, channels: i64,"
    " cubic: bool, between: i64) -> i64, i64, i64"
)
weigh_many = Entry(
    "resize.weights.weigh_many(sizes: i64[:], out_size: i64, cubic: bool, unit: i64, starts: i64[:,:],"
    " weights: f32[:,:,:], counts: i64[:,:], bounds: i32[:], room: f32[:])"
)
resize_window = Entry(
    "resize.antialias.resize_window(source: T[:], origin: i64, row: i64, plane: i64, channels: i64, height: i64,"
    " width: i64, top: f64, left: f64, box_height: f64, box_width: f64, out: T[:], out_height: i64, out_width: i64,"
    " cubic: bool, bounds: i32[:], weights: f32[:], line: f32[:])",
    T="u8 u16 f32",
)
downscale = Entry(
    "resize.downscale.downscale(src: T[:,:], row_at: i64[:,:], weights: A[:], sample_at: i64[:], offset_at: i64[:],"
    " divisor: A, shift: A, top: A, acc: A[:], row: T[:], phases: T[:], out: T[:,:])",
    T="u8 u16",
    A="i32 i64",
)
color_room = Entry("transform.color.color_room(height: i64, width: i64, down: i64, across: i64) -> i64")
mixing_room = Entry("transform.mixing.mixing_room(height: i64, width: i64) -> i64")
warp_room = Entry("transform.warp.warp_room(height: i64, width: i64, itemsize: i64, side: i64) -> i64")
kernel_side = Entry("transform.displacement.kernel_side(sigma: f64) -> i64")
resample_room = Entry(
    "degrade.resample.resample_room(height: i64, width: i64, out_height: i64, out_width: i64) -> i64, i64, i64"
)
resample = Entry(
    "degrade.resample.resample(source: f32[:], channels: i64, height: i64, width: i64, out: f32[:], out_height: i64,"
    " out_width: i64, mode: i64, antialias: bool, factor_y: f64, factor_x: f64, bounds: i32[:], weights: f32[:],"
    " line: f32[:])"
)
weigh = Entry(
    "degrade.resample.weigh(size: i64, out_size: i64, factor: f64, mode: i64, antialias: bool, shrinks: bool,"
    " bounds: i32[:], weights: f32[:], line: f32[:]) -> i64"
)
degrade_jpeg_room = Entry("degrade.jpeg.degrade_jpeg_room(height: i64, width: i64) -> i64")
compress_libjpeg = Entry(
    "degrade.jpeg.compress_libjpeg(source: f32[:], channels: i64, height: i64, width: i64, quality: i64, halves: bool,"
    " out: f32[:], work: u8[:])"
)
compress_diffjpeg = Entry(
    "degrade.jpeg.compress_diffjpeg(source: f32[:], channels: i64, height: i64, width: i64, quality: f64, out: f32[:],"
    " work: u8[:])"
)
squared_error = Entry("resize.downscale.squared_error(a: T[:], b: T[:]) -> i64", T="u8 u16")

fill_uniform = Entry("degrade.random.fill_uniform(out: f32[:], key0: u64, key1: u64, first: i64)")
fill_normal = Entry("degrade.random.fill_normal(out: f32[:], key0: u64, key1: u64, first: i64)")
gaussian = Entry(
    "degrade.noise.gaussian(image: f32[:], channels: i64, plane: i64, sigma: f64, gray: bool, speckle: bool,"
    " clipped: bool, key0: u64, key1: u64, work: u64[:])"
)
draw_mixture = Entry("degrade.noise.draw_mixture(level: f64, key0: u64, key1: u64, mixture: f64[:])")
correlated = Entry(
    "degrade.noise.correlated(image: f32[:], channels: i64, plane: i64, level: f64, speckle: bool, clipped: bool,"
    " key0: u64, key1: u64, work: u64[:])"
)
poisson = Entry(
    "degrade.noise.poisson(image: f32[:], channels: i64, plane: i64, scale: f64, photons: f64, gray: bool,"
    " clipped: bool, key0: u64, key1: u64, work: u64[:])"
)

permute = Entry("orders.permute(positions: i64[:], n: i64, seed: u64, epoch: u64, purpose: u64, out: i64[:])")
read_lanes = Entry(
    "orders.read_lanes(positions: i64[:], num_lanes: i64, ends: i64[:], firsts: i64[:], seed: u64, epoch: u64, "
    "purpose: u64, out: i64[:])"
)
deal = Entry(
    "orders.deal(positions: i64[:], shares: i64[:], pile: i64, length: i64, cycle: i64, seed: u64, epoch: u64,"
    " purpose: u64, chosen: i64[:], numbers: i64[:])"
)
shuffle_piles = Entry(
    "orders.shuffle_piles(chosen: i64[:], numbers: i64[:], lengths: i64[:], seed: u64, epoch: u64, purpose: u64,"
    " out: i64[:])"
)

advise = Entry(
    "runtime.paging.advise(base: i64, starts: i64[:], stops: i64[:], advice: i64, piece_nbytes: i64,"
    " stopping: u8[:]) -> bool"
)
forget = Entry("runtime.presence.forget(guard: i64, starts: i64[:], stops: i64[:])")


make_blur_kernel = Entry(
    "degrade.blur.make_kernel(shape: i64, size: i64, first: f64, second: f64, angle: f64, beta: f64, weights: f32[:])"
    " -> bool"
)
blur = Entry(
    "degrade.blur.blur(source: f32[:], channels: i64, height: i64, width: i64, size: i64, separable: bool,"
    " weights: f32[:], out: f32[:], padded: f32[:])"
)
draw_chains = Entry(
    "degrade.draw.draw_chains(chances: f64[:], table: f64[:,:,:], rules: f64[:,:,:], seed: u64, epoch: u64,"
    " samples: i64[:], height: i64, width: i64, scale: i64, walks: f64[:], frames: i64, drawn: f64[:,:,:],"
    " orders: i64[:,:], variants: i64[:])"
)
degrade_rooms = Entry(
    "degrade.chain.degrade_rooms(channels: i64, height: i64, width: i64)"
    " -> i64, i64, i64, i64, i64, i64, i64, i64, i64, i64"
)
degrade = Entry(
    "degrade.chain.degrade(images: i64, itemsize: i64, shape: (i64, i64, i64), samples: i64[:], frames: i64,"
    " walks: f64[:], tables: (f64[:], f64[:,:,:], f64[:,:,:]), scale: i64, sharpens: i64, seed: u64, epoch: u64,"
    " out: i64[:], described: i64[:,:], affine: f32[:,:,:], rooms: i64[:], drawn: f64[:,:], order: i64[:]) -> bool"
)


def all_entries() -> list[Entry]:
    """Return every entry point."""
    return [value for value in globals().values() if isinstance(value, Entry)]
