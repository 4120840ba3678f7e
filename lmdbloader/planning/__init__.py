"""What a training run needs of its data and storage, from its batch size and the time of a step."""

from lmdbloader.planning.demand import Demand as Demand
from lmdbloader.planning.demand import Fit as Fit
from lmdbloader.planning.demand import Reads as Reads
from lmdbloader.planning.planner import Plan as Plan
from lmdbloader.planning.planner import Serving as Serving
from lmdbloader.planning.planner import plan as plan
from lmdbloader.planning.presets import PRESETS as PRESETS
from lmdbloader.planning.presets import Preset as Preset
from lmdbloader.planning.storage import STORAGE as STORAGE
from lmdbloader.planning.storage import StorageClass as StorageClass
