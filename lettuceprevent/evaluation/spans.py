"""Predicted spans against labelled ones: overlap of characters over a corpus, IoU, and whole examples.

Contract: a span is (start, end), characters of the answer, end exclusive. Spans of one side may touch or
overlap; a character counts once. Edge cases are the same everywhere: where nothing was labelled and nothing
predicted, precision, recall, F1 and IoU are 1; where only one of the two is empty, they are 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class Overlap:
    """Counts of one answer or of many: what both sides have, what was predicted, what was labelled.

    Counts add up, so a corpus is the sum of its answers: long answers weigh more than short ones.
    """

    both: int = 0
    predicted: int = 0
    labelled: int = 0

    def __add__(self, other: Overlap) -> Overlap:
        return Overlap(
            self.both + other.both, self.predicted + other.predicted, self.labelled + other.labelled
        )

    @property
    def precision(self) -> float:
        """Share of what was predicted that is labelled. Nothing predicted: 1 if nothing is labelled, else 0."""
        return self.both / self.predicted if self.predicted else float(not self.labelled)

    @property
    def recall(self) -> float:
        """Share of what is labelled that was predicted. Nothing labelled: 1 if nothing was predicted, else 0."""
        return self.both / self.labelled if self.labelled else float(not self.predicted)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall: 2 · both / (predicted + labelled); 1 where both are empty."""
        size = self.predicted + self.labelled
        return 2 * self.both / size if size else 1.0

    @property
    def iou(self) -> float:
        """What both have over what either has; 1 where both are empty."""
        union = self.predicted + self.labelled - self.both
        return self.both / union if union else 1.0


def overlap(predicted: Iterable[Span], labelled: Iterable[Span]) -> Overlap:
    """Characters of one answer."""
    a, b = _characters(predicted), _characters(labelled)
    return Overlap(len(a & b), len(a), len(b))


@dataclass(frozen=True)
class SpanScores:
    """characters: over all answers together. iou: the mean over answers of each one's IoU, so that an answer
    rightly left without spans counts 1. examples: an answer counts as predicted or labelled where it has a
    span at all, wherever that lies."""

    answers: int
    characters: Overlap
    iou: float
    examples: Overlap


def span_scores(predicted: Sequence[Iterable[Span]], labelled: Sequence[Iterable[Span]]) -> SpanScores:
    """Scores over answers: one entry of spans per answer on either side. Other lengths raise ValueError; with
    no answers at all everything is 1."""
    if len(predicted) != len(labelled):
        raise ValueError(f"expected spans for {len(labelled)} answers, got {len(predicted)}")
    characters, examples, ious = Overlap(), Overlap(), []
    for a, b in zip(predicted, labelled, strict=True):
        each = overlap(a, b)
        characters += each
        ious.append(each.iou)
        one, other = bool(each.predicted), bool(each.labelled)
        examples += Overlap(int(one and other), int(one), int(other))
    return SpanScores(len(ious), characters, sum(ious) / len(ious) if ious else 1.0, examples)


def _characters(spans: Iterable[Span]) -> set[int]:
    found: set[int] = set()
    for start, end in spans:
        if not 0 <= start <= end:
            raise ValueError(f"expected a span with 0 <= start <= end, got ({start}, {end})")
        found.update(range(start, end))
    return found
