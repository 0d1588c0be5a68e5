"""`lettuceprevent score`: judge a run that is on disk, without the host.

Contract: prompts are judged one after the other, all arms of one together; nothing of a text is kept, so that
memory does not grow with the answers but for a few numbers each. Arms that differ in more than prevention, lines
that are not of one run, and prompts without a context, raise. An arm that fails the degeneration gate is reported as
failed, with reasons and without reduction or test. What is not defined (a ratio to nothing, the interval of none) is
None, and "-" in the table.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..grounding import Grounding
from ..report import finite
from .arms import PLAIN, OneRun, require_matched_lines
from .auditors import Auditor, Sample, judges_itself
from .degeneration import RELATIVE, Shape, flags, gate, perplexity_ratio, rouge_l, shape
from .number_metrics import (
    FINE,
    REFUSED,
    STATUSES,
    blocked_literals,
    context_numbers,
    counts,
    first_block,
    judged,
    substitutions,
)
from .numbers import Checked, ContextNumbers
from .prompts import Prompt, Prompts
from .runs import Line, Run, RunError
from .statistics import holm, interval, paired


@dataclass
class Scored:
    """One answer in numbers. Fields that need the plain answer are None or 0 for it and without it.

    numbers, words: digit forms and number words by status. seconds, steps: this answer's share of its batch.
    audited: characters in spans, by auditor. spans: these, [start, end, score, label] each.
    """

    prompt: str
    task: str | None
    arm: str
    numbers: dict[str, int]
    words: dict[str, int]
    shape: Shape
    seconds: float
    steps: float
    cut: bool
    degenerate: list[str] = field(default_factory=list)
    rouge_l: float | None = None
    same: bool = False
    substitutions: int = 0
    blocked: dict[str, int] = field(default_factory=dict)
    first_block: str | None = None
    counters: dict[str, float] = field(default_factory=dict)
    audited: dict[str, int] = field(default_factory=dict)
    spans: dict[str, list[tuple[int, int, float, str]]] = field(default_factory=dict)

    @property
    def refused(self) -> int:
        """Numbers that the context does not state: unsupported, derivable or rounded."""
        return sum(self.numbers.get(status, 0) for status in REFUSED)


def score_prompt(
    answers: Mapping[str, Line], *, plain: str = PLAIN, auditors: Sequence[Auditor] = ()
) -> list[Scored]:
    """Score the answers (arm -> line) to one prompt, the plain one first."""
    require_matched_lines(answers)
    numbers = context_numbers(next(iter(answers.values())))
    order = sorted(answers, key=lambda arm: arm != plain)
    base = answers.get(plain)
    base_checked = judged(base, numbers) if base is not None else []
    base_shape = _shape(base) if base is not None else None
    found = []
    for arm in order:
        line = answers[arm]
        checked = base_checked if line is base else judged(line, numbers)
        each = _alone(line, checked, numbers, auditors)
        each.degenerate = flags(each.shape, None if line is base else base_shape)
        if base is not None and line is not base:
            text, before = line["answer"]["text"], base["answer"]["text"]
            each.same = text == before
            each.rouge_l = 1.0 if each.same else rouge_l(text, before)
            each.substitutions = len(substitutions(before, base_checked, text, checked))
            each.first_block = first_block(base, line, base_checked)
        found.append(each)
    return found


def _alone(
    line: Line, checked: Sequence[Checked], numbers: ContextNumbers, auditors: Sequence[Auditor]
) -> Scored:
    """What an answer is without the plain one beside it."""
    prompt, timings = line["prompt"], line["timings"]
    sample = Sample(Grounding(tuple(prompt["passages"]), prompt["query"]), line["answer"]["text"])
    found = {auditor.name: auditor.audit(sample) for auditor in auditors}
    return Scored(
        prompt=prompt["id"],
        task=prompt["task"],
        arm=line["arm"],
        numbers=dict(counts(checked)),
        words=dict(counts(checked, words=True)),
        shape=_shape(line),
        seconds=timings["seconds"],
        steps=timings["steps"] / timings["batch"],
        cut=line["answer"]["cut"],
        blocked=dict(blocked_literals(line, numbers)),
        counters=_counters(line["report"]),
        audited={name: sum(span.end - span.start for span in spans) for name, spans in found.items()},
        spans={
            name: [(span.start, span.end, round(span.score, 4), span.label) for span in spans]
            for name, spans in found.items()
        },
    )


def _shape(line: Line) -> Shape:
    answer = line["answer"]
    return shape(answer["text"], len(answer["ids"]), answer["log_probs"])


def _counters(report: Mapping[str, Any] | None) -> dict[str, float]:
    """What the report counts, as this answer's share where it counts a batch."""
    if report is None:
        return {}
    returned = [item for item in report["interventions"] if item["returned"] is not False]
    firsts = [item for item in returned if item["first_choice"]]
    share = 1 / report.get("batch_rows", 1)
    found: dict[str, float] = {
        "interventions": _places(returned),
        "first_choices": _places(firsts),
        "penalised": len(returned),
        "forced": _places([item for item in returned if item["action"] == "forced"]),
        "retractions": len(report["retractions"]),
        "dead": sum(item["dead"] for item in report["sequences"]),
        "word_leaks": sum(item["word_leaks"] for item in report["sequences"]),
        "unfinished": sum(bool(item["unfinished"]) for item in report["sequences"]),
    }
    for name in ("errors", "skipped", "steps", "checked"):
        found[name] = share * report["counters"].get(name, 0)
    return found


def _places(items: Sequence[Mapping[str, Any]]) -> int:
    """Steps of rows at which interventions were: a model detector, or two detectors, may penalise several candidates
    of one."""
    return len({(item["run"], item["step"], item["row"]) for item in items})


# --- a run -------------------------------------------------------------------------------------------


def score_run(
    path: str | Path,
    *,
    plain: str = PLAIN,
    auditors: Sequence[Auditor] = (),
    details: Callable[[Scored], None] | None = None,
    prompts: Prompts | None = None,
) -> dict[str, Any]:
    """Figures of a run per arm, as data that JSON can hold: what is not defined is None. details: called with
    every scored answer. prompts: those of the run, for lines that were packed without contexts; other data than
    the run's raises RunError. p_holm: over all tests of the run; `correct` does several runs together. warnings:
    auditors that judge an arm which their own kind of detector made.

    An empty run, or one without the plain arm, raises RunError.
    """
    by_arm: dict[str, dict[str, Scored]] = {}
    with Run(path) as run:
        if plain not in run.arms:
            raise RunError(f"{path}: expected an arm {plain!r}, got {', '.join(run.arms) or 'no answers'}")
        line = run.first()
        assert line is not None
        shared: dict[str, Any] = {
            name: line[name] for name in ("host", "decoding", "versions", "data") if name in line
        }
        one = OneRun()
        known = _known(prompts, line)
        prevention: dict[str, Any] = {}
        for prompt in run.prompts:
            answers = run.answers(prompt)
            if prompt in known:
                for each_line in answers.values():
                    each_line["prompt"] |= {"passages": known[prompt].passages, "query": known[prompt].query}
            require_matched_lines(answers)
            for each_line in answers.values():
                one.require(each_line)
            for each in score_prompt(answers, plain=plain, auditors=auditors):
                by_arm.setdefault(each.arm, {})[prompt] = each
                prevention.setdefault(each.arm, answers[each.arm]["prevention"])
                if details is not None:
                    details(each)
        count = len(run.prompts)
    arms = sorted(by_arm, key=lambda arm: arm != plain)
    results = {arm: _result(by_arm[arm], by_arm[plain], arm == plain) for arm in arms}
    for arm in arms:
        results[arm]["prevention"] = prevention[arm]
    told = (judges_itself(auditor, arm, prevention[arm]) for auditor in auditors for arm in arms)
    found = dict(finite({"prompts": count, "plain": plain, "arms": results, **shared}))
    found["warnings"] = [warning for warning in told if warning is not None]
    correct([found])
    return found


def correct(runs: Sequence[dict[str, Any]]) -> None:
    """Holm's correction over all tests of some scored runs together: `p_holm` of each, and in each run `tests`, how
    many they are. Runs that are reported side by side are one study; each corrected alone finds too much."""
    compared = [arm for run in runs for arm in run["arms"].values() if arm.get("test")]
    tests = [test for arm in compared for test in (arm["test"], *arm["audit_tests"].values())]
    for test, p_value in zip(tests, holm([test["p_value"] for test in tests]), strict=True):
        test["p_holm"] = p_value
    for run in runs:
        run["tests"] = len(tests)


def _known(prompts: Prompts | None, line: Line) -> dict[str, Prompt]:
    if prompts is None:
        return {}
    wanted = (line.get("data") or {}).get("sha256")
    if prompts.sha256 != wanted:
        raise RunError(f"expected the run's own prompts, with hash {wanted}, got {prompts.sha256}")
    return {prompt.id: prompt for prompt in prompts.prompts}


def _result(arm: Mapping[str, Scored], plain: Mapping[str, Scored], is_plain: bool) -> dict[str, Any]:
    """An arm's figures; those beside the plain arm are over the prompts that both have answered."""
    both = [prompt for prompt in arm if prompt in plain]
    mine = list(arm.values()) if is_plain else [arm[prompt] for prompt in both]
    others = [plain[prompt] for prompt in both]
    reasons = gate([s.shape for s in mine], None if is_plain else [s.shape for s in others])
    result: dict[str, Any] = {
        "answers": len(mine),
        "status": "failed" if reasons else "ok",
        "reasons": reasons,
        "numbers": _sums(s.numbers for s in mine),
        "words": _sums(s.words for s in mine),
        "unsupported_per_answer": _mean([s.numbers.get("unsupported", 0) for s in mine]),
        "tokens_per_answer": _mean([s.shape.tokens for s in mine]),
        "cut": sum(s.cut for s in mine),
        "degenerate": sum(bool(set(s.degenerate) - RELATIVE) for s in mine),
        "flags": dict(Counter(flag for s in mine for flag in s.degenerate)),
        "seconds_per_answer": _mean([s.seconds for s in mine])["mean"],
        "audited": _sums(s.audited for s in mine),
    }
    if is_plain or not mine:
        return result
    result |= {
        "same_as_plain": sum(s.same for s in mine),
        "rouge_l": _mean([s.rouge_l or 0.0 for s in mine]),
        "perplexity_ratio": perplexity_ratio([s.shape for s in mine], [s.shape for s in others]),
        "counters": {key: round(value, 3) for key, value in _sums(s.counters for s in mine).items()},
        "blocked": _sums(s.blocked for s in mine),
        "first_blocks": dict(Counter(s.first_block for s in mine if s.first_block is not None)),
        "substitutions": sum(s.substitutions for s in mine),
        "time_ratio": _ratio([s.seconds for s in mine], [s.seconds for s in others]),
        "time_ratio_per_step": _over(
            _over(sum(s.seconds for s in mine), sum(s.steps for s in mine)),
            _over(sum(s.seconds for s in others), sum(s.steps for s in others)),
        ),
    }
    if reasons:
        return result
    before = [s.numbers.get("unsupported", 0) for s in others]
    after = [s.numbers.get("unsupported", 0) for s in mine]
    result["test"] = dataclasses.asdict(paired(before, after))
    result["audit_tests"] = {
        name: dataclasses.asdict(paired(*([s.audited[name] for s in side] for side in (others, mine))))
        for name in result["audited"]
        if all(name in s.audited for s in (*others, *mine))
    }
    result["reduction"] = _reduction(before, after)
    result["reduction_refused"] = _reduction([s.refused for s in others], [s.refused for s in mine])
    result["supported_change"] = dataclasses.asdict(
        paired(*([sum(s.numbers.get(name, 0) for name in FINE) for s in side] for side in (others, mine)))
    )
    return result


def _sums(rows: Any) -> dict[str, Any]:
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row)
    return dict(total)


def _mean(values: Sequence[float]) -> dict[str, float]:
    """With an interval; nan of none."""
    low, high = interval(values)
    return {"mean": float(np.mean(values)) if values else float("nan"), "low": low, "high": high}


def _ratio(after: Sequence[float], before: Sequence[float]) -> dict[str, float]:
    """Sum over sum, with an interval over pairs; nan where what was before is 0. The interval is nan where that
    is so in too many resamples."""
    rows = np.array([before, after], float).T
    low, high = interval(rows, _sum_over_sum)
    return {"mean": _sum_over_sum(rows), "low": low, "high": high}


def _sum_over_sum(rows: Any) -> float:
    before, after = rows.sum(0)
    return _over(float(after), float(before))


def _over(part: float, whole: float) -> float:
    """A ratio; nan to nothing, also that of nothing."""
    return part / whole if whole else float("nan")


def _reduction(before: Sequence[float], after: Sequence[float]) -> dict[str, float]:
    """1 - after / before; nan where there was nothing to reduce."""
    ratio = _ratio(after, before)
    return {"mean": 1 - ratio["mean"], "low": 1 - ratio["high"], "high": 1 - ratio["low"]}


# --- for people --------------------------------------------------------------------------------------


def table(results: Mapping[str, Any]) -> str:
    """The figures of `score_run` as Markdown; a failed arm has its reasons in place of a reduction. "-" where a
    figure is not defined, nothing where it does not apply."""
    head = (
        "arm", "answers", "unsupported", "reduction (95 %)", "p (Holm)", "effect r", "supported", "derivable",
        "over-blocked", "substitutions", "forced", "degenerate", "perplexity", "ROUGE-L", "time",
    )  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    notes = []
    for name, arm in results["arms"].items():
        numbers = arm["numbers"]
        row = [name, arm["answers"], numbers.get("unsupported", 0)]
        test, compared = arm.get("test"), "rouge_l" in arm
        if arm["status"] == "failed":
            row += ["**failed**", "", ""]
            notes.append(f"{name} failed: {'; '.join(arm['reasons'])}.")
        elif test:
            reduction = arm["reduction"]
            row += [_interval(reduction, "{:.0%}"), f"{test['p_holm']:.2g}", f"{test['effect']:.2f}"]
        else:
            row += ["", "", ""]
        row += [sum(numbers.get(status, 0) for status in FINE), numbers.get("derivable", 0)]
        if compared:
            blocks = arm["first_blocks"]
            wrong = sum(blocks.get(status, 0) for status in FINE)
            row += [f"{wrong} of {sum(blocks.values())}" if blocks else "", arm["substitutions"]]
            row.append(round(arm["counters"].get("forced", 0)))
        else:
            row += ["", "", ""]
        row.append(arm["degenerate"])
        if compared:
            row += [_figure(arm["perplexity_ratio"], "{:.2f}"), _figure(arm["rouge_l"]["mean"], "{:.2f}")]
            row.append(_interval(arm["time_ratio"], "{:.2f}"))
        else:
            row += ["", "", ""]
        lines.append("| " + " | ".join(map(str, row)) + " |")
    notes += results.get("warnings", [])
    if results.get("tests"):
        notes.append(f"p after Holm's correction over {results['tests']} tests.")
    return "\n".join([*lines, *_audits(results["arms"]), *(f"\n{note}" for note in notes)])


def _audits(arms: Mapping[str, Any]) -> list[str]:
    """A table of what auditors flagged, where there were any."""
    names = sorted({name for arm in arms.values() for name in arm["audited"]})
    if not names:
        return []
    head = ["arm", *(f"{name}: characters{more}" for name in names for more in ("", ", p (Holm)"))]
    lines = ["", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for arm, found in arms.items():
        row: list[Any] = [arm]
        for name in names:
            test = found.get("audit_tests", {}).get(name)
            row += [found["audited"].get(name, 0), "" if test is None else f"{test['p_holm']:.2g}"]
        lines.append("| " + " | ".join(map(str, row)) + " |")
    return lines


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _interval(value: Mapping[str, float | None], form: str) -> str:
    mean, low, high = (_figure(value[key], form) for key in ("mean", "low", "high"))
    if mean == "-":
        return mean
    return f"{mean} (-)" if "-" in (low, high) else f"{mean} ({low} to {high})"


def dump(each: Scored, **more: Any) -> str:
    """A scored answer as one JSON line, with what else is to stand in it."""
    data = dataclasses.asdict(each) | more
    data["numbers"] = {status: each.numbers.get(status, 0) for status in STATUSES}
    return json.dumps(finite(data), ensure_ascii=False, allow_nan=False)
