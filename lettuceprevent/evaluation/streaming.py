"""Detectors as they work inside generation: a token is judged when it comes, from what is before it.

Contract: `stream` gives for every token of an answer what the detector says of it after the tokens before it,
in one incremental pass; `step_by_step` gives the same by asking once per token. A literal detector (numbers)
says 1 where it would have blocked the token and 0 elsewhere. Labels are characters; a token is labelled where
it overlaps a labelled span.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..detectors import ScoreRequest
from ..grounding import Grounding
from ..vocabulary import Vocabulary
from .spans import Overlap, Span

BINS = 10  # of the calibration error


@dataclass(frozen=True)
class Streamed:
    """scores: P(unsupported) per token, float32 (n,). seconds: for all of them, reading the context included
    only where the detector does that when it is first asked."""

    scores: NDArray[np.float32]
    seconds: float


def stream(detector: Any, grounding: Grounding, ids: Sequence[int], vocabulary: Vocabulary) -> Streamed:
    """Every token of an answer scored, each prefix seen once.

    detector: a literal detector of this grounding, or a model detector. ids: the host's, without end token.
    """
    began = time.perf_counter()
    if detector.kind == "literal":
        scores = _literal(detector, ids, vocabulary)
    else:
        # The requests share their beginnings; a detector that keeps what it has read reads each token once.
        answer = tuple(ids)
        requests = [ScoreRequest(grounding, answer[:at], (token,)) for at, token in enumerate(answer)]
        found = detector.score(requests) if requests else []
        scores = np.array([float(each[0]) for each in found], np.float32)
    return Streamed(scores, time.perf_counter() - began)


def step_by_step(
    detector: Any, grounding: Grounding, ids: Sequence[int], vocabulary: Vocabulary
) -> NDArray[np.float32]:
    """The protocol as generation runs it, a call per token. For literal detectors each call begins anew."""
    answer = tuple(ids)
    scores = []
    for at, token in enumerate(answer):
        if detector.kind == "literal":
            state = detector.start(b"")
            for before in answer[:at]:
                state = detector.advance(state, before)
            scores.append(float(bool(vocabulary[token]) and detector.mask(state).is_blocked(token)))
        else:
            scores.append(float(detector.score([ScoreRequest(grounding, answer[:at], (token,))])[0][0]))
    return np.array(scores, np.float32)


def _literal(detector: Any, ids: Sequence[int], vocabulary: Vocabulary) -> NDArray[np.float32]:
    scores = np.zeros(len(ids), np.float32)
    state = detector.start(b"")
    for at, token in enumerate(ids):
        if vocabulary[token]:
            scores[at] = detector.mask(state).is_blocked(token)
        state = detector.advance(state, token)
    return scores


# --- tokens and labels -------------------------------------------------------------------------------


def token_spans(vocabulary: Vocabulary, ids: Sequence[int]) -> list[Span]:
    """Characters of each token in the answer's text, which must be whole UTF-8. A token that holds a part of
    a character has all of it; one without text is empty."""
    spans = []
    characters = 0  # begun so far
    for token in ids:
        piece = vocabulary[token]
        begins_inside = bool(piece) and piece[0] & 0xC0 == 0x80
        start = characters - begins_inside
        characters += sum(byte & 0xC0 != 0x80 for byte in piece)
        spans.append((start, characters))
    return spans


def token_labels(tokens: Sequence[Span], labelled: Iterable[Span]) -> NDArray[np.bool_]:
    """Which tokens overlap a labelled span."""
    marks = np.zeros(len(tokens), bool)
    for start, end in labelled:
        for at, (first, last) in enumerate(tokens):
            if first < end and last > start:
                marks[at] = True
    return marks


def first_tokens(tokens: Sequence[Span], labelled: Iterable[Span]) -> list[int]:
    """For each labelled span the first token that overlaps it; spans that none overlaps have no entry."""
    firsts = []
    for start, end in labelled:
        at = next((at for at, (a, b) in enumerate(tokens) if a < end and b > start), None)
        if at is not None:
            firsts.append(at)
    return firsts


# --- scores ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StreamedAnswer:
    """One answer: scores (n,), labels (n,), and the first token of each labelled span."""

    scores: NDArray[np.float32]
    labels: NDArray[np.bool_]
    firsts: tuple[int, ...]
    seconds: float = 0.0


@dataclass(frozen=True)
class StreamingScores:
    """tokens: counts at the threshold (precision, recall, f1 as in spans.py). average_precision: of the
    unsupported class, None without labelled tokens. auroc: None without tokens of both kinds. first_recall:
    share of labelled spans whose first token is above the threshold, the place where prevention has to act;
    None without spans. calibration_error: expected calibration error over ten bins of equal width.
    seconds_per_check: mean over tokens."""

    answers: int
    threshold: float
    tokens: Overlap
    count: int
    spans: int
    average_precision: float | None
    auroc: float | None
    first_recall: float | None
    calibration_error: float
    seconds_per_check: float


def streaming_scores(answers: Sequence[StreamedAnswer], threshold: float = 0.5) -> StreamingScores:
    """Scores over the tokens of all answers together. A token counts as predicted above the threshold."""
    scores = np.concatenate([a.scores for a in answers]) if answers else np.zeros(0, np.float32)
    labels = np.concatenate([a.labels for a in answers]) if answers else np.zeros(0, bool)
    firsts = [float(a.scores[at]) for a in answers for at in a.firsts]
    return StreamingScores(
        answers=len(answers),
        threshold=threshold,
        tokens=token_overlap(scores, labels, threshold),
        count=len(scores),
        spans=len(firsts),
        average_precision=average_precision(scores, labels),
        auroc=auroc(scores, labels),
        first_recall=sum(score > threshold for score in firsts) / len(firsts) if firsts else None,
        calibration_error=calibration_error(scores, labels),
        seconds_per_check=sum(a.seconds for a in answers) / len(scores) if len(scores) else 0.0,
    )


def token_overlap(scores: NDArray[np.float32], labels: NDArray[np.bool_], threshold: float) -> Overlap:
    """Tokens above the threshold against labelled ones."""
    predicted = scores > threshold
    return Overlap(int((predicted & labels).sum()), int(predicted.sum()), int(labels.sum()))


def average_precision(
    scores: NDArray[np.float32], labels: NDArray[np.bool_], weights: NDArray[Any] | None = None
) -> float | None:
    """Sum over distinct scores, from the highest down, of precision there times the recall it adds.

    Tokens of one score come together, whatever their order. weights (n,): how often each token counts (once).
    None where nothing is labelled.
    """
    hits, ranks = _ranked(scores, labels, weights)
    if not len(hits) or not hits[-1]:
        return None
    precision = hits / np.maximum(ranks, 1e-12)
    return float((precision * np.diff(hits, prepend=0)).sum() / hits[-1])


def auroc(
    scores: NDArray[np.float32], labels: NDArray[np.bool_], weights: NDArray[Any] | None = None
) -> float | None:
    """How often a labelled token scores above one that is not, equal scores counting half; from 0 to 1.

    weights as for average_precision. None where tokens of either kind are missing.
    """
    hits, ranks = _ranked(scores, labels, weights)
    if not len(hits) or not hits[-1] or hits[-1] == ranks[-1]:
        return None
    misses = ranks - hits
    above = hits - np.diff(hits, prepend=0) / 2  # labelled ones above each score, half of those at it
    return float((np.diff(misses, prepend=0) * above).sum() / (hits[-1] * misses[-1]))


def _ranked(
    scores: NDArray[np.float32], labels: NDArray[np.bool_], weights: NDArray[Any] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(labelled tokens, all tokens) at or above each distinct score, from the highest down."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    count = np.ones(len(scores)) if weights is None else np.asarray(weights, float)[order]
    ends = np.append(np.nonzero(np.diff(ranked))[0], len(ranked) - 1)[: len(ranked)]  # the last of each score
    return np.cumsum(count * labels[order])[ends], np.cumsum(count)[ends]


def calibration_error(scores: NDArray[np.float32], labels: NDArray[np.bool_], bins: int = BINS) -> float:
    """Expected calibration error: |mean score - share labelled| per bin of scores, weighted by its tokens.

    Bins are [0, 1/n), ..., [1 - 1/n, 1]. 0 where there are no tokens.
    """
    if not len(scores):
        return 0.0
    place = np.minimum((scores * bins).astype(int), bins - 1)
    count = np.bincount(place, minlength=bins)
    gap = np.bincount(place, scores, bins) - np.bincount(place, labels, bins)
    return float(np.abs(gap).sum() / count.sum())
