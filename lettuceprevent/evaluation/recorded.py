"""What another grid point would have done with a recorded generation: the same, or from which step not.

Contract, for greedy decoding of one row. A generation is a chain of steps, and each picks the token with the
highest score. The host's scores depend on the ids so far. The detectors' verdicts depend on the grounding and
the ids so far, never on what was skipped before (states are functions of the path). So if at every step of a
recording the other point picks the token that was picked there, its generation *is* the recording, by
induction over the steps; retractions included, since which places are closed follows from the picks as well.
The first step at which it picks another token ends that: from there nothing is known, and it must be generated.

What a point picks at a recorded step:
- skipped (the host's top probability is above its skip_threshold): the first choice, and nothing is taken back;
- checked, as it was in the recording, with the same limits: what was picked there;
- not asked of the model detectors because of the gate (the probe's risk, like the host's scores, depends on the ids
  so far): what the literal detectors alone left on top, which the recording holds;
- checked with another confidence_threshold or number of candidates: worked out from the recorded verdicts with
  the processor's own rule, where all the candidates that the rule would ask about were asked about;
- else unknown, which counts as "not the same".

Exact up to the rounding of floating point: a causal detector scores a skipped token together with later ones,
in another matrix product; a probability within that rounding (about 1e-6) of a threshold may fall on the other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..candidates import ROUNDS
from ..report import PreventionReport
from ..trace import TraceStep


@dataclass(frozen=True)
class Point:
    """One place of the grid. Of the last three, None leaves what holds for every place, or generate()'s default."""

    skip_threshold: float
    confidence_threshold: float | None = None
    candidates: int | None = None
    gate_threshold: float | None = None

    def options(self) -> dict[str, Any]:
        """As arguments of generate()."""
        values = {
            "skip_threshold": self.skip_threshold,
            "confidence_threshold": self.confidence_threshold,
            "candidates": self.candidates,
            "gate_threshold": self.gate_threshold,
        }
        return {name: value for name, value in values.items() if value is not None}

    def __str__(self) -> str:
        return ", ".join(
            f"{name.removesuffix('_threshold')} {value:g}" for name, value in self.options().items()
        )


@dataclass(frozen=True)
class Limits:
    """How model detectors are asked: above which probability a candidate is unsupported, how many are scored
    at once, the tokens that end an answer (never scored), and whether unscored tokens may be picked."""

    threshold: float
    count: int
    ends: frozenset[int]
    keep_unscored: bool = False


@dataclass(frozen=True)
class Recording:
    """A real generation at `point`, with its trace. limits: those of `point`, for model detectors.

    seconds: of the whole call. Where the picks are not the answer (another processor comes after ours)
    nothing can be told from it.
    """

    point: Point
    ids: tuple[int, ...]
    report: PreventionReport
    limits: Limits
    seconds: float

    @property
    def steps(self) -> Sequence[TraceStep]:
        """Every step in order, also those that were taken back."""
        assert self.report.trace is not None
        return self.report.trace.steps

    @cached_property
    def kept(self) -> Sequence[TraceStep | None]:
        """The steps that led to the answer."""
        assert self.report.trace is not None
        return self.report.trace.answers()[0].steps

    @cached_property
    def chain(self) -> bool:
        """Whether the picks are the answer."""
        kept = self.kept
        return all(
            step is not None and step.choice == token for step, token in zip(kept, self.ids, strict=True)
        )

    def gives(self, point: Point, limits: Limits) -> bool:
        """Whether a generation at `point` (with `limits`) is this recording."""
        return self.chain and all(self._same(step, point, limits) for step in self.steps)

    def _same(self, step: TraceStep, point: Point, limits: Limits) -> bool:
        if skips(point, step):
            return step.choice == step.first and step.action != "retracted"
        unasked = gates(self.point, step)
        if skips(self.point, step) or not (step.checked or unasked):
            return False  # nobody asked the detectors here
        if gates(point, step):
            return unasked or step.choice == step.masked
        if unasked:
            return False
        if not step.seen or limits == self.limits:
            return True
        return pick(step, limits) == step.choice


def skips(point: Point, step: TraceStep) -> bool:
    """Whether `point` leaves the step unchecked."""
    return point.skip_threshold < 1.0 and step.chance > point.skip_threshold


def gates(point: Point, step: TraceStep) -> bool:
    """Whether `point` leaves the model detectors unasked at a step that it does not skip."""
    limit = point.gate_threshold
    return limit is not None and limit > 0 and step.risk is not None and step.risk <= limit


def pick(step: TraceStep, limits: Limits) -> int | None:
    """The token that model detectors with `limits` would leave on top at a checked step; None where the
    recording does not hold every verdict this takes."""
    found: dict[int, float] = {}
    asked: tuple[int, ...] = ()
    for turn in range(ROUNDS):
        upto = (turn + 1) * limits.count
        if len(step.seen) < upto:
            return None
        asked = step.seen[:upto]
        found = {token: step.found[token][0] for token in asked if token not in limits.ends}
        ends_here = step.first in limits.ends and step.first in asked and bool(found)
        if ends_here or any(score <= limits.threshold for score in found.values()):
            break
    flagged = [token for token, score in found.items() if score > limits.threshold]
    if found and len(flagged) == len(found):
        flagged.remove(min(flagged, key=lambda token: found[token]))
        if limits.keep_unscored:
            return None  # a token nobody scored may be on top
    return next((token for token in asked if token not in flagged), None)


@dataclass(frozen=True)
class Cost:
    """Nanoseconds: of the host alone for the ids that were kept, and of the whole generation. skipped: steps at
    which the detectors, or the model detectors because of the gate, were not asked."""

    host: int
    whole: int
    skipped: int
    steps: int


def cost(recording: Recording, point: Point) -> Cost:
    """What the generation at `point` costs, from the recorded steps of one that it gives.

    The host's time is measured between the steps, from the call of generate() on (`Trace.left`), the prompt
    included and the reading of the context not; reading a probe is part of the host's passes. Of places that were
    visited twice (retractions) the first visit counts as the host's own. A step that `point` skips costs what it
    cost here but for the detector's share and the masking, one that it gates but for the model detectors' share. A
    literal detector works out its mask at skipped steps, too (it counts what a skip lets through), so skipping
    saves little there. With other candidates than recorded, the detector's time is the recorded one.
    """
    whole = skipped = 0
    first: dict[tuple[int, ...], TraceStep] = {}
    for step in recording.steps:
        first.setdefault(step.node.path(), step)
        whole += step.host + step.ended - step.began
        if skips(point, step):
            skipped += 1
            if step.checked:
                _, _, detector, apply = step.stages
                whole -= detector + apply
        elif gates(point, step):
            skipped += 1
            whole -= step.stages[2]
    visits = (first.get(recording.ids[:at]) for at in range(len(recording.ids)))
    host = sum(step.host for step in visits if step is not None) - recording.report.timings.prepare_ns
    return Cost(host, whole, skipped, len(recording.steps))
