"""Probe and causal detector against what people marked, token by token, next to what the host itself says.

    python scripts/eval_detectors.py --probe DIR --causal DIR --cache DIR --dtype bfloat16 --out FILE

Every answer of ragtruth_test is read once by the host (states and figures are cached, so that another probe costs
seconds) and once by the causal detector, as `evaluation/streaming.py` reads it. Thresholds are the cards'; `best_f1`
picks its own on the test answers and is an upper figure. Intervals are bootstrap intervals over answers. The gate: if
only a share of the steps is checked, chosen by a signal, how much of what is to be found is among them; all signals but
"-log p of the token" are there before the token. Contexts that were trained on are refused. `probe_auroc` and `probe_f1`
are those of the head after the token.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import finish, parser, provenance, rows
from numpy.typing import NDArray

from lettuceprevent.assets import host_id
from lettuceprevent.checkpoint import TRAINED
from lettuceprevent.console import say
from lettuceprevent.evaluation.spans import Overlap
from lettuceprevent.evaluation.statistics import interval
from lettuceprevent.evaluation.streaming import (
    auroc,
    average_precision,
    calibration_error,
    first_tokens,
    stream,
)
from lettuceprevent.grounding import Grounding
from lettuceprevent.hosts import Host
from lettuceprevent.probe import HEADS, Probe, weights_hash
from lettuceprevent.training.data import Example, example_of, load_examples
from lettuceprevent.training.files import replace_text
from lettuceprevent.training.labels import LabelledTokens, label_tokens
from lettuceprevent.training.probe import best_f1
from lettuceprevent.training.splits import check_disjoint, context_key
from lettuceprevent.training.states import FIGURES, States, cut_context, extract_states
from lettuceprevent.tree import CausalDetector
from lettuceprevent.vocabulary import Vocabulary

FILE = "ragtruth_test"
RESAMPLES = 1000
SHARE = 0.2  # of the steps, for the gate's figure
SKIPS = (0.8, 0.9, 0.99, 0.999)  # skip_threshold, for the gate at the share that it checks
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Tokens:
    """All tokens of all answers: labels, the answer each is of, and which are the first of a marked span."""

    labels: Bools
    owner: NDArray[np.int64]
    firsts: Bools

    def of(self, some: Bools) -> Tokens:
        """Those tokens, answers numbered anew."""
        return Tokens(
            self.labels[some], np.unique(self.owner[some], return_inverse=True)[1], self.firsts[some]
        )


def all_tokens(examples: Sequence[Example], labelled: Sequence[LabelledTokens]) -> Tokens:
    firsts = []
    for example, tokens in zip(examples, labelled, strict=True):
        marks = np.zeros(len(tokens.ids), bool)
        marks[first_tokens(tokens.offsets, example.spans)] = True
        firsts.append(marks)
    lengths = [len(each.ids) for each in labelled]
    return Tokens(
        np.concatenate([each.labels for each in labelled]),
        np.repeat(np.arange(len(lengths)), lengths),
        np.concatenate(firsts),
    )


def with_interval(tokens: Tokens, statistic: Callable[[Any], float | None]) -> dict[str, float | None]:
    """statistic(weights per token, or None) of all answers, with its interval over answers."""
    count = int(tokens.owner.max()) + 1

    def resampled(drawn: Any) -> float:
        weights = np.bincount(drawn[:, 0].astype(int), minlength=count)[tokens.owner]
        found = statistic(weights)
        return float("nan") if found is None else found

    low, high = interval(np.arange(count)[:, None], resampled, resamples=RESAMPLES)
    return {"value": statistic(None), "low": low, "high": high}


def measured(scores: Floats, tokens: Tokens, threshold: float | None, risk: bool) -> dict[str, Any]:
    """Figures of one detector on some answers. risk: whether the scores are probabilities."""
    order = np.argsort(-scores, kind="stable")  # sorted once; sorting what is sorted costs little
    scores = scores[order]
    tokens = Tokens(tokens.labels[order], tokens.owner[order], tokens.firsts[order])
    labels = tokens.labels
    found: dict[str, Any] = {
        "answers": int(tokens.owner.max()) + 1,
        "tokens": len(labels),
        "unsupported": int(labels.sum()),
        "auroc": with_interval(tokens, lambda weights: auroc(scores, labels, weights)),
        "average_precision": with_interval(
            tokens, lambda weights: average_precision(scores, labels, weights)
        ),
        "best_f1": best_f1(scores, labels)[1] if labels.any() else None,
    }
    if threshold is not None:
        flagged = scores > threshold

        def f1(weights: Any) -> float:
            count = np.ones(len(labels), int) if weights is None else weights
            return Overlap(int(count @ (flagged & labels)), int(count @ flagged), int(count @ labels)).f1

        whole = Overlap(int((flagged & labels).sum()), int(flagged.sum()), int(labels.sum()))
        found |= {
            "threshold": threshold,
            "f1": with_interval(tokens, f1),
            "precision": whole.precision,
            "recall": whole.recall,
            "first_token_recall": float(flagged[tokens.firsts].mean()) if tokens.firsts.any() else None,
        }
    if risk:
        found["calibration_error"] = calibration_error(scores, labels)
    return found


# --- the gate ------------------------------------------------------------------------------------------


def reached(signal: Floats, wanted: Bools, share: float, weights: Any = None) -> float:
    """Share of the wanted tokens among the `share` of all tokens with the highest signal."""
    order = np.argsort(-signal, kind="stable")
    count = np.ones(len(signal)) if weights is None else weights[order].astype(float)
    within = np.cumsum(count) <= share * count.sum() + 1e-9
    total = count @ wanted[order]
    return float(count[within] @ wanted[order][within] / total) if total else 1.0


def gate(signals: dict[str, Floats], top: Floats, wanted: dict[str, Bools], tokens: Tokens) -> dict[str, Any]:
    """Per thing wanted: curves, the figure at SHARE with intervals, and the probe less skip_threshold."""
    shares = [round(0.05 * at, 2) for at in range(1, 21)]
    result: dict[str, Any] = {"share_of_steps": shares}
    for name, marks in wanted.items():
        result[name] = {
            "tokens": int(marks.sum()),
            "recall": {
                key: [reached(signal, marks, share) for share in shares] for key, signal in signals.items()
            },
            f"recall_at_{SHARE}": {
                key: with_interval(tokens, lambda w, s=signal, m=marks: reached(s, m, SHARE, w))  # type: ignore[misc]
                for key, signal in signals.items()
            },
        }
        if "probe" in signals:
            probe, skip = signals["probe"], signals["skip_threshold"]
            result[name][f"probe_less_skip_threshold_at_{SHARE}"] = with_interval(
                tokens,
                lambda w, m=marks, p=probe, s=skip: reached(p, m, SHARE, w) - reached(s, m, SHARE, w),  # type: ignore[misc]
            )
            result[name]["at_skip_threshold"] = {
                str(skipped): {
                    "share_of_steps": (part := float((top < skipped).mean())),
                    "skip_threshold": reached(skip, marks, part),
                    "probe": reached(probe, marks, part),
                }
                for skipped in SKIPS
            }
    return result


# --- scores --------------------------------------------------------------------------------------------


def causal_name(
    detector: CausalDetector, tokenizer: Any, labelled: Sequence[LabelledTokens], dtype: str | None, data: str
) -> str:
    """The file of a detector's scores: of its weights, of the host's tokens and of how it is shown them."""
    cuts = hashlib.sha256(repr([each.ids for each in labelled]).encode()).hexdigest()[:12]
    host = f"{Vocabulary.for_tokenizer(tokenizer).fingerprint[:12]}-{cuts}"
    return f"causal-{detector.version}-{detector.alignment.mode}-{dtype}-{host}-{data}.jsonl"


def causal_scores(
    detector: CausalDetector,
    host: Host,
    examples: Sequence[Example],
    labelled: Sequence[LabelledTokens],
    path: Path | None,
) -> tuple[Floats, float]:
    """(P(unsupported) of all tokens, seconds per token); path: where they are kept, a line per answer."""
    kept: list[dict[str, Any]] = []
    if path is not None and path.is_file():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [json.loads(line) for line in lines if line.endswith("\n")][: len(examples)]
        replace_text(path, "".join(line for line in lines if line.endswith("\n")))
    vocabulary = Vocabulary.for_tokenizer(host.tokenizer)
    for number in range(len(kept), len(examples)):
        example = examples[number]
        grounding = Grounding((cut_context(host.tokenizer, example.context),), example.query)
        found = stream(detector, grounding, labelled[number].ids, vocabulary)
        detector.drop_caches()
        kept.append({"scores": [round(float(score), 6) for score in found.scores], "seconds": found.seconds})
        if path is not None:
            with path.open("a", encoding="utf-8") as out:
                out.write(json.dumps(kept[-1]) + "\n")
        if (number + 1) % 20 == 0 or number + 1 == len(examples):
            say(f"causal: {number + 1} of {len(examples)} answers")
    scores = np.concatenate([np.array(each["scores"], np.float32) for each in kept])
    return scores, sum(each["seconds"] for each in kept) / len(scores)


def layers_to_read(folder: Path, key: str, wanted: set[int]) -> list[int]:
    """The layers whose states are in `folder`, if it is of this key and has those wanted, else those; noted there."""
    note = folder / "layers.json"
    known = sorted(wanted or {1})
    if note.is_file():
        there = json.loads(note.read_text(encoding="utf-8"))
        known = there["layers"] if there["key"] == key and wanted <= set(there["layers"]) else known
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(note, json.dumps({"key": key, "layers": known}))
    return known


def probe_scores(probe: Probe, head: str, found: States, layers: Sequence[int]) -> Floats:
    side = found.before if head == "before" else found.after
    states = np.asarray(found.states[side, layers.index(probe.layer(head))], np.float32)
    return np.asarray(probe.risk(head, torch.from_numpy(states)).numpy(), np.float32)


def unseen_by(examples: Sequence[Example], card: dict[str, Any], files: Sequence[Path], name: str) -> str:
    """How it was checked that no context was trained on. Raises SystemExit where one was."""
    listed = card.get("data", {}).get("contexts")
    seen = set(str(listed).split()) if listed else set()
    shared = [e.id for e in examples if context_key(e.context)[:8] in seen]
    if shared:
        raise SystemExit(
            f"{name}: expected no test context in its training data, got {len(shared)} ({shared[0]})"
        )
    if files:
        try:
            check_disjoint(load_examples(list(files), say=say), (e.context for e in examples), FILE)
        except ValueError as error:
            raise SystemExit(str(error)) from error
    how = [text for text, is_so in (("card", seen), ("training files", files)) if is_so]
    return " and ".join(how) or "not checked: the card lists no contexts and no --train-data was given"


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--host", default=host_id(), metavar="ID")
    arguments.add_argument("--dtype", default="auto", help="the host's and the causal detector's")
    arguments.add_argument("--probe", type=Path, metavar="DIR")
    arguments.add_argument("--causal", type=Path, metavar="DIR")
    arguments.add_argument("--causal-threshold", type=float, metavar="P", help="default: its training.json's")
    arguments.add_argument("--cache", type=Path, required=True, metavar="DIR", help="scores, taken up again")
    arguments.add_argument(
        "--layers", type=int, nargs="+", default=[], help="more layers to keep, for other probes"
    )
    arguments.add_argument("--train-data", type=Path, nargs="+", default=[], metavar="FILE")
    arguments.add_argument("--limit", type=int, help="only so many answers of each task")
    options = arguments.parse_args()
    began = time.perf_counter()
    examples: list[Example] = []
    for number, row in enumerate(rows(options.data, FILE)):
        example = example_of(row, f"{FILE}:{number}")
        if options.limit is None or sum(e.task == example.task for e in examples) < options.limit:
            examples.append(example)
    host = Host(options.host, None, options.dtype)
    labelled = [label_tokens(example, host.tokenizer) for example in examples]
    tokens = all_tokens(examples, labelled)
    checked: dict[str, str] = {}
    probe = Probe.load(options.probe) if options.probe else None
    layers = set(options.layers)
    if probe is not None:
        probe.check_host(host.model)
        checked["probe"] = unseen_by(examples, probe.card, options.train_data, "probe")
        layers |= {probe.layer(head) for head in HEADS}
    data = hashlib.sha256(repr(examples).encode()).hexdigest()[:16]
    key = f"{weights_hash(host.model)} {host.model.dtype} {data}"
    states = options.cache / "host"
    known = layers_to_read(states, key, layers)
    found = extract_states(
        host.model, host.tokenizer, examples, labelled, known, states, key=key, figures=True, say=say
    )
    assert found.figures is not None
    log_p, entropy, top = np.asarray(found.figures[found.before]).T
    assert FIGURES == ("log_probability", "entropy", "top_probability")

    scores: dict[str, tuple[Floats, float | None, bool]] = {
        "-log p of the token": (-log_p, None, False),
        "entropy": (entropy, None, False),
    }
    if probe is not None:
        for head in ("after", "before"):
            threshold = float(probe.card["heads"][head]["threshold"])
            scores[f"probe, {head} the token"] = probe_scores(probe, head, found, known), threshold, True
    results: dict[str, Any] = {}
    seconds = None
    if options.causal:
        trained = options.causal / TRAINED
        card = json.loads(trained.read_text(encoding="utf-8")) if trained.is_file() else {}
        checked["causal"] = unseen_by(examples, card, options.train_data, "causal")
        dtype = None if options.dtype == "auto" else options.dtype
        detector = CausalDetector.for_host(
            host.tokenizer,
            detector_model=str(options.causal),
            detector_dtype=dtype,
            on_long_context="truncate",
        )
        threshold = detector.threshold if options.causal_threshold is None else options.causal_threshold
        if threshold is None:
            raise SystemExit(f"{options.causal}: expected a threshold in {TRAINED}; pass --causal-threshold")
        path = options.cache / causal_name(detector, host.tokenizer, labelled, dtype, data)
        all_scores, seconds = causal_scores(detector, host, examples, labelled, path)
        scores["causal"] = all_scores, float(threshold), True

    tasks = sorted({example.task for example in examples})
    task_of = np.array([example.task for example in examples])[tokens.owner]
    groups = {"all": np.ones(len(tokens.labels), bool), **{task: task_of == task for task in tasks}}
    for name, (values, threshold, risk) in scores.items():
        results[name] = {
            group: measured(values[some], tokens.of(some), threshold, risk) for group, some in groups.items()
        }
        for group, figures in results[name].items():
            f1 = f"F1 {shown(figures['f1'])}, " if "f1" in figures else ""
            print(
                f"{name:24s} {group:9s} AUROC {shown(figures['auroc'])}, AP {shown(figures['average_precision'])}, "
                f"{f1}best F1 {figures['best_f1'] or 0:.3f}"
            )

    signals = {"skip_threshold": 1 - top, "entropy": entropy, "-log p of the token": -log_p}
    if probe is not None:
        signals = {"probe": scores["probe, before the token"][0], **signals}
    wanted = {"unsupported tokens": tokens.labels, "first tokens of spans": tokens.firsts}
    if "causal" in scores:
        values, threshold, _ = scores["causal"]
        flagged = values > (threshold or 0.0)
        wanted |= {"flagged by the causal detector": flagged, "rightly flagged": flagged & tokens.labels}
    gated = gate(signals, top, wanted, tokens)
    for name in wanted:
        at = gated[name][f"recall_at_{SHARE}"]
        print(
            f"gate, {name} at {SHARE:.0%} of the steps:",
            ", ".join(f"{key} {shown(value)}" for key, value in at.items()),
        )
    headline = {
        f"{short}_{measure}": results[name]["all"][measure]["value"]
        for short, name in (("probe", "probe, after the token"), ("causal", "causal"))
        if name in results
        for measure in ("auroc", "f1")
    }
    finish(
        {
            **headline,
            "detectors": results,
            "gate": gated,
            "causal_ms_per_token": None if seconds is None else 1000 * seconds,
            "contexts_checked": checked,
            "probe_card": None if probe is None else {k: v for k, v in probe.card.items() if k != "data"},
            "host": {"weights": weights_hash(host.model), "dtype": str(host.model.dtype)},
            "seconds": time.perf_counter() - began,
            "provenance": provenance(options.data, [FILE]),
        },
        options.out,
    )


def shown(value: dict[str, float | None]) -> str:
    numbers = ["none" if value[key] is None else f"{value[key]:.3f}" for key in ("value", "low", "high")]
    return "{} ({} to {})".format(*numbers)


if __name__ == "__main__":
    main()
