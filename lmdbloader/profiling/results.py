"""What a profile says: the phases of a step, the loader's own time, what holds the steps up, and what would help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lmdbloader.errors import OptionError
from lmdbloader.machine.gpu import GpuUse
from lmdbloader.profiling.advice import Advice
from lmdbloader.profiling.figures import PhaseTimes
from lmdbloader.profiling.naming import BOTTLENECKS, Bottleneck
from lmdbloader.profiling.text import as_html, as_text
from lmdbloader.profiling.threads import ThreadTimes
from lmdbloader.stages import StageTimes

__all__ = ["Comparison", "Profile"]

# Of a predicted gain so much must come; figures of one run and the next differ by about the rest.
_HOLDS = 0.75
# A step may become so much longer where nothing was predicted.
_WANDERS = 0.10
_JSON_VERSION = 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a change has brought, against what was predicted.

    Attributes:
        before_seconds: A step, when the prediction was made.
        predicted_seconds: A step, as it was predicted.
        seconds: A step now.
        held: Whether at least three quarters of the predicted gain came; where the prediction was the best that the
            change could bring, whether a quarter did.
        text: In words.
    """

    before_seconds: float
    predicted_seconds: float
    seconds: float
    held: bool
    text: str

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def __str__(self) -> str:
        """Return the words."""
        return self.text


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the time of training steps went, and what would make them shorter.

    Attributes:
        bottleneck: What holds the steps up: "storage", "verify", "decode", "transform" (compiled), "function" (Python),
            "cpu" (the loading threads wait for cores), "copy" (to the device), or "model": loading keeps up.
        advice: The change that would help most, with the length of a step that it should bring.
        step_seconds: A typical step: mean over the middle half of the run's stretches.
        stall: Share of a typical step that is spent waiting for data.
        phases: Phase ("data", "copy", "forward", "backward", "update", "compute") -> its time, those that occurred.
        step: All phases of a step together.
        stages: What the Loader's threads did during the measured steps; None where no Loader gives the batches.
        loading: How long the threads or processes that load had a core, and waited for one; None where the system does
            not tell.
        disk_wait: Seconds of the loading threads that neither ran nor waited for a core, as far as they were reading;
            None where it is not known.
        gpu: What the GPU did, None where nothing tells.
        num_steps: Steps that were measured.
        num_samples: Samples in them, if all batches are as large as the first.
        seconds: All of them together.
        num_threads: Threads or processes that load.
        loader: What gives the batches: the name of its class.
    """

    bottleneck: Bottleneck
    advice: Advice
    step_seconds: float
    stall: float
    phases: dict[str, PhaseTimes]
    step: PhaseTimes
    stages: StageTimes | None
    loading: ThreadTimes | None
    disk_wait: float | None
    gpu: GpuUse | None
    num_steps: int
    num_samples: int
    seconds: float
    num_threads: int
    loader: str

    @property
    def is_healthy(self) -> bool:
        """Whether loading keeps up with the model."""
        return self.bottleneck == "model"

    @property
    def samples_per_s(self) -> float:
        """Samples a second, over all measured steps."""
        return self.num_samples / self.seconds if self.seconds else 0.0

    def compare(self, before: Profile) -> Comparison:
        """Return whether an earlier profile's prediction held, now that its advice was followed.

        Args:
            before: The profile that gave the advice.
        """
        old, predicted, new = before.step_seconds, before.advice.step_seconds, self.step_seconds
        gain = old - new
        wanted = before.advice.gain_seconds
        if wanted:
            held = gain >= wanted * (1 - _HOLDS if before.advice.is_bound else _HOLDS)
        else:
            held = gain >= -_WANDERS * old
        bound = "at best " if before.advice.is_bound else ""
        text = (
            f"The prediction {'held' if held else 'did not hold'}: {1000 * new:.3g} ms a step; it was {1000 * old:.3g} "
            f"ms, and {bound}{1000 * predicted:.3g} ms was predicted."
        )
        if self.bottleneck == before.bottleneck and not self.is_healthy:
            text += f" It is still {self.bottleneck} that holds the steps up."
        elif not self.is_healthy:
            text += f" Now {self.bottleneck} holds the steps up."
        return Comparison(old, predicted, new, held, text)

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`; `from_json` reads them."""
        return {"version": _JSON_VERSION, **asdict(self), "samples_per_s": self.samples_per_s}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Profile:
        """Return the profile that `as_json` was called of.

        Args:
            values: What it returned.

        Raises:
            OptionError: It is something else, or of another version.
        """
        version = values.get("version") if isinstance(values, Mapping) else None
        if version != _JSON_VERSION:
            raise OptionError(f"a profile of version {version!r}: this release reads {_JSON_VERSION}. Take it anew.")
        try:
            if values["bottleneck"] not in BOTTLENECKS:
                raise ValueError(f"bottleneck {values['bottleneck']!r}")
            kinds = {"stages": StageTimes, "loading": ThreadTimes, "gpu": GpuUse}
            parts = {name: values[name] and kind(**values[name]) for name, kind in kinds.items()}
            plain = {name: values[name] for name in _PLAIN}
            return cls(
                advice=Advice(**values["advice"]),
                phases={name: PhaseTimes(**phase) for name, phase in values["phases"].items()},
                step=PhaseTimes(**values["step"]),
                **parts,
                **plain,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OptionError(f"not what Profile.as_json() returns: {error!r}. Take the profile anew.") from error

    def __str__(self) -> str:
        """Return a sentence, a table and the advice."""
        return as_text(self)

    def _repr_html_(self) -> str:
        """Return the same for notebooks."""
        return as_html(self)


_PLAIN = ("bottleneck", "step_seconds", "stall", "disk_wait", "num_steps", "num_samples", "seconds", "num_threads",
          "loader")  # fmt: skip
