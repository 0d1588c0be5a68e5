"""Paired statistics: Wilcoxon's signed-rank test with its effect size, bootstrap intervals, Holm's correction.

Contract: the tests are scipy's; only what scipy lacks (the rank-biserial correlation, Holm) is worked out
here. Pairs are given in the same order on both sides. What is not defined is nan, never a number that could be
taken for one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

RESAMPLES = 2000
BCA_UP_TO = 5000  # values; BCa leaves each out once, which grows with their square


@dataclass(frozen=True)
class Paired:
    """after - before over pairs.

    changed: pairs that differ; p_value and effect are of those. effect: matched-pairs rank-biserial
    correlation, (favourable - unfavourable rank sum) / all ranks, from -1 (after is lower in every pair) to 1;
    0 where none differs. mean_difference with its interval (low, high); nan without pairs.
    """

    pairs: int
    changed: int
    p_value: float
    effect: float
    mean_difference: float
    interval: tuple[float, float]


def paired(before: ArrayLike, after: ArrayLike, *, confidence: float = 0.95, seed: int = 0) -> Paired:
    """Two-sided Wilcoxon signed-rank test of paired values; pairs without difference are left out of it, as
    Wilcoxon did. Where all are equal the p value is 1. Different lengths raise ValueError."""
    a, b = np.asarray(before, float), np.asarray(after, float)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"expected two lists of the same length, got shapes {a.shape} and {b.shape}")
    difference = b - a
    moved = difference[difference != 0]
    p_value = float(stats.wilcoxon(moved).pvalue) if len(moved) else 1.0
    return Paired(
        pairs=len(a),
        changed=len(moved),
        p_value=p_value,
        effect=rank_biserial(difference),
        mean_difference=float(difference.mean()) if len(difference) else float("nan"),
        interval=interval(difference, confidence=confidence, seed=seed),
    )


def rank_biserial(differences: ArrayLike) -> float:
    """Matched-pairs rank-biserial correlation: ranks of the absolute differences that are not 0, those of
    increases less those of decreases, over all. 0 where there are none."""
    values = np.asarray(differences, float)
    values = values[values != 0]
    if not len(values):
        return 0.0
    ranks = stats.rankdata(abs(values))
    return float(ranks[values > 0].sum() - ranks[values < 0].sum()) / float(ranks.sum())


def interval(
    values: ArrayLike,
    statistic: Callable[..., Any] = np.mean,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """A bootstrap interval (BCa) of a statistic of values (n,), or of rows (n, columns) that stay together.

    statistic(values, axis=...) for values of one dimension; statistic(rows) -> float for rows. Where BCa is not
    defined (all resamples alike, for instance), and for more than 5,000 values, it is the percentile interval;
    with fewer than two values both ends are the statistic itself. Resamples of which the statistic is nan (a share
    of nothing) are left out; where they are more than 1 - confidence of all, or there are no values, both ends are
    nan.
    """
    data = np.asarray(values, float)
    if len(data) < 2:
        only = float(statistic(data)) if len(data) else float("nan")
        return only, only
    rng = np.random.default_rng(seed)
    batch = max(1, min(200, 200_000 // len(data)))  # memory stays bounded
    for method in ("BCa", "percentile") if len(data) <= BCA_UP_TO else ("percentile",):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            if data.ndim == 1:
                found = stats.bootstrap(
                    (data,),
                    statistic,
                    n_resamples=resamples,
                    confidence_level=confidence,
                    method=method,
                    batch=batch,
                    random_state=rng,  # also known as rng since scipy 1.15
                )
            else:
                found = stats.bootstrap(
                    (np.arange(len(data)),),
                    lambda index: float(statistic(data[index])),
                    n_resamples=resamples,
                    confidence_level=confidence,
                    method=method,
                    vectorized=False,
                    batch=batch,
                    random_state=rng,  # also known as rng since scipy 1.15
                )
        low, high = float(found.confidence_interval.low), float(found.confidence_interval.high)
        if np.isfinite(low) and np.isfinite(high):
            return low, high
    drawn = np.asarray(found.bootstrap_distribution)
    known = drawn[~np.isnan(drawn)]
    if len(known) < confidence * len(drawn):
        return float("nan"), float("nan")
    tail = (1 - confidence) / 2
    low, high = np.quantile(known, [tail, 1 - tail])
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the order given: the smallest times n, the next times n - 1, ..., none
    below the one before, none above 1."""
    values: NDArray[np.float64] = np.asarray(p_values, float)
    if len(values) and not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"expected p values from 0 to 1, got {list(p_values)}")
    order = values.argsort(kind="stable")
    scaled = values[order] * np.arange(len(values), 0, -1)
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1) if len(values) else scaled
    return [float(value) for value in adjusted]
