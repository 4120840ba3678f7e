"""What differs between operating systems: files, folders held open, locks, processes, and facts about the machine.

`defaults` has the safe answers of a system that cannot do or does not tell something, `posix` what Linux and macOS
share, and `linux`, `macos` and `windows` the rest. Later ones replace functions of earlier ones; the first docstring of
a function says what it does, a later one what is different. Nothing else in the package asks on which system it runs.
"""

from __future__ import annotations

import sys

from lmdbloader.base.system.defaults import *  # noqa: F403

# mypy follows the branch of the system that it is told: `mypy --platform win32`.
if sys.platform == "win32":
    from lmdbloader.base.system.windows import *  # noqa: F403
else:
    from lmdbloader.base.system.posix import *  # noqa: F403

    if sys.platform == "darwin":
        from lmdbloader.base.system.macos import *  # noqa: F403
    else:
        from lmdbloader.base.system.linux import *  # noqa: F403
