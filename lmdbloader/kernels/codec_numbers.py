"""The numbers of codecs, and the statuses of decoding, that kernels and Python share; no compiler is imported here."""

from __future__ import annotations

# By number, in index and records. "tiles" are raw or lz4, "jpeg" is a JPEG file recoded or followed by a seek table,
# "file" any other image file.
CODEC_NAMES = ("raw", "lz4", "tiles", "jpeg", "file", "delta", "delta tiles")
CODEC_RAW, CODEC_LZ4, CODEC_TILES, CODEC_JPEG, CODEC_FILE, CODEC_DELTA, CODEC_DELTA_TILES = range(7)
TILED = (CODEC_TILES, CODEC_DELTA_TILES)
# A tile's entry in the table at the start of its payload: XXH3 of its stored bytes, and where they end. 64 entries are
# a group. XXH3 of each group stands first, and then where the first tile begins.
TILE_ENTRY_NBYTES, TILES_IN_GROUP, GROUP_SUM_NBYTES, FIRST_START_NBYTES = 12, 64, 8, 4
# A JPEG payload's seek table: an entry, and the footer with its last bytes; those of the footer of a recoded file.
SEEK_ENTRY_NBYTES, SEEK_FOOTER_NBYTES = 8, 16
SEEK_MAGIC, FAST_MAGIC = b"SEEK", b"FAST"

# Statuses of decoding a payload, and the damage that each of them means.
OK, OUT_OF_BOUNDS, BAD_CHECKSUM, BAD_LZ4, BAD_TILES, BAD_CODEC, BAD_JPEG, CHANGED, BAD_DELTA = range(9)
DAMAGES = {
    OUT_OF_BOUNDS: "its bytes in data.mdb cannot be read, are outside of the file, or differ in length from the index",
    BAD_CHECKSUM: "its checksum does not match: the stored bytes were damaged",
    BAD_LZ4: "its lz4 block does not decompress",
    BAD_TILES: "its tile table is damaged",
    BAD_CODEC: "its codec is unknown",
    BAD_JPEG: "its JPEG data, or their seek table, does not decode",
    BAD_DELTA: "its delta payload does not decode",
    CHANGED: "its row in index.arrow contradicts the manifest, or was changed after the dataset was opened",
}
