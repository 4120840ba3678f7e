"""Facts about this machine, without opinion: cores, memory, storage, libraries, GPUs."""

from lmdbloader.lab.machine.description import Machine as Machine
from lmdbloader.lab.machine.description import describe as describe
from lmdbloader.lab.machine.devices import Device as Device
from lmdbloader.lab.machine.filesystems import FileSystem as FileSystem
from lmdbloader.lab.machine.filesystems import filesystem_of as filesystem_of
from lmdbloader.lab.machine.libraries import Libraries as Libraries
from lmdbloader.lab.machine.libraries import ThreadPools as ThreadPools
from lmdbloader.lab.machine.memory import Memory as Memory
from lmdbloader.lab.machine.pagecache import residency as residency
from lmdbloader.lab.machine.processor import Processor as Processor
