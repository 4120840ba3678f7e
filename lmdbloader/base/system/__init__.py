"""What differs between operating systems: files, folders held open, locks, processes, and facts about the machine.

`defaults` has safe answers for a system that cannot do or report something, `posix` what Linux and macOS share, and
`linux`, `macos` and `windows` the rest. Later ones replace functions of earlier ones; the first docstring of a function
says what it does, a later one how it differs. Elsewhere in the package, only the code that builds and loads the
kernels asks on which system it runs.
"""

from __future__ import annotations

import sys

from lmdbloader.base.system.defaults import *  # noqa: F403

# mypy follows the branch of the system that `mypy --platform win32` names.
if sys.platform == "win32":
    from lmdbloader.base.system.windows import *  # noqa: F403
else:
    from lmdbloader.base.system.posix import *  # noqa: F403

    if sys.platform == "darwin":
        from lmdbloader.base.system.macos import *  # noqa: F403
    else:
        from lmdbloader.base.system.linux import *  # noqa: F403
