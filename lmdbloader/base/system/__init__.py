"""What differs between operating systems: files, locks, processes, and facts about the machine.

Elsewhere in the package, only the code that builds and loads the kernels asks on which system it runs. What a system
cannot do or report does nothing, or has a safe answer; what must not be left out raises OSError.
"""

from __future__ import annotations

from lmdbloader.base.system.files import *  # noqa: F403
from lmdbloader.base.system.machine import *  # noqa: F403
