"""The plan: the data rate and storage that a training run needs, from its batch size and step time."""

from lmdbloader.lab.planning.demand import STORAGE as STORAGE
from lmdbloader.lab.planning.demand import Demand as Demand
from lmdbloader.lab.planning.demand import GpuFit as GpuFit
from lmdbloader.lab.planning.demand import Reads as Reads
from lmdbloader.lab.planning.demand import StorageClass as StorageClass
from lmdbloader.lab.planning.planner import plan as plan
from lmdbloader.lab.planning.presets import PRESETS as PRESETS
from lmdbloader.lab.planning.presets import Preset as Preset
from lmdbloader.lab.planning.results import Plan as Plan
