"""What the host could have said at each step, what became of it, and how long it took: on request only.

Contract: `PreventionReport(trace=N)` keeps the N likeliest candidates of every step of every row, with their
scores before and after, and the four time stamps of the step. Without it nothing here runs. Steps are kept in
the order in which they happened, also those on beams that were dropped and on text that was taken back;
`answers()` finds those that led to what was returned.
"""

from __future__ import annotations

import codecs
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .masking import top_chances
from .rows import Node


@dataclass(frozen=True)
class TraceStep:
    """One row of one call.

    first: the host's first choice, with probability `chance`. choice: the token with the highest score after
    ours. checked: False where skip_threshold left the step alone. action: what was done about a first choice that
    a literal detector blocked, as in `Intervention`; else "". tokens: the likeliest candidates, best first;
    scores, after: theirs as they came in and as they went out; log_total: log-sum-exp of all scores that came
    in, so that exp(score - log_total) is a probability. seen: the candidates that a model detector was asked
    about, best first (tokens that end the answer among them); found: token -> (P(unsupported), detector).
    began, ended: nanoseconds of one clock; stages: state, mask, detector, apply, of the whole call; host: since
    the last call was recorded (since `Trace.left`, which a caller may set before generate()), else 0. risk: what a
    probe said of the token that comes next. masked: the choice after the literal detectors, before model detectors.
    """

    run: int
    call: int
    row: int
    node: Node
    first: int
    chance: float
    choice: int
    checked: bool
    action: str
    tokens: tuple[int, ...]
    scores: tuple[float, ...]
    after: tuple[float, ...]
    log_total: float
    seen: tuple[int, ...]
    found: dict[int, tuple[float, str]]
    began: int
    ended: int
    stages: tuple[int, int, int, int]
    host: int
    risk: float | None = None
    masked: int = -1


@dataclass(frozen=True)
class TraceAnswer:
    """A returned sequence: its ids, and for each the step that led to it, None where there was none."""

    run: int
    row: int
    ids: tuple[int, ...]
    steps: tuple[TraceStep | None, ...]


class Trace:
    """The steps of one report. width: candidates kept per step, 1 or more."""

    def __init__(self, width: int) -> None:
        if width < 1:
            raise ValueError(f"trace: expected at least one candidate per step, got {width}")
        self.width = width
        self.steps: list[TraceStep] = []
        self.left = 0
        self._returned: list[tuple[int, int, int, tuple[int, ...]]] = []
        self._vocabulary: Any = None

    def add(
        self,
        run: int,
        call: int,
        nodes: Sequence[Node],
        firsts: Sequence[int],
        before: torch.Tensor,
        after: torch.Tensor,
        plans: Sequence[Any],
        candidates: Any,
        vocabulary: Any,
        stamps: tuple[int, int, int, int, int],
        picks: Any,
    ) -> None:
        """One call: scores (rows, width of the vocabulary) before and after, the plans of the checked rows,
        what the model detectors were asked and said, and when: begun, located, masked, applied, ended. picks: the
        choices (rows,) before the model detectors, None where none was asked."""
        self._vocabulary = vocabulary
        clean = before.float().nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
        scores, tokens = clean.topk(min(self.width, clean.shape[1]), dim=-1)
        kept = after.float().gather(1, tokens)
        totals, choices = clean.logsumexp(-1).tolist(), after.float().nan_to_num(nan=-math.inf).argmax(-1)
        best = clean.gather(1, torch.tensor(firsts, device=clean.device)[:, None])[:, 0]
        chances = top_chances(
            clean, best
        ).tolist()  # as the processor does, so that thresholds meet the same bits
        actions = {plan.row: plan.action if plan.by >= 0 else "" for plan in plans}
        asked = {row.at: row for row in candidates.last}
        picks = (choices if picks is None else picks).tolist()
        names = [detector.name for detector in candidates.detectors]
        began, located, masked, applied, ended = stamps
        stages = (located - began, masked - located, ended - applied if asked else 0, applied - masked)
        table = zip(
            nodes, firsts, choices.tolist(), tokens.tolist(), scores.tolist(), kept.tolist(), strict=True
        )
        for row, (node, first, choice, ids, values, left) in enumerate(table):
            if node.finished:
                continue
            said = asked.get(row)
            self.steps.append(
                TraceStep(
                    run=run,
                    call=call,
                    row=row,
                    node=node,
                    first=first,
                    chance=chances[row],
                    choice=choice,
                    checked=row in actions,
                    action=actions.get(row, ""),
                    tokens=tuple(ids),
                    scores=tuple(values),
                    after=tuple(left),
                    log_total=totals[row],
                    seen=tuple(said.seen) if said else (),
                    found={t: (score, names[at]) for t, (score, at) in said.found.items()} if said else {},
                    began=began,
                    ended=ended,
                    stages=stages,
                    host=began - self.left if self.left else 0,
                    risk=node.risk,
                    masked=picks[row],
                )
            )
        self.left = time.perf_counter_ns()

    def returned(self, run: int, row: int, group: int, ids: tuple[int, ...]) -> None:
        """Say that `ids` are what a row of a generation came to."""
        self._returned.append((run, row, group, ids))

    def answers(self) -> list[TraceAnswer]:
        """The returned sequences with their steps; of two visits of one place (a retraction) the last."""
        at: dict[tuple[int, int, tuple[int, ...]], TraceStep] = {
            (step.run, step.node.group, step.node.path()): step for step in self.steps
        }
        return [
            TraceAnswer(run, row, ids, tuple(at.get((run, group, ids[:n])) for n in range(len(ids))))
            for run, row, group, ids in self._returned
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: width, and per answer its steps with candidates, verdicts, and microseconds."""
        return {"width": self.width, "answers": [self._answer(answer) for answer in self.answers()]}

    def _answer(self, answer: TraceAnswer) -> dict[str, Any]:
        pieces = texts(self._vocabulary, answer.ids)
        steps = [
            {"token_id": token, "text": piece, **(self._step(step, token) if step is not None else {})}
            for token, piece, step in zip(answer.ids, pieces, answer.steps, strict=True)
        ]
        return {"run": answer.run, "row": answer.row, "steps": steps}

    def _step(self, step: TraceStep, token: int) -> dict[str, Any]:
        state, mask, detector, apply = (stage / 1e3 for stage in step.stages)
        return {
            **({} if step.risk is None else {"risk": step.risk}),
            "checked": step.checked,
            "first_choice": token == step.first,
            "candidates": [
                {
                    "token_id": candidate,
                    "text": self._vocabulary[candidate].decode("utf-8", "replace"),
                    "probability": _probability(score, step.log_total),
                    "score": score,
                    "after": after,
                    "unsupported": step.found[candidate][0] if candidate in step.found else None,
                }
                for candidate, score, after in zip(step.tokens, step.scores, step.after, strict=True)
            ],
            "latency_us": {
                "state": state,
                "mask": mask,
                "detector": detector,
                "apply": apply,
                "total": (step.ended - step.began) / 1e3,
            },
        }


def texts(vocabulary: Any, ids: Sequence[int]) -> list[str]:
    """The text that each id adds; a character cut between ids belongs to the one that completes it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces = [decoder.decode(vocabulary[token]) for token in ids]
    if pieces:
        pieces[-1] += decoder.decode(b"", final=True)
    return pieces


def _probability(score: float, log_total: float) -> float:
    return math.exp(score - log_total) if math.isfinite(score) and math.isfinite(log_total) else 0.0
