"""Datasets on disk, read, written, checked and repaired: the only room that imports LMDB."""

from __future__ import annotations

from lmdbloader.store.care.repair import Repair, repair
from lmdbloader.store.care.verify import Damage, Verification, verify
from lmdbloader.store.lmdb_records import num_committed
from lmdbloader.store.opening import IO, read_manifest
from lmdbloader.store.readahead import Readahead, Ticket
from lmdbloader.store.reader import Reader, check_rows
from lmdbloader.store.records import Block, Chunk, encode_blocks
from lmdbloader.store.writing.publish import (
    check_destination,
    clear_leftovers,
    is_dataset,
    partial_folder,
    put_in_place,
)
from lmdbloader.store.writing.writer import Writer, Written, estimate_map_nbytes, open_writer

__all__ = [
    "IO",
    "Block",
    "Chunk",
    "Damage",
    "Readahead",
    "Reader",
    "Repair",
    "Ticket",
    "Verification",
    "Writer",
    "Written",
    "check_destination",
    "check_rows",
    "clear_leftovers",
    "encode_blocks",
    "estimate_map_nbytes",
    "is_dataset",
    "num_committed",
    "open_writer",
    "partial_folder",
    "put_in_place",
    "read_manifest",
    "repair",
    "verify",
]
