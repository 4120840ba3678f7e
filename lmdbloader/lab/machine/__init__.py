"""Facts about this machine, without a verdict: cores, memory, storage, libraries, GPUs."""

from lmdbloader.lab.machine.description import Libraries as Libraries
from lmdbloader.lab.machine.description import Machine as Machine
from lmdbloader.lab.machine.description import Memory as Memory
from lmdbloader.lab.machine.description import Processor as Processor
from lmdbloader.lab.machine.description import ThreadPools as ThreadPools
from lmdbloader.lab.machine.description import describe as describe
from lmdbloader.lab.machine.gpu import Device as Device
from lmdbloader.lab.machine.gpu import GpuSampler as GpuSampler
from lmdbloader.lab.machine.gpu import GpuUse as GpuUse
from lmdbloader.lab.machine.storage import FileSystem as FileSystem
from lmdbloader.lab.machine.storage import filesystem_of as filesystem_of
from lmdbloader.lab.machine.storage import residency as residency
from lmdbloader.lab.machine.storage import residency_of_all as residency_of_all
