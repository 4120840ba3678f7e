"""Whether remote files are listed faster by passing over what is not needed, or by reading it, as measured."""

from __future__ import annotations

from threading import Lock
from time import perf_counter

# Reading on is tried after so many jumps that took so long: in a short listing, bytes count for more than time. Several
# readers make many jumps in a second. After a trial in which reading took longer, there are more jumps.
_FIRST_JUMPS, _FIRST_JUMPS_OF_ONE, _MORE_JUMPS = 2048, 64, 32768
_LEAST_SECONDS = 3.0
_TRIAL_NBYTES = 32 * 2**20
# Reading on must be this much faster, as it costs bytes.
_FASTER = 2.0
# After so many bytes that were read, jumps are measured again: later files may have larger members.
_AGAIN_NBYTES, _AGAIN_JUMPS = 4 * 2**30, 512


class Pace:
    """How fast the readers of several files get on, together.

    Attributes:
        reads_on: Whether they must read on now, rather than jump.
    """

    def __init__(self, num_readers: int) -> None:
        """Begin with jumps, of some readers at once."""
        self.reads_on = False
        self._lock = Lock()
        self._is_trial = False
        self._jumps_left = _FIRST_JUMPS if num_readers > 1 else _FIRST_JUMPS_OF_ONE
        self._passed = self._read = 0
        self._began: float | None = None
        self._rate = 0.0

    def jumped(self, nbytes: int) -> None:
        """Note that a reader got on by some bytes with a jump."""
        with self._lock:
            if self.reads_on:
                return
            if self._began is None:
                self._began = perf_counter()
                return
            self._jumps_left, self._passed = self._jumps_left - 1, self._passed + nbytes
            now = perf_counter()
            if self._jumps_left <= 0 and now - self._began >= _LEAST_SECONDS:
                self._rate = self._passed / (now - self._began)
                self._began, self._read = now, 0
                self.reads_on = self._is_trial = True

    def read(self, nbytes: int) -> None:
        """Note that a reader got on by some bytes that it read."""
        with self._lock:
            if not self.reads_on or self._began is None:
                return
            self._read += nbytes
            if self._is_trial and self._read >= _TRIAL_NBYTES:
                self._is_trial = False
                if self._read / max(perf_counter() - self._began, 1e-9) < _FASTER * self._rate:
                    self._jump_again(_MORE_JUMPS)
            elif self._read >= _AGAIN_NBYTES:
                self._jump_again(_AGAIN_JUMPS)

    def _jump_again(self, jumps: int) -> None:
        self.reads_on = False
        self._jumps_left, self._passed, self._began = jumps, 0, None
