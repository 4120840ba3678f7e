"""Facts about this machine, without opinion: cores, memory, storage, libraries, GPUs."""

from lmdbloader.machine.description import Machine as Machine
from lmdbloader.machine.description import describe as describe
from lmdbloader.machine.devices import Device as Device
from lmdbloader.machine.filesystems import FileSystem as FileSystem
from lmdbloader.machine.filesystems import filesystem_of as filesystem_of
from lmdbloader.machine.libraries import Libraries as Libraries
from lmdbloader.machine.libraries import ThreadPools as ThreadPools
from lmdbloader.machine.memory import Memory as Memory
from lmdbloader.machine.pagecache import residency as residency
from lmdbloader.machine.processor import Processor as Processor
