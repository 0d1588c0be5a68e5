"""What one generation did, as data: interventions, counters, and where the time went.

Contract: recording costs a few microseconds a step; everything that is worth reading is worked out when it is
read. A report may collect several generations (`runs`); nothing in it is ever dropped unless `reset` is
called. Counters count what happened at steps, also on beams and drafts that were not returned; `sequences`
says what holds for the ids that were returned.
"""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .trace import Trace
from .version import VERSION

SCHEMA_VERSION = 1
STAGES = ("state", "mask", "detector", "apply", "total")
DEAD_CAUSES = ("skipped", "no_way_out", "penalty", "external", "error")


@dataclass(frozen=True)
class Intervention:
    """A step at which a candidate was penalised: what, why, and on what evidence.

    run, step, row: which generation of the report, which call of its processor, which row of that call.
    history_length: ids the row had generated. first_choice: whether the candidate was the host's argmax.
    action: "blocked" (masked, the next best stands), "avoided" (every start of a literal was masked as well),
    "forced" (inside a literal, or with every scored candidate flagged: the host was held to something else),
    "retracted" (the row went back to where the literal began), "closed" (a beam inside a literal was closed off).
    span: offsets of the nearest supported form, in characters of `Grounding.text`; evidence: that text, only
    where the caller asked for it. returned: whether it lies on a returned sequence; None until that is known.
    """

    run: int
    step: int
    row: int
    history_length: int
    token_id: int
    text: str
    detector: str
    version: str
    score: float | None
    threshold: float | None
    label: str
    first_choice: bool
    action: str
    literal: str | None
    nearest: str | None
    span: tuple[int, int] | None
    evidence: str | None
    returned: bool | None


@dataclass
class Retraction:
    """A literal that was taken back because the host did not mean any supported one.

    history_length: ids the row had before the literal. meant: what the host was about to write. nearest,
    span: the form of the context it would have been held to, and its offsets in `Grounding.text`.
    taken_back: the text that was dropped. instead: what the row says there in the end.
    """

    run: int
    row: int
    history_length: int
    meant: str
    nearest: str | None
    span: tuple[int, int] | None
    taken_back: str
    instead: str = ""


@dataclass(frozen=True)
class Flagged:
    """Tokens in a row, start to end (exclusive), whose risk is above the probe's threshold; risk: the highest."""

    start: int
    end: int
    text: str
    risk: float


@dataclass(frozen=True)
class TokenRisks:
    """What a probe said of one returned sequence, P(unsupported) for each of its tokens.

    before: from the host's state before the token. after: from its state after it, None for a token that the host
    did not read (the last one). flagged: by `after`, or where there is none by `before`.
    """

    before: list[float | None]
    after: list[float | None]
    flagged: list[Flagged]

    @classmethod
    def of(
        cls,
        before: Sequence[float | None],
        after: Sequence[float | None],
        thresholds: Sequence[float],
        pieces: Sequence[bytes],
    ) -> TokenRisks:
        """From risks per token, the two thresholds, and the bytes that each token adds."""
        flagged: list[Flagged] = []
        start, worst = -1, 0.0
        for at in range(len(pieces) + 1):
            risk, limit = None, 1.0
            if at < len(pieces):
                late = after[at] is not None
                risk, limit = (after[at], thresholds[1]) if late else (before[at], thresholds[0])
            if risk is not None and risk > limit:
                start, worst = (at, risk) if start < 0 else (start, max(worst, risk))
            elif start >= 0:
                text = b"".join(pieces[start:at]).decode("utf-8", "replace")
                flagged.append(Flagged(start, at, text, worst))
                start = -1
        return cls(list(before), list(after), flagged)


@dataclass(frozen=True)
class SequenceSummary:
    """What holds for one returned sequence: counted again from its ids alone.

    unfinished: a literal was still open and not yet supported when the ids ended (cut from outside).
    dead: literals that ended, or go on, unsupported. interventions: how many lie on it. risks: a probe's, where
    one watched the host.
    """

    row: int
    tokens: int
    unfinished: bool
    dead: int
    word_leaks: int
    interventions: int
    risks: TokenRisks | None = None


class Timings:
    """Nanoseconds per stage and step, and the wall time of the generations they belong to."""

    def __init__(self) -> None:
        self.samples: dict[str, array[int]] = {stage: array("q") for stage in STAGES}
        self.elapsed_ns = 0
        self.prepare_ns = 0

    def add(self, state: int, mask: int, detector: int, apply: int, total: int) -> None:
        """One step; `detector` is 0 where no model detector ran and is then left out of its figures."""
        samples = self.samples
        samples["state"].append(state)
        samples["mask"].append(mask)
        samples["apply"].append(apply)
        samples["total"].append(total)
        if detector:
            samples["detector"].append(detector)

    def to_dict(self) -> dict[str, Any]:
        """Per stage: steps, p50_us, p95_us, max_us, total_ms and share (of the generation's wall time)."""
        stages = {name: self._figures(values) for name, values in self.samples.items() if len(values)}
        return {
            "generation_ms": self.elapsed_ns / 1e6,
            "prepare_ms": self.prepare_ns / 1e6,
            "stages": stages,
        }

    def _figures(self, values: array[int]) -> dict[str, Any]:
        ordered = sorted(values)
        total = sum(ordered)
        return {
            "steps": len(ordered),
            "p50_us": percentile(ordered, 0.50) / 1e3,
            "p95_us": percentile(ordered, 0.95) / 1e3,
            "max_us": ordered[-1] / 1e3,
            "total_ms": total / 1e6,
            "share": total / self.elapsed_ns if self.elapsed_ns else None,
        }


def percentile(ordered: Sequence[int], share: float) -> int:
    """The nearest-rank percentile of values that are already sorted."""
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


class PreventionReport:
    """The interventions, counters and latencies of one or more generations.

    Pass one in, read it afterwards. `counters` always holds steps, checked, skipped, penalised, forced, dead
    and errors; others appear when they first happen. `options` holds what the run was asked to do.
    trace: how many of the likeliest candidates to keep per step, with scores and times (`trace.py`); 0, the
    default, keeps none and costs nothing.
    """

    def __init__(self, *, trace: int = 0) -> None:
        self._trace_width = trace
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.counters: Counter[str] = Counter(
            dict.fromkeys(("steps", "checked", "skipped", "penalised", "forced", "dead", "errors"), 0)
        )
        self.timings = Timings()
        self.options: dict[str, Any] = {}
        self.sequences: list[SequenceSummary] = []
        self.retractions: list[Retraction] = []
        self.runs = 0
        self.trace = Trace(self._trace_width) if self._trace_width else None
        self.records: list[Any] = []  # interventions as the processor keeps them
        self._built: list[Intervention] = []
        self._notes: dict[str, Callable[[], dict[str, int]]] = {}

    def add_notes(self, detector: str, notes: Callable[[], dict[str, int]]) -> None:
        """Include a detector's own counters (truncated contexts and the like) whenever the report is read."""
        self._notes[detector] = notes

    def forget_built(self) -> None:
        """Build the interventions anew at the next reading: something about them has become known."""
        self._built = []

    @property
    def interventions(self) -> list[Intervention]:
        """All interventions in the order in which they happened."""
        self._built.extend(record.build() for record in self.records[len(self._built) :])
        return list(self._built)

    @property
    def notes(self) -> dict[str, dict[str, int]]:
        """The detectors' own counters, by detector name."""
        return {name: dict(notes()) for name, notes in self._notes.items()}

    def to_dict(self) -> dict[str, Any]:
        """The whole report as plain data; `schema_version` changes when a key changes its meaning or goes."""
        found = {
            "schema_version": SCHEMA_VERSION,
            "version": VERSION,
            "options": dict(self.options),
            "runs": self.runs,
            "counters": {key: int(value) for key, value in self.counters.items()},
            "notes": self.notes,
            "latency": self.timings.to_dict(),
            "interventions": [asdict(item) for item in self.interventions],
            "retractions": [asdict(item) for item in self.retractions],
            "sequences": [asdict(item) for item in self.sequences],
        }
        if self.trace is not None:
            found["trace"] = self.trace.to_dict()
        return found

    def to_json(self, path: str | Path | None = None, *, indent: int | None = 2) -> str:
        """The report as JSON text (infinite thresholds and the like become null); also written to `path`."""
        text = json.dumps(finite(self.to_dict()), ensure_ascii=False, indent=indent, allow_nan=False)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    def summary(self) -> str:
        """The report for people: a few lines of text."""
        count = self.counters
        lines = [
            f"{count['steps']} steps, {count['checked']} checked, {count['skipped']} skipped; "
            f"first choice penalised at {count['penalised']} ({count['forced']} forced)"
        ]
        if "gate" in self.options:
            lines.append(
                f"{count['gated']} steps at which the probe kept the model detectors from being asked"
            )
        lines += [_sentence(item) for item in self.interventions if item.returned is not False]
        lines += [
            f"  token {item.history_length}: took back {item.taken_back!r}, which was to become {item.meant!r}; "
            f"says {item.instead!r}"
            for item in self.retractions
        ]
        for sequence in self.sequences:
            found = sequence.risks.flagged if sequence.risks is not None else []
            lines += [
                f"  tokens {each.start}-{each.end}: {each.text!r} flagged by the probe, risk {each.risk:.2f}"
                for each in found
            ]
        if "probe" in self.options:
            told = [sequence.risks for sequence in self.sequences if sequence.risks is not None]
            tokens = sum(each.end - each.start for risks in told for each in risks.flagged)
            lines.append(f"the probe flags {tokens} of {sum(len(risks.before) for risks in told)} tokens")
        if count["dead"]:
            causes = ", ".join(
                f"{cause} {count[f'dead_{cause}']}" for cause in DEAD_CAUSES if count[f"dead_{cause}"]
            )
            lines.append(
                f"{count['dead']} literals could not be kept supported ({causes}) "
                "and went unchecked to their end"
            )
        for key, text in _WARNINGS.items():
            if count[key]:
                lines.append(f"{count[key]} {text}")
        for name, notes in self.notes.items():
            lines += [f"{name}: {key} {value}" for key, value in notes.items() if value]
        lines.append(self._latency_line())
        return "\n".join(lines)

    def _latency_line(self) -> str:
        stages = self.timings.to_dict()["stages"]
        if not stages:
            return "no step was timed"
        total = stages["total"]
        text = (
            f"cost per step: median {total['p50_us']:.0f} µs, p95 {total['p95_us']:.0f} µs, "
            f"max {total['max_us']:.0f} µs"
        )
        if total["share"] is not None:
            text += (
                f"; {100 * total['share']:.1f} % of the generation's {self.timings.elapsed_ns / 1e9:.2f} s"
            )
        return text

    def __repr__(self) -> str:
        return f"<PreventionReport: {self.counters['steps']} steps, {self.counters['penalised']} penalised>"


_WARNINGS = {
    "retractions_refused": "literals were held to a supported form: too many retractions, or one from the prompt",
    "beams_held": "beams were held to a supported form: every beam of an answer wanted out of a literal",
    "retract_unavailable": "generations could not go back (drafts, encoder-decoder, inputs_embeds); they held literals",
    "unfinished": "returned sequences were cut inside a literal",
    "skipped_blocked": "skipped steps let through a token that a check would have blocked",
    "word_leaks": "number words got through from a beginning that could not be judged",
    "no_finite_scores": "steps came without any finite score and were passed through",
    "no_way_out": "steps had no supported way to go on and were not masked",
    "errors": "detector failures",
}


def _sentence(item: Intervention) -> str:
    text = f"  token {item.history_length}: {item.text!r} {item.action}"
    if item.literal:
        text += f", {item.literal!r} is {item.label}"
    if item.score is not None:
        text += f", score {item.score:.2f}"
    if item.nearest is not None:
        text += f"; the context has {item.nearest!r}"
        if item.span is not None:
            text += f" at {item.span[0]}-{item.span[1]}"
    return text


def finite(value: Any) -> Any:
    """The same data with what JSON cannot say (inf, nan) as None, and tuples as lists."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
