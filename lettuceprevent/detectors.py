"""The two kinds of detector, the data that passes between them and the processor, and their one registry.

Contract: a *literal* detector answers for the whole vocabulary with an exact mask that is a pure function of
its grounding and the history; a *model* detector answers with probabilities for a few candidates. The modules
that implement them are imported only when asked for, so that a plain number run loads nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .grounding import Grounding

Ids: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TokenMask:
    """What a literal detector allows next, for the whole vocabulary.

    blocked: ids that may not come, sorted; end tokens and other tokens without text are never listed. None
        when `allowed` is given: then every token with text that is not in `allowed` is blocked.
    starts: sorted ids that would start a literal here, allowed or not; empty inside a literal.
    may_end: whether the text may end here. The processor blocks end tokens where it may not.
    inside: whether a literal is open, unfinished or still extendable.
    dead: whether the open literal can no longer become supported; then nothing is blocked until it ends.
    allowed: sorted ids of the few tokens with text that may come, where they are few.
    """

    blocked: Ids | None
    starts: Ids
    may_end: bool = True
    inside: bool = False
    dead: bool = False
    allowed: Ids | None = None

    def is_blocked(self, token_id: int) -> bool:
        """Whether `token_id`, a token with text, may not come next."""
        if self.allowed is not None:
            return not contains(self.allowed, token_id)
        return self.blocked is not None and contains(self.blocked, token_id)


def contains(ids: Ids, token_id: int) -> bool:
    """Whether `token_id` is among `ids`, which are sorted."""
    at = int(ids.searchsorted(token_id))
    return at < len(ids) and int(ids[at]) == token_id


@dataclass(frozen=True)
class Evidence:
    """Why a candidate is unsupported. Offsets count characters of `Grounding.text`."""

    literal: str
    nearest: str | None = None
    span: tuple[int, int] | None = None
    label: str = "unsupported"


@dataclass(frozen=True)
class ScoreRequest:
    """One row at one step: which of the host ids `candidates` does `grounding` not support after
    `history`?"""

    grounding: Grounding
    history: tuple[int, ...]
    candidates: tuple[int, ...]


class LiteralDetector(Protocol):
    """One grounding, one vocabulary; states are opaque, hashable, and interned. `state.dead` is a bool."""

    name: str
    version: str
    kind: str

    def start(self, prefix: bytes) -> Any:
        """The state after the prompt's text since its last blank. That text is never judged."""

    def advance(self, state: Any, token_id: int) -> Any:
        """The state after one more token; the same state for a token without bytes."""

    def mask(self, state: Any) -> TokenMask:
        """What may come next; the same object every time for the same state."""

    def finish(self, state: Any) -> bool:
        """Whether the text may end here: no literal is open that is not yet supported."""

    def explain(self, state: Any, token_id: int) -> Any:
        """The Evidence for `token_id` being blocked in `state`. Called for interventions, when they are
        read."""


class ModelDetector(Protocol):
    """Probabilities that candidates are unsupported, for any number of rows at once.

    `threshold`, a float, may be there: the `confidence_threshold` it was made for.
    """

    name: str
    version: str
    kind: str

    def score(self, requests: Sequence[ScoreRequest]) -> list[NDArray[np.float32]]:
        """P(unsupported), one array of shape (len(candidates),) per request."""

    def notes(self) -> dict[str, int]:
        """Counters for the report, for instance truncated contexts."""


Detector: TypeAlias = "Sequence[LiteralDetector] | LiteralDetector | ModelDetector"
Builder: TypeAlias = "Callable[[Any, Any, Sequence[Grounding], dict[str, Any]], Detector]"


def _number(
    tokenizer: Any, vocabulary: Any, groundings: Sequence[Grounding], options: dict[str, Any]
) -> Detector:
    from .automaton import NumberDetector

    return _per_grounding(NumberDetector.for_grounding, vocabulary, groundings, options)


def _per_grounding(
    build: Callable[..., Any], vocabulary: Any, groundings: Sequence[Grounding], options: dict[str, Any]
) -> list[LiteralDetector]:
    """One detector per row, shared between rows whose groundings are the same."""
    built: dict[Grounding, LiteralDetector] = {}
    for grounding in groundings:
        if grounding not in built:
            built[grounding] = build(grounding, vocabulary, **options)
    return [built[grounding] for grounding in groundings]


def _causal(
    tokenizer: Any, vocabulary: Any, groundings: Sequence[Grounding], options: dict[str, Any]
) -> Detector:
    from .tree import CausalDetector

    return CausalDetector.for_host(tokenizer, vocabulary, groundings, **options)


def _encoder(
    tokenizer: Any, vocabulary: Any, groundings: Sequence[Grounding], options: dict[str, Any]
) -> Detector:
    from .encoder import EncoderDetector

    return EncoderDetector.for_host(tokenizer, vocabulary, groundings, **options)


# A probe is no detector of candidates: `generate` watches the host with it (probe.py), and here is nothing to build.
PROBE = "probe"
_BUILDERS: dict[str, Builder] = {"number": _number, "lettuceprevent": _causal, "lettucedetect": _encoder}
NUMBER_OPTIONS = frozenset({"number_words", "units", "rounding", "derived", "exemptions"})
ENCODER_OPTIONS = frozenset(
    {"detector_model", "detector_device", "detector_dtype", "precision", "on_long_context"}
)
CAUSAL_OPTIONS = ENCODER_OPTIONS | {"alignment", "reference_tokenizer", "cache_bytes"}
_OPTIONS = {"number": NUMBER_OPTIONS, "lettuceprevent": CAUSAL_OPTIONS, "lettucedetect": ENCODER_OPTIONS}
LITERAL_DETECTORS = frozenset({"number"})
# Those that load a model, which goes to the host's device in the host's precision unless told otherwise.
MODEL_DETECTORS = frozenset({"lettuceprevent", "lettucedetect"})
DETECTOR_OPTIONS = NUMBER_OPTIONS | CAUSAL_OPTIONS


def host_defaults(names: Iterable[str], model: Any) -> dict[str, Any]:
    """Options of detectors that load a model, as the host has them: its device and precision, or float32 on a CPU
    that is slow in that one."""
    if not MODEL_DETECTORS.intersection(names):
        return {}
    from .precision import fast_dtype

    return {"detector_device": model.device, "detector_dtype": fast_dtype(model.dtype, model.device)}


def known_detectors() -> list[str]:
    """The names that `detector_type` may hold."""
    return sorted({*_BUILDERS, PROBE})


def parse_detector_type(detector_type: str | None) -> list[str]:
    """The names in `detector_type`, which joins them with `+`; unknown or repeated ones raise ValueError."""
    if detector_type is None:
        return []
    if not isinstance(detector_type, str):
        raise TypeError(f"detector_type: expected a string or None, got {type(detector_type).__name__}")
    names = [name.strip() for name in detector_type.split("+")]
    for name in names:
        if name not in known_detectors():
            known = ", ".join(known_detectors())
            raise ValueError(
                f"detector_type: expected one of {known}, or several joined by '+', or None; "
                f"got {detector_type!r}"
            )
    if len(set(names)) < len(names):
        raise ValueError(f"detector_type: expected each detector once, got {detector_type!r}")
    return names


def build_detectors(
    detector_type: str | None,
    tokenizer: Any,
    vocabulary: Any,
    groundings: Sequence[Grounding],
    **options: Any,
) -> list[Detector]:
    """The detectors that `detector_type` names, in its order, with literal detectors first.

    A literal detector comes as a list with one entry per grounding; for the probe there is none. Each option goes
    to the detectors that have it; an option that none of the named detectors has raises TypeError, and so does a
    `detector_model` that would go to two.
    """
    names = [name for name in parse_detector_type(detector_type) if name != PROBE]
    taken = frozenset[str]().union(*(_OPTIONS[name] for name in names))
    foreign = sorted(set(options) - taken)
    if foreign:
        raise TypeError(f"detector_type {detector_type!r} has no option {', '.join(foreign)}")
    if "detector_model" in options and len(MODEL_DETECTORS.intersection(names)) > 1:
        raise TypeError(f"detector_model: expected one detector that loads a model, got {detector_type!r}")
    return [
        _BUILDERS[name](
            tokenizer, vocabulary, groundings, {k: v for k, v in options.items() if k in _OPTIONS[name]}
        )
        for name in sorted(names, key=lambda name: name != "number")
    ]
