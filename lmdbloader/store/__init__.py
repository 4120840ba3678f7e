"""Datasets on disk, read, written, checked and repaired: the only room that imports LMDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmdbloader.base.lazy import lazy

if TYPE_CHECKING:
    from lmdbloader.store.care.repair import Repair as Repair
    from lmdbloader.store.care.repair import repair as repair
    from lmdbloader.store.care.verify import Verification as Verification
    from lmdbloader.store.care.verify import verify as verify
    from lmdbloader.store.damage import Damage as Damage
    from lmdbloader.store.index import Names as Names
    from lmdbloader.store.opening import IO as IO
    from lmdbloader.store.opening import read_manifest as read_manifest
    from lmdbloader.store.readahead import Readahead as Readahead
    from lmdbloader.store.readahead import Ticket as Ticket
    from lmdbloader.store.reader import Reader as Reader
    from lmdbloader.store.reader import check_rows as check_rows
    from lmdbloader.store.reader import open_reader as open_reader
    from lmdbloader.store.records import Block as Block
    from lmdbloader.store.records import Chunk as Chunk
    from lmdbloader.store.records import encode_blocks as encode_blocks
    from lmdbloader.store.writing.join import Written as Written
    from lmdbloader.store.writing.join import join as join
    from lmdbloader.store.writing.part import PartWriter as PartWriter
    from lmdbloader.store.writing.part import estimate_map_nbytes as estimate_map_nbytes
    from lmdbloader.store.writing.part import map_nbytes_of as map_nbytes_of
    from lmdbloader.store.writing.work import PartFacts as PartFacts
    from lmdbloader.store.writing.work import Work as Work
    from lmdbloader.store.writing.work import check_destination as check_destination
    from lmdbloader.store.writing.work import is_dataset as is_dataset

# Each loads when it is first used: reading samples needs neither LMDB nor Arrow's library.
__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "care.repair": "Repair repair",
        "care.verify": "Verification verify",
        "damage": "Damage",
        "index": "Names",
        "opening": "IO read_manifest",
        "readahead": "Readahead Ticket",
        "reader": "Reader check_rows open_reader",
        "records": "Block Chunk encode_blocks",
        "writing.join": "Written join",
        "writing.part": "PartWriter estimate_map_nbytes map_nbytes_of",
        "writing.work": "PartFacts Work check_destination is_dataset",
    },
)
