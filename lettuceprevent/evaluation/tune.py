"""`lettuceprevent tune HOST`: what each setting costs and what it leaves unsupported, on one's own prompts.

Contract: greedy decoding, one prompt at a time. Every grid point gets the answers it would generate: those of
a recording that `recorded.py` proves to be the same, else generated for real. Unsupported content is counted
by the independent checker of numbers (as `score` counts it), or by an auditor that is passed in. Time is the
generation's over the host's own for the same ids, both from the same call, so that other load on the machine
falls on both. A point whose answers fail the degeneration gate, the host's perplexity of them included, is never
recommended; what the host thinks of an answer costs a pass over it, outside of what is timed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from itertools import product
from pathlib import Path
from typing import Any

import torch

from ..candidates import THRESHOLD
from ..console import say
from ..detectors import DETECTOR_OPTIONS, PROBE, build_detectors, host_defaults, parse_detector_type
from ..generation import generate
from ..grounding import Grounding
from ..probe import Probe
from ..profiles import Profile, describe_host, detector_versions
from ..report import PreventionReport, finite
from .arms import jsonable, make_arm, option_value
from .auditors import Auditor, Sample
from .degeneration import Shape, gate, shape
from .evaluate import EvaluatedHost, versions
from .number_metrics import context_numbers, counts, judged
from .prompts import Prompt, Prompts
from .recorded import Cost, Limits, Point, Recording, cost

_EQUAL_TIME = 0.01
_CANDIDATES = 10  # generate()'s default


@dataclass(frozen=True)
class Answer:
    """What a point, or the plain host (cost None), answers to one prompt.

    unsupported: how much of it is; with the checker of numbers those of that status, as in `score`'s headline, without
    derivable and rounded ones. simulated: whether it is the answer of another point's generation.
    """

    text: str
    tokens: int
    unsupported: int
    shape: Shape
    seconds: float
    cost: Cost | None = None
    simulated: bool = False


@dataclass
class PointResult:
    """A grid point (None: the plain host) with its answers, one per prompt."""

    point: Point | None
    answers: list[Answer] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def unsupported(self) -> float:
        """Unsupported per answer."""
        return sum(answer.unsupported for answer in self.answers) / len(self.answers)

    @property
    def time_ratio(self) -> float:
        """Time of the generations over the host's own for the same ids; 1 for the plain host."""
        costs = [answer.cost for answer in self.answers if answer.cost is not None]
        return sum(c.whole for c in costs) / sum(c.host for c in costs) if costs else 1.0

    @property
    def skipped(self) -> float:
        """Share of steps that were not checked, gated ones among them; 1 for the plain host."""
        costs = [answer.cost for answer in self.answers if answer.cost is not None]
        return sum(c.skipped for c in costs) / sum(c.steps for c in costs) if costs else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Its figures as plain data."""
        real = [answer.seconds for answer in self.answers if not answer.simulated]
        return {
            **(asdict(self.point) if self.point else {}),
            "unsupported_per_answer": round(self.unsupported, 6),
            "time_ratio": round(self.time_ratio, 6),
            "skipped": round(self.skipped, 6),
            "tokens_per_answer": sum(answer.tokens for answer in self.answers) / len(self.answers),
            "seconds_per_generated_answer": round(sum(real) / len(real), 3) if real else None,
            "generated": sum(not answer.simulated for answer in self.answers),
            "simulated": sum(answer.simulated for answer in self.answers),
            "failed": self.failed,
            "unsupported": [answer.unsupported for answer in self.answers],
        }


@dataclass(frozen=True)
class Tuned:
    """The result: the plain host, every grid point, and which one is recommended."""

    plain: PointResult
    points: list[PointResult]
    chosen: PointResult | None
    within_budget: bool
    seconds: float


class Tuner:
    """Answers at grid points. options: of generate()'s prevention, without those of the grid."""

    def __init__(
        self,
        host: EvaluatedHost,
        options: Mapping[str, Any],
        max_new_tokens: int,
        *,
        auditor: Auditor | None = None,
        simulate: bool = True,
    ) -> None:
        self.host = host
        self.options = {"detector_type": "number", **options}
        self.max_new_tokens = max_new_tokens
        self.auditor = auditor
        self.simulate = simulate
        self.generations = 0

    def limits(self, point: Point) -> Limits:
        """How model detectors are asked at `point`."""
        least = max(2, 1 + len(self.host.ends))
        confidence = self._or("confidence_threshold", point.confidence_threshold, THRESHOLD)
        count = self._or("candidates", point.candidates, _CANDIDATES)
        keep = self.options.get("unscored") == "keep"
        return Limits(float(confidence), max(int(count), least), self.host.ends, keep)

    def _or(self, name: str, value: Any, default: Any) -> Any:
        return value if value is not None else self.options.get(name) or default

    def plain(self, prompt: Prompt) -> Answer:
        """The host's own answer."""
        ids, seconds = self._generate(prompt, {"detector_type": None}, None)
        return self._judged(prompt, ids, seconds)

    def record(self, prompt: Prompt, point: Point) -> Recording:
        """A real generation at `point`."""
        self.generations += 1
        report = PreventionReport(trace=1)
        options = {
            **self.options,
            **point.options(),
            "input_text": Grounding(prompt.passages, prompt.query),
            "report": report,
        }
        ids, seconds = self._generate(prompt, options, report)
        # a profile names policy and threshold, also where they were the defaults
        self.options.setdefault("on_unsupported", report.options["on_unsupported"])
        if point.confidence_threshold is None and "confidence_threshold" in report.options:
            self.options.setdefault("confidence_threshold", report.options["confidence_threshold"])
        return Recording(point, ids, report, self.limits(point), seconds)

    def answers(self, prompt: Prompt, points: Sequence[Point]) -> dict[Point, Answer]:
        """The answers to one prompt at every point, with as few generations as the proof allows."""
        found: dict[Point, Answer] = {}
        recordings: list[tuple[Recording, Answer]] = []
        # what checks more comes first: it says more about the others
        for point in sorted(points, key=_checks_most):
            limits = self.limits(point)
            known = next(
                (each for each in recordings if self.simulate and each[0].gives(point, limits)), None
            )
            if known is None:
                recording = self.record(prompt, point)
                answer = self._judged(prompt, recording.ids, recording.seconds)
                recordings.append((recording, answer))
            else:
                recording, answer = known
            found[point] = Answer(
                answer.text,
                answer.tokens,
                answer.unsupported,
                answer.shape,
                answer.seconds,
                cost(recording, point),
                known is not None,
            )
        return found

    @torch.inference_mode()
    def _generate(
        self, prompt: Prompt, options: Mapping[str, Any], report: PreventionReport | None
    ) -> tuple[tuple[int, ...], float]:
        inputs: dict[str, Any] = self.host.encode([self.host.prompt_text(prompt)])
        width = inputs["input_ids"].shape[1]
        began = time.perf_counter_ns()
        if report is not None and report.trace is not None:
            report.trace.left = began
        out = generate(
            self.host.model,
            **inputs,
            tokenizer=self.host.tokenizer,
            max_new_tokens=self.max_new_tokens,
            do_sample=False,
            num_beams=1,
            **options,
        )
        row = out[0, width:].tolist()
        seconds = (time.perf_counter_ns() - began) / 1e9
        end = next((at for at, token in enumerate(row) if token in self.host.ends), len(row) - 1)
        return tuple(row[: end + 1]), seconds

    def _judged(self, prompt: Prompt, ids: Sequence[int], seconds: float) -> Answer:
        text = self.host.text(ids)
        if self.auditor is not None:
            sample = Sample(Grounding(prompt.passages, prompt.query), text)
            unsupported = len(self.auditor.audit(sample))
        else:
            line = {
                "prompt": {
                    "id": prompt.id,
                    "passages": list(prompt.passages),
                    "query": prompt.query,
                    "text": self.host.prompt_text(prompt),
                },
                "answer": {"text": text, "cut": not ids or ids[-1] not in self.host.ends},
            }
            unsupported = counts(judged(line, context_numbers(line)))["unsupported"]
        log_probs = self.host.view(self.host.prompt_text(prompt), ids)["log_probs"]
        return Answer(text, len(ids), unsupported, shape(text, len(ids), log_probs), seconds)


def _checks_most(point: Point) -> tuple[float, float, int, float]:
    return (
        -point.skip_threshold,
        point.gate_threshold or 0.0,
        -(point.candidates or 0),
        point.confidence_threshold or 0.0,
    )


def tune(
    tuner: Tuner,
    prompts: Sequence[Prompt],
    points: Sequence[Point],
    *,
    budget: float,
    stop_after: float | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Tuned:
    """Every point on every prompt, and the one with least unsupported content of those that take at most
    `budget` times the host's time (the quickest where none does). stop_after: seconds after which no further
    prompt is begun; the figures are then over the prompts that were."""
    if not prompts or not points:
        raise ValueError(f"expected prompts and grid points, got {len(prompts)} and {len(points)}")
    if budget < 1:
        raise ValueError(f"budget: expected at least 1, as a multiple of the host's own time, got {budget}")
    began = time.monotonic()
    unique = list(dict.fromkeys(points))
    plain = PointResult(None)
    results = {point: PointResult(point) for point in unique}
    warm = Tuner(tuner.host, tuner.options, 2)  # loads the detector, outside of what is timed
    warm.record(prompts[0], unique[0])
    for at, prompt in enumerate(prompts, 1):
        plain.answers.append(tuner.plain(prompt))
        for point, answer in tuner.answers(prompt, unique).items():
            results[point].answers.append(answer)
        spent = time.monotonic() - began
        say(
            f"{at}/{len(prompts)} prompts, {tuner.generations} generations for {at * len(unique)} answers, "
            f"{spent / 60:.1f} min, {spent / at * (len(prompts) - at) / 60:.1f} min left"
        )
        if stop_after is not None and spent > stop_after and at < len(prompts):
            say(f"stopped after {at} of {len(prompts)} prompts")
            break
    shapes = [answer.shape for answer in plain.answers]
    plain.failed = gate(shapes)
    for result in results.values():
        result.failed = gate([answer.shape for answer in result.answers], shapes)
    found = sorted(results.values(), key=lambda result: _checks_most(result.point or unique[0]))
    chosen, within = recommend(found, budget)
    return Tuned(plain, found, chosen, within, time.monotonic() - began)


def recommend(points: Sequence[PointResult], budget: float) -> tuple[PointResult | None, bool]:
    """The point to use, and whether it is within the budget; None where every point fails the gate.

    Among equals in unsupported content the quickest; times within a hundredth are equal, too, and then the
    point that checks most.
    """
    sound = [point for point in points if not point.failed]
    fitting = [point for point in sound if point.time_ratio <= budget]
    if not fitting:
        return min(sound, key=lambda point: point.time_ratio, default=None), False
    least = min(point.unsupported for point in fitting)
    best = [point for point in fitting if point.unsupported == least]
    quickest = min(point.time_ratio for point in best)
    equal = [point for point in best if point.time_ratio <= quickest + _EQUAL_TIME]
    return min(
        equal, key=lambda point: _checks_most(point.point) if point.point else (0.0, 0.0, 0, 0.0)
    ), True


# --- what is written ---------------------------------------------------------------------------------


def make_profile(tuner: Tuner, tuned: Tuned, prompts: Prompts, budget: float) -> Profile:
    """The profile of the recommended point; raises ValueError where there is none."""
    if tuned.chosen is None or tuned.chosen.point is None:
        raise ValueError("expected a grid point whose answers hold together, got none")
    options = {**tuner.options, **tuned.chosen.point.options()}
    detector = str(options.pop("detector_type"))
    chosen = tuned.chosen.to_dict()
    return Profile(
        detector={
            "type": detector,
            "model": options.get("detector_model"),
            "versions": _versions_of(tuner, prompts.prompts[0]),
        },
        options=jsonable(options),
        host=describe_host(tuner.host.model, tuner.host.vocabulary),
        versions=versions(),
        data={"source": prompts.source, "sha256": prompts.sha256, "prompts": len(tuned.plain.answers)},
        decoding={"do_sample": False, "num_beams": 1, "max_new_tokens": tuner.max_new_tokens},
        measured={
            "time_ratio": chosen["time_ratio"],
            "unsupported_per_answer": chosen["unsupported_per_answer"],
            "plain_unsupported_per_answer": round(tuned.plain.unsupported, 6),
            "judge": tuner.auditor.name if tuner.auditor else "numbers",
            "budget": budget,
            "within_budget": tuned.within_budget,
        },
        made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def _versions_of(tuner: Tuner, prompt: Prompt) -> dict[str, str]:
    kind = tuner.options["detector_type"]
    options = {key: value for key, value in tuner.options.items() if key in DETECTOR_OPTIONS}
    options = {**host_defaults(parse_detector_type(kind), tuner.host.model), **options}
    grounding = Grounding(prompt.passages, prompt.query)
    detectors: list[Any] = build_detectors(
        kind, tuner.host.tokenizer, tuner.host.vocabulary, [grounding], **options
    )
    if tuner.options.get("gate") or PROBE in parse_detector_type(kind):
        detectors.append(Probe.for_host(tuner.host.model, tuner.options.get("probe")))
    return detector_versions(detectors)


def table(tuned: Tuned, budget: float) -> str:
    """The grid as a Markdown table, the recommendation below it."""
    lines = [
        "| setting | unsupported per answer | time | not checked | tokens | generated, re-simulated | |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in [tuned.plain, *tuned.points]:
        figures = result.to_dict()
        counted = (
            f"{figures['generated']}, {figures['simulated']}" if result.point else f"{len(result.answers)}, 0"
        )
        remark = "failed: " + "; ".join(result.failed) if result.failed else ""
        if result is tuned.chosen:
            remark = "**recommended**"
        lines.append(
            f"| {result.point or 'plain'} | {result.unsupported:.3f} | {result.time_ratio:.3f} | "
            f"{result.skipped:.1%} | {figures['tokens_per_answer']:.1f} | {counted} | {remark} |"
        )
    lines.append("")
    if tuned.chosen is None:
        lines.append("No recommendation: the answers of every setting fail the degeneration gate.")
        if tuned.plain.failed:
            lines.append(
                "The host's own answers do, without prevention, so less in them says nothing: take prompts that it "
                "can answer, or fewer new tokens."
            )
    elif tuned.within_budget:
        lines.append(f"Recommended within {budget:g} x the host's time: {tuned.chosen.point}.")
    else:
        lines.append(f"Nothing is within {budget:g} x the host's time; the quickest: {tuned.chosen.point}.")
    return "\n".join(lines)


def plot(tuned: Tuned, path: Path, budget: float) -> None:
    """Unsupported content against time. Needs matplotlib (the extra `plot`), else ValueError."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise ValueError("a plot needs matplotlib: pip install 'lettuceprevent[plot]'") from error
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    labels: dict[tuple[float, float], tuple[tuple[float, float], list[str]]] = {}
    for result in tuned.points:
        at = (result.time_ratio, result.unsupported)
        mark, colour = ("x", "#a3211b") if result.failed else ("o", "#14602f")
        axes.plot(*at, mark, color=colour, markersize=10 if result is tuned.chosen else 6)
        near = (round(result.time_ratio, 2), round(result.unsupported, 2))
        labels.setdefault(near, (at, []))[1].append(str(result.point))
    for at, names in labels.values():  # one label where points lie on each other
        axes.annotate(" / ".join(names), at, textcoords="offset points", xytext=(6, 4), fontsize=8)
    axes.plot(1.0, tuned.plain.unsupported, "s", color="#59625d")
    axes.annotate(
        "plain", (1.0, tuned.plain.unsupported), textcoords="offset points", xytext=(6, 4), fontsize=8
    )
    axes.axvline(budget, linestyle="--", color="#59625d", linewidth=1)
    axes.set(xlabel="time over the host's own", ylabel="unsupported per answer", ylim=(0, None))
    axes.set_title("x: fails the degeneration gate; dashed: the budget", fontsize=9)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


# --- the command -------------------------------------------------------------------------------------


def run_tune(options: argparse.Namespace) -> int:
    """`lettuceprevent tune`; writes profile.json, grid.json, table.md and, where asked, plot.png."""
    from ..hosts import Host
    from .auditors import EncoderAuditor
    from .commands import chosen_prompts

    given = dict(pair.partition("=")[::2] for pair in options.option)
    arm = make_arm(
        "tune", {"detector_type": options.detector, **{k: option_value(v) for k, v in given.items()}}
    )
    if arm.decoding:
        raise ValueError(f"--option: expected options of prevention, got {', '.join(arm.decoding)}")
    prevention = dict(arm.prevention or {})
    if "profile" in prevention:
        raise ValueError("--option: expected options to tune with, got a profile, which is what tuning makes")
    if options.gate_threshold:
        prevention["gate"] = PROBE
    loaded = Host(options.model, options.device, options.dtype)
    probe = Probe.for_host(loaded.model, prevention.get("probe")) if prevention.get("gate") else None
    own = prevention.pop("gate_threshold", None)  # a place of the grid, so that it can be re-simulated
    if probe is not None and own is None:
        own = probe.threshold("before")
    points = [
        Point(*values)
        for values in product(
            options.skip_threshold,
            options.confidence_threshold or [None],
            options.candidates or [None],
            options.gate_threshold or [own],
        )
    ]
    host = EvaluatedHost(loaded.model, loaded.tokenizer, options.model)
    prompts = chosen_prompts(options, host.length)
    auditor = EncoderAuditor.load(options.encoder) if options.encoder else None
    tuner = Tuner(
        host,
        prevention,
        options.max_new_tokens,
        auditor=auditor,
        simulate=not options.no_simulation,
    )
    tuned = tune(
        tuner,
        prompts.prompts,
        points,
        budget=options.budget,
        stop_after=None if options.minutes is None else 60 * options.minutes,
        say=say,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    if options.plot:
        plot(tuned, options.out / "plot.png", options.budget)
    text = table(tuned, options.budget)
    (options.out / "table.md").write_text(text + "\n", encoding="utf-8")
    grid = json.dumps(finite(document(tuner, tuned, prompts)), indent=1, allow_nan=False)
    (options.out / "grid.json").write_text(grid + "\n", encoding="utf-8")
    print(text)
    if tuned.chosen is None:
        return 1
    make_profile(tuner, tuned, prompts, options.budget).save(options.out / "profile.json")
    say(f"\nwritten: {options.out / 'profile.json'}")
    return 0


def document(tuner: Tuner, tuned: Tuned, prompts: Prompts) -> dict[str, Any]:
    """All figures as plain data."""
    return {
        "seconds": round(tuned.seconds, 1),
        "generations": tuner.generations,
        "answers": sum(len(result.answers) for result in tuned.points),
        "host": describe_host(tuner.host.model, tuner.host.vocabulary),
        "options": jsonable(tuner.options),
        "versions": versions(),
        "data": {"source": prompts.source, "sha256": prompts.sha256},
        "prompts": [prompt.id for prompt in prompts.prompts[: len(tuned.plain.answers)]],
        "plain": tuned.plain.to_dict(),
        "points": [result.to_dict() for result in tuned.points],
        "chosen": asdict(tuned.chosen.point) if tuned.chosen and tuned.chosen.point else None,
        "within_budget": tuned.within_budget,
    }
