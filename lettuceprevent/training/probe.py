"""Training a probe: a logistic head for the state before a token and one for the state after it.

Contract: choices are made by average precision in cross-validation over contexts: first the layer, all at one
penalty and one weight of the additional data, then penalty and weight, for this layer only. The chosen heads are
fitted on everything, calibrated and given their threshold by predictions for contexts that were held out.
Additional data (other files, corrupted copies) is trained on and never validated on. In the card's validation
figures no fold is predicted by a head that was fitted on it, and the choice among what was tried, calibration and
threshold are by the other folds' predictions; but all folds had a say in which layer's penalties were tried, and
the heads behind the other folds' predictions were fitted on this one, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize

from ..evaluation.streaming import auroc, average_precision, calibration_error
from ..probe import HEADS, Probe, host_hash, weights_hash
from .corruption import corruptions
from .data import Example, digest
from .labels import label_tokens
from .splits import context_key
from .states import extract_states

PENALTIES = (3e-3, 1e-2, 3e-2, 1e-1, 3e-1)  # of the squared weights on standardised states, per token
FIRST_PENALTY = 3e-2  # the one that layers are compared at
EXTRA_WEIGHTS = (0.0, 0.1, 0.3)  # of a token of the additional data
FIRST_EXTRA = 0.3
NEGATIVES = 0.25  # share of the additional data's supported tokens that is used; each counts for more
_SAMPLE = 20_000  # tokens that the curvature is estimated on
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]


def fit_logistic(
    x: Floats, y: Bools, penalty: float, weights: NDArray[Any] | None = None
) -> tuple[Floats, float]:
    """(weight (width,), bias) of a logistic regression on raw states; standardised inside, bias not penalised.

    weights (n,): how much each row counts; 1 by default.
    """
    z, mean, scale = standardised(x)
    found = _fit(z, y, penalty, np.ones(len(y)) if weights is None else weights)
    weight = found[:-1] / scale
    return weight.astype(np.float32), float(found[-1] - weight @ mean)


def standardised(x: Floats) -> tuple[Floats, NDArray[np.float64], NDArray[np.float64]]:
    """(x with mean 0 and deviation 1, the means, the deviations) per column."""
    mean = x.mean(0, dtype=np.float64)
    scale = np.sqrt(np.maximum(np.square(x, dtype=np.float64).mean(0) - mean**2, 0)) + 1e-6
    return (x - mean.astype(np.float32)) / scale.astype(np.float32), mean, scale


def _fit(
    z: Floats,
    y: Bools,
    penalty: float,
    weights: NDArray[Any],
    start: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Weights and bias (width + 1,) on standardised states. The curvature at the start straightens the way."""
    share = weights / weights.sum()
    rate = float(share @ y)
    signs = np.where(y, 1.0, -1.0)
    some = z[:: max(1, len(z) // _SAMPLE)]
    spread = rate * (1 - rate)
    curvature = spread * (some.T @ some).astype(np.float64) / len(some)
    root = cholesky(curvature + (penalty + 1e-6) * np.eye(z.shape[1]), lower=True)
    pin = np.sqrt(spread)

    def straight(theta: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.append(root.T @ theta[:-1], theta[-1] * pin)

    def back(phi: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.append(solve_triangular(root, phi[:-1], lower=True, trans=1), phi[-1] / pin)

    def loss(phi: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        theta = back(phi)
        margins = signs * (z @ theta[:-1].astype(np.float32) + theta[-1])
        pull = -signs * share * np.exp(-np.logaddexp(0, margins))
        slope = (z.T @ pull.astype(np.float32)).astype(np.float64) + penalty * theta[:-1]
        down = np.append(solve_triangular(root, slope, lower=True), pull.sum() / pin)
        return float(share @ np.logaddexp(0, -margins) + penalty / 2 * (theta[:-1] ** 2).sum()), down

    first = np.append(np.zeros(z.shape[1]), np.log(rate / (1 - rate))) if start is None else start
    options = {"maxiter": 100, "ftol": 1e-8}
    return back(minimize(loss, straight(first), jac=True, method="L-BFGS-B", options=options).x)


def best_f1(scores: Floats, labels: Bools) -> tuple[float, float]:
    """(threshold, F1) at which "above the threshold" has the best F1."""
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], np.cumsum(labels[order])
    f1 = 2 * hits / (np.arange(1, len(hits) + 1) + labels.sum())
    f1[:-1][ranked[:-1] == ranked[1:]] = -1.0  # equal scores come together
    at = int(f1.argmax())
    below = ranked[at + 1] if at + 1 < len(ranked) else 0.0
    return float((ranked[at] + below) / 2), float(f1[at])


def corrupted(examples: Iterable[Example], share: float, seed: int = 0) -> list[Example]:
    """Corrupted copies of the examples without spans: `share` copies each on average, every one of another kind."""
    made = []
    for example in examples:
        if example.spans:
            continue
        copies = sorted(corruptions(example, seed), key=lambda each: digest(f"{seed}\0{each.id}"))
        chance = digest(f"{seed}\0{example.id}") / 2**64
        made += copies[: int(share) + (chance < share % 1)]
    return made


def drawn_share(examples: Sequence[Example], share: float, seed: int = 0) -> list[Example]:
    """About this share of the examples, in order; which ones depends on their ids and the seed alone."""
    return [each for each in examples if digest(f"{seed}\0{each.id}") < share * 2**64]


@dataclass(frozen=True)
class _Choice:
    layer: int
    penalty: float
    extra: float


class _Trial:
    """Held-out logits of one head for each choice, and how good they are.

    x: states of a layer, (n, width). y (n,): labels. folds (n,): of each token's context. own (n,): what is
    validated on. counts (n,): how much each token counts at weight 1.
    """

    def __init__(
        self,
        states: Callable[[int], Floats],
        y: Bools,
        folds: NDArray[np.int64],
        own: Bools,
        counts: NDArray[np.float64],
    ) -> None:
        self.states, self.y, self.folds, self.own, self.counts = states, y, folds, own, counts
        self.logits: dict[_Choice, Floats] = {}
        self._layer = 0
        self._z: Floats = np.empty((0, 0), np.float32)

    def weights(self, extra: float) -> NDArray[np.float64]:
        """How much each token counts with this weight of the additional data."""
        return np.where(self.own, 1.0, extra * self.counts)

    def run(self, choice: _Choice) -> float:
        """The average precision of held-out predictions."""
        if choice not in self.logits:
            if choice.layer != self._layer:
                self._layer = choice.layer
                self._z = np.empty((0, 0), np.float32)  # two of them at once may be too much
                self._z = standardised(self.states(choice.layer))[0]
            weights = self.weights(choice.extra)
            found = np.zeros(len(self.y), np.float32)
            theta = None
            for fold in np.unique(self.folds[self.own]):
                held = self.folds == fold
                theta = _fit(self._z, self.y, choice.penalty, np.where(held, 0.0, weights), theta)
                found[held] = self._z[held] @ theta[:-1].astype(np.float32) + np.float32(theta[-1])
            self.logits[choice] = found[self.own]
        return self.quality(choice)

    def quality(self, choice: _Choice, without: int | None = None) -> float:
        """Average precision of what was tried, over all folds or without one."""
        some = self.folds[self.own] != without
        return average_precision(self.logits[choice][some], self.y[self.own][some]) or 0.0

    def best(self, without: int | None = None) -> _Choice:
        """The best of what was tried, by all folds or without one; of equals the one with less of its own."""

        def rank(choice: _Choice) -> tuple[float, float, float]:
            return round(self.quality(choice, without), 4), -choice.extra, choice.penalty

        return max(self.logits, key=rank)

    def calibrated(self, choice: _Choice, fit: Bools, use: Bools) -> tuple[float, float, float, Floats]:
        """(slope, shift, threshold) by the tokens `fit` (of those validated on), and the risks of `use`."""
        logits, labels = self.logits[choice], self.y[self.own]
        slope, shift = fit_logistic(logits[fit, None], labels[fit], 1e-4)

        def risks(some: Bools) -> Floats:
            return np.asarray(1 / (1 + np.exp(-(logits[some] * slope[0] + shift))), np.float32)

        return float(slope[0]), shift, best_f1(risks(fit), labels[fit])[0], risks(use)

    def figures(self) -> dict[str, float | None]:
        """Of each fold's tokens, with the choice among what was tried, calibration and threshold by the other
        folds' predictions."""
        folds, labels = self.folds[self.own], self.y[self.own]
        risks = np.zeros(len(labels), np.float32)
        flagged = np.zeros(len(labels), bool)
        for fold in np.unique(folds):
            held = folds == fold
            threshold, found = self.calibrated(self.best(int(fold)), ~held, held)[2:]
            risks[held], flagged[held] = found, found > threshold
        both = int((flagged & labels).sum())
        return {
            "auroc": auroc(risks, labels),
            "average_precision": average_precision(risks, labels),
            "f1": 2 * both / (int(flagged.sum()) + int(labels.sum())),
            "calibration_error": calibration_error(risks, labels),
        }


def train_probe(
    model: Any,
    tokenizer: Any,
    host: str,
    examples: Sequence[Example],
    folder: str | Path,
    *,
    also: Sequence[Example] = (),
    corrupt: float = 0.0,
    layers: Sequence[int] | None = None,
    folds: int = 5,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> Probe:
    """Train, write to `folder` and return a probe of `model`.

    examples: what is trained and validated on. also: examples that are trained on only. corrupt: corrupted copies
    per answer without spans, trained on only. layers: candidates; by default seven, spread. folds: of the
    cross-validation. Raises ValueError for layers that the host lacks, and for folds without tokens of either
    label.
    """
    count = int(model.config.num_hidden_layers)
    chosen = sorted({max(1, round(count * at / 8)) for at in range(2, 9)}) if layers is None else list(layers)
    wrong = [layer for layer in chosen if not 1 <= layer <= count]
    if wrong or not chosen:
        raise ValueError(f"layers: expected layers from 1 to {count}, got {', '.join(map(str, wrong))}")
    if folds < 2:
        raise ValueError(f"folds: expected 2 or more, got {folds}")
    extra = [*also, *corrupted(examples, corrupt, seed)]
    everything = [*examples, *extra]
    labelled = [label_tokens(example, tokenizer) for example in everything]
    lengths = [len(each.ids) for each in labelled]
    keys = [context_key(example.context) for example in everything]
    labels = np.concatenate([each.labels for each in labelled])
    own = np.repeat([at < len(examples) for at in range(len(everything))], lengths)
    fold = np.repeat([digest(f"{seed}\0{key}") % folds for key in keys], lengths).astype(np.int64)
    for number in range(folds):
        part = labels[own & (fold == number)]
        if not part.any() or part.all():
            raise ValueError(
                f"fold {number}: expected tokens of both labels, got {int(part.sum())} of {len(part)}"
            )
    data = hashlib.sha256(repr(everything).encode("utf-8", "replace")).hexdigest()[:16]
    weights = weights_hash(model)
    key = f"{host} {model.dtype} {host_hash(model.config)} {weights} {data}"
    found = extract_states(
        model, tokenizer, everything, labelled, chosen, Path(folder) / "cache", key=key, say=say
    )
    rng = np.random.default_rng(seed)
    used = np.flatnonzero(own | labels | (rng.random(len(labels)) < NEGATIVES))
    y, mine = labels[used], own[used]
    counts = np.where(mine | y, 1.0, 1 / NEGATIVES)
    vectors, biases, heads = {}, {}, {}
    for side, head in enumerate(HEADS):
        rows = found.before[used] + side

        def states(layer: int, rows: NDArray[np.int64] = rows) -> Floats:
            return np.asarray(found.states[rows, chosen.index(layer)], np.float32)

        trial = _Trial(states, y, fold[used], mine, counts)
        by_layer = {}
        for layer in chosen:
            by_layer[layer] = trial.run(_Choice(layer, FIRST_PENALTY, FIRST_EXTRA if extra else 0.0))
            say(f"{head}: layer {layer}, average precision {by_layer[layer]:.4f}")
        layer = trial.best().layer
        for penalty, weight in product(PENALTIES, EXTRA_WEIGHTS if extra else (0.0,)):
            quality = trial.run(_Choice(layer, penalty, weight))
            say(
                f"{head}: layer {layer}, penalty {penalty:g}, additional data {weight:g}: "
                f"average precision {quality:.4f}"
            )
        choice = trial.best()
        everyone = np.ones(int(mine.sum()), bool)
        slope, shift, threshold, _ = trial.calibrated(choice, everyone, everyone)
        vector, bias = fit_logistic(states(choice.layer), y, choice.penalty, trial.weights(choice.extra))
        vectors[head] = torch.from_numpy(vector * np.float32(slope))
        biases[head] = float(np.float32(bias * slope + shift))  # as the file holds it
        heads[head] = {
            "layer": choice.layer,
            "penalty": choice.penalty,
            "additional_data_weight": choice.extra,
            "threshold": threshold,
            "validation": {
                name: None if value is None else round(value, 6) for name, value in trial.figures().items()
            },
            "average_precision_by_layer": {str(each): round(value, 4) for each, value in by_layer.items()},
        }
        say(f"{head}: {heads[head]}")
    card = {
        "format": 1,
        "host": {
            "id": host,
            "hash": host_hash(model.config),
            "weights": weights,
            "layers": count,
            "width": int(model.config.hidden_size),
        },
        "heads": heads,
        "data": {
            "hash": data,
            "answers": len(examples),
            "additional_answers": len(extra),
            "corrupt": corrupt,
            "folds": folds,
            "seed": seed,
            # so that a test file can be checked without the data at hand
            "contexts": " ".join(sorted({each[:8] for each in keys})),
        },
    }
    probe = Probe(vectors, biases, card)
    probe.save(folder)
    return probe
