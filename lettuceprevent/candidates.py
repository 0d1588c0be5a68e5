"""What model detectors say about the top candidates of a step, made into scores.

Contract: only the best `count` tokens are scored, the next `count` where all of those are unsupported, at
most twice; then the least unsupported stays and is counted `forced`. Tokens that were not scored may not
overtake those that were: they are dropped, unless `keep_unscored`. A token that ends the answer is never
scored.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .detectors import ModelDetector, ScoreRequest
from .masking import lower_

ROUNDS = 3
THRESHOLD = 0.8  # where no detector brings one of its own


def own_threshold(detectors: Sequence[ModelDetector]) -> float:
    """The `confidence_threshold` that the detector was made for; 0.8 where it names none, or there are several."""
    named = getattr(detectors[0], "threshold", None) if len(detectors) == 1 else None
    return THRESHOLD if named is None else float(named)


@dataclass(frozen=True)
class Scored:
    """A candidate that was penalised: by which detector, with what probability of being unsupported."""

    token: int
    detector: str
    version: str
    score: float
    threshold: float
    forced: bool


@dataclass
class _Row:
    """One row at one step: its candidates, best first, and the probabilities found so far."""

    at: int
    first: int
    request: ScoreRequest
    pool: list[int]
    found: dict[int, tuple[float, int]] = field(default_factory=dict)
    seen: list[int] = field(default_factory=list)
    failed: bool = False
    done: bool = False


class CandidateCheck:
    """Scores candidates and applies what was found.

    threshold: a candidate is unsupported when any detector's probability is above it. penalty: positive, inf
    forbids. on_error: "raise", "allow" (the row stays as it is), or "block" (the answer ends where it can,
    see `fail_closed_`).
    """

    def __init__(
        self,
        detectors: Sequence[ModelDetector],
        *,
        count: int,
        threshold: float,
        keep_unscored: bool,
        penalty: float,
        on_error: str,
        ends: frozenset[int],
        vocabulary: Any,
    ) -> None:
        self.detectors = list(detectors)
        self.count = count
        self.threshold = threshold
        self.keep_unscored = keep_unscored
        self.penalty = penalty
        self.on_error = on_error
        self.ends = ends
        self.vocabulary = vocabulary
        self.last: list[_Row] = []  # what the last check asked and found, for a trace

    def check(
        self,
        out: torch.Tensor,
        rows: Sequence[int],
        requests: Sequence[ScoreRequest],
        firsts: Sequence[int],
        counters: Counter[str],
    ) -> list[list[Scored]]:
        """Score the candidates of `rows` of `out` (all rows, vocabulary), and edit `out`, which must be ours.

        requests: grounding and history per row, without candidates. firsts: the host's first choice per row.
        Returns what was penalised per row.
        """
        scores = out[list(rows)].float().nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
        values, tokens = scores.topk(min(ROUNDS * self.count, scores.shape[1]), dim=-1)
        table = torch.stack([tokens, torch.isneginf(values).to(tokens.dtype)]).cpu().numpy()
        work = []
        for at, (row, request, first) in enumerate(zip(rows, requests, firsts, strict=True)):
            pool = table[0, at][table[1, at] == 0].tolist()
            work.append(_Row(row, first, request, pool))
        for turn in range(ROUNDS):
            self._score([row for row in work if not row.done], turn, counters)
        self.last = work
        return [self._apply(out[row.at], row, counters) for row in work]

    def _score(self, work: list[_Row], turn: int, counters: Counter[str]) -> None:
        """Score the next candidates of the rows that are not done."""
        asked = []
        for row in work:
            row.seen = row.pool[: (turn + 1) * self.count]
            new = tuple(t for t in row.seen[turn * self.count :] if t not in self.ends)
            if new:
                asked.append((row, replace(row.request, candidates=new)))
        if asked:
            try:
                for at, detector in enumerate(self.detectors):
                    answers = detector.score([request for _, request in asked])
                    _check_answers(detector.name, [request for _, request in asked], answers)
                    for (row, request), answer in zip(asked, answers, strict=True):
                        for token, score in zip(request.candidates, answer.tolist(), strict=True):
                            if token not in row.found or score > row.found[token][0]:
                                row.found[token] = (score, at)
            except Exception:
                counters["errors"] += 1
                if self.on_error == "raise":
                    raise
                for row, _ in asked:
                    row.failed = True
        for row in work:
            ends_here = row.first in self.ends and row.first in row.seen and bool(row.found)
            supported = any(score <= self.threshold for score, _ in row.found.values())
            row.done = row.failed or supported or ends_here or len(row.seen) == len(row.pool)

    def _apply(self, scores: torch.Tensor, row: _Row, counters: Counter[str]) -> list[Scored]:
        """Edit the scores (vocabulary,) of one row; what was penalised."""
        if row.failed:
            counters["unchecked"] += 1
            if self.on_error == "block":
                self.fail_closed_(scores)
            return []
        if not row.found:
            return []
        flagged = [token for token, (score, _) in row.found.items() if score > self.threshold]
        forced = len(flagged) == len(row.found)
        if forced:
            flagged.remove(min(flagged, key=lambda token: row.found[token][0]))
            forced = row.first not in self.ends
            counters["forced"] += forced
        penalised = torch.tensor(flagged, dtype=torch.int64, device=scores.device)
        if not self.keep_unscored:
            seen = torch.tensor(row.seen, dtype=torch.int64, device=scores.device)
            kept = scores.index_select(0, seen)
            scores.fill_(-math.inf)
            scores.index_copy_(0, seen, kept)
        lower_(scores, penalised, self.penalty)
        return [self._scored(token, *row.found[token], forced and token == row.first) for token in flagged]

    def _scored(self, token: int, score: float, at: int, forced: bool) -> Scored:
        detector = self.detectors[at]
        return Scored(token, detector.name, detector.version, score, self.threshold, forced)

    def fail_closed_(self, scores: torch.Tensor) -> None:
        """Let the answer end rather than go on unchecked, in place on one row (vocabulary,).

        End tokens keep their scores. The best token with text stays possible (C5), but below every end token
        that is: it comes only where the answer may not end.
        """
        text = scores.clone().float().nan_to_num(nan=-math.inf, posinf=-math.inf, neginf=-math.inf)
        size = len(self.vocabulary)
        text[size:] = -math.inf
        silent = [token for token in self.vocabulary.special_ids if token < len(text)]
        text[silent + [token for token in self.ends if token < len(text)]] = -math.inf
        best = int(text.argmax())
        ends = torch.tensor(sorted(t for t in self.ends if t < len(scores)), dtype=torch.int64).to(
            scores.device
        )
        kept = scores.index_select(0, ends)
        finite = kept[torch.isfinite(kept)]
        value = scores[best]
        if finite.numel():
            lowest = torch.finfo(scores.dtype).min / 2  # half precision has little room below
            value = (torch.minimum(value, finite.min()).float() - 1e4).clamp(min=lowest).to(scores.dtype)
        scores.fill_(-math.inf)
        scores[best] = value
        scores.index_copy_(0, ends, kept)


def _check_answers(
    name: str, requests: Sequence[ScoreRequest], answers: Sequence[NDArray[np.float32]]
) -> None:
    """A detector that answers with something else than probabilities has failed."""
    if len(answers) != len(requests):
        raise ValueError(f"detector {name}: expected {len(requests)} arrays of scores, got {len(answers)}")
    for request, answer in zip(requests, answers, strict=True):
        if np.shape(answer) != (len(request.candidates),):
            raise ValueError(
                f"detector {name}: expected scores of shape ({len(request.candidates)},), "
                f"got {np.shape(answer)}"
            )
        if not bool(((answer >= 0) & (answer <= 1)).all()):
            raise ValueError(f"detector {name}: expected probabilities between 0 and 1, got {answer}")
