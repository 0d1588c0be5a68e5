"""What one checked step of the causal detector costs, beside one full forward pass of transformers' own
model.

    OMP_NUM_THREADS=2 python scripts/bench_causal.py --out results/causal_bench.json

A round is one full pass (float32, sdpa, inference mode, last position only), then a few steps in float32,
then a few in the reduced precision, all at 1,050 tokens of context and answer, ten candidates; the round's
ratio is the pass over the median of its steps, and the figure is the median over rounds. The winner of a step
goes on in the next one, as in a generation. `--quick` leaves the tables out.
"""

from __future__ import annotations

import os
import statistics
import sys
from functools import partial
from typing import Any

import numpy as np
import torch
from _causal import Full, Texts, checkpoint_folder, detector_of, median_ms, so_far, timed
from _common import finish, parser, percentile, provenance

from lettuceprevent.detectors import ScoreRequest
from lettuceprevent.tree import CausalDetector

CONTEXT_AND_ANSWER = 1_050
ANSWER = 150
CONTEXT = CONTEXT_AND_ANSWER - ANSWER
STEPS = 3  # steps of each precision in one round


class Run:
    """One answer that grows by its third candidate at each step."""

    def __init__(
        self, detector: CausalDetector, texts: Texts, total: int, answer: int, rows: int = 1
    ) -> None:
        self.detector, self.texts = detector, texts
        self.requests = [texts.at_length(total, answer) for _ in range(rows)]

    def step(self, candidates: int = 10) -> float:
        """Seconds of one step."""
        asked = [
            ScoreRequest(each.grounding, each.history, self.texts.candidates(candidates))
            for each in self.requests
        ]
        took = timed(lambda: self.detector.score(asked))
        at = min(2, candidates - 1)
        self.requests = [
            ScoreRequest(each.grounding, (*each.history, each.candidates[at]), ()) for each in asked
        ]
        return took

    def median(self, candidates: int = 10, steps: int = 9) -> float:
        self.step(candidates)
        self.step(candidates)
        return median_ms([self.step(candidates) for _ in range(steps)])


class Beams(Run):
    """Four beams of one answer; at each step every beam goes on from a random one."""

    def __init__(
        self, detector: CausalDetector, texts: Texts, total: int, answer: int, beams: int = 4
    ) -> None:
        super().__init__(detector, texts, total, answer)
        self.requests = self.requests * beams

    def step(self, candidates: int = 10) -> float:
        asked = [
            ScoreRequest(each.grounding, each.history, self.texts.candidates(candidates))
            for each in self.requests
        ]
        took = timed(lambda: self.detector.score(asked))
        chosen = self.texts.chance.sample([(each, c) for each in asked for c in each.candidates], len(asked))
        self.requests = [ScoreRequest(each.grounding, (*each.history, c), ()) for each, c in chosen]
        return took


def rounds(full: Full, runs: dict[str, Run], count: int) -> dict[str, Any]:
    """The interleaved comparison."""
    first = next(iter(runs.values()))
    request = first.requests[0]
    ids = list(first.detector.prefixes(request.grounding)[0])
    ids = (ids + list(first.detector.alignment.ids(request.history)) + ids)[:CONTEXT_AND_ANSWER]
    for run in runs.values():
        run.step(), run.step()
    full(ids)
    passes: list[float] = []
    steps: dict[str, list[float]] = {name: [] for name in runs}
    cold: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(count):
        passes.append(timed(lambda: full(ids)))
        for name, run in runs.items():
            took = [run.step() for _ in range(STEPS)]
            steps[name].append(statistics.median(took))
            cold[name].append(took[0])
    result: dict[str, Any] = {"rounds": count, "tokens": len(ids), "full_forward_ms": median_ms(passes)}
    for name in runs:
        paired = [whole / step for whole, step in zip(passes, steps[name], strict=True)]
        right_after = [whole / step for whole, step in zip(passes, cold[name], strict=True)]
        result[name] = {
            "step_ms": median_ms(steps[name]),
            "speedup": statistics.median(paired),
            "speedup_p10": percentile(paired, 0.1),
            "speedup_p90": percentile(paired, 0.9),
            "speedup_first_step_after_the_pass": statistics.median(right_after),
        }
    return result


def accuracy(exact: CausalDetector, reduced: CausalDetector, texts: Texts, contexts: int) -> dict[str, Any]:
    """How far the reduced precision's scores are from float32, and how many verdicts change."""
    a, b = [], []
    for _ in range(contexts):
        start = texts.at_length(texts.chance.randint(150, 400), texts.chance.randint(20, 80))
        ask = ScoreRequest(start.grounding, start.history, texts.candidates(50))
        a.append(exact.score([ask])[0])
        b.append(reduced.score([ask])[0])
    left, right = np.concatenate(a), np.concatenate(b)
    threshold = float(np.quantile(left, 0.94))
    logits = np.log(left / (1 - left))
    return {
        "candidates": len(left),
        "contexts": contexts,
        "logit_sd": float(logits.std()),
        "max_abs_diff": float(np.abs(left - right).max()),
        "mean_abs_diff": float(np.abs(left - right).mean()),
        "threshold_p94": threshold,
        "verdicts_changed": float(((left >= threshold) != (right >= threshold)).mean()),
    }


def streaming_ms(size: int) -> float:
    """Milliseconds to read `size` bytes once, with all threads."""
    data = torch.ones(size // 4)
    return median_ms([timed(data.sum) for _ in range(9)])


def where_it_goes(run: Run, steps: int = 10) -> dict[str, float]:
    """Milliseconds per step by kind of operation, from torch's profiler (which adds some of its own to the
    rest).
    """
    from torch.profiler import ProfilerActivity, profile

    run.step()
    with profile(activities=[ProfilerActivity.CPU]) as records:
        for _ in range(steps):
            run.step()
    kinds = {
        "linear": ("mkldnn::_linear_pointwise", "aten::addmm", "aten::linear", "aten::mm"),
        "attention": ("aten::bmm", "aten::_softmax", "aten::_scaled_dot_product_flash_attention_for_cpu"),
        "norms": ("aten::native_layer_norm",),
    }
    result = dict.fromkeys((*kinds, "other_operations"), 0.0)
    for event in records.key_averages():
        kind = next((name for name, keys in kinds.items() if event.key in keys), "other_operations")
        result[kind] += event.self_cpu_time_total / 1e3 / steps
    return result


def skipped_step_ms(detector: CausalDetector, texts: Texts) -> float:
    """Milliseconds the processor takes for a step that it skips: 49,152 scores, one of them certain."""
    from lettuceprevent.processor import PreventionLogitsProcessor

    request = texts.at_length(CONTEXT_AND_ANSWER, ANSWER)
    vocabulary = detector.alignment._vocabulary  # type: ignore[attr-defined]
    processor = PreventionLogitsProcessor(
        vocabulary, [request.grounding], [detector], skip_threshold=0.9, prompt_length=900
    )
    scores = torch.randn(1, 49_152)
    scores[0, texts.tokens[0]] = 60.0
    ids = torch.tensor([[*([1] * 900), *request.history]])
    took = []
    for token in texts.candidates(60):
        took.append(timed(partial(processor, ids, scores)))
        ids = torch.cat([ids, torch.tensor([[token]])], 1)
    return median_ms(took[10:])


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--reduced", default="bfloat16")
    options.add_argument("--longest", type=int, default=7_000, help="longest context of the tables")
    options.add_argument("--quick", action="store_true", help="the comparison only")
    given = options.parse_args()

    folder = checkpoint_folder("full")
    full = Full(folder)
    exact = detector_of(folder)
    reduced = detector_of(folder, given.reduced)
    texts = Texts(exact, seed=1)
    runs = {
        "float32": Run(exact, texts, CONTEXT_AND_ANSWER - 20, ANSWER),
        given.reduced: Run(reduced, texts, CONTEXT_AND_ANSWER - 20, ANSWER),
    }
    compared = rounds(full, runs, given.rounds)
    weights = exact.checkpoint.decoder.weight_bytes()
    document: dict[str, Any] = {
        "script": "bench_causal",
        "speedup_vs_full_forward": compared["float32"]["speedup"],
        "speedup_reduced": compared[given.reduced]["speedup"],
        "comparison": compared,
        "weights_read_once_ms": {
            "float32": streaming_ms(weights),
            given.reduced: streaming_ms(reduced.checkpoint.decoder.weight_bytes()),
        },
        "bytes_per_node": exact.checkpoint.decoder.bytes_per_node,
        "threads": torch.get_num_threads(),
        "load_average_before": os.getloadavg()[0],
    }
    print(f"full forward {compared['full_forward_ms']:.0f} ms at {compared['tokens']} tokens")
    for name in runs:
        figures = compared[name]
        print(f"{name}: step {figures['step_ms']:.1f} ms, {figures['speedup']:.1f} times faster")
    document["reduced_accuracy"] = accuracy(exact, reduced, texts, 40)
    print("reduced:", document["reduced_accuracy"])
    document["where_it_goes_ms"] = {name: where_it_goes(run) for name, run in runs.items()}
    document["skip_ms"] = skipped_step_ms(exact, texts)
    print(f"skipped step {document['skip_ms']:.3f} ms; where it goes {document['where_it_goes_ms']}")
    for detector, name in ((exact, "float32"), (reduced, given.reduced)):
        short, long = Run(detector, texts, CONTEXT + 50, 50), Run(detector, texts, CONTEXT + 1_000, 1_000)
        pairs = []
        for run in (short, long):
            run.step(), run.step()
        for _ in range(given.rounds):
            pairs.append((short.step(), long.step()))
        growth = statistics.median(b / a for a, b in pairs) - 1
        document["growth_50_to_1000" if name == "float32" else "growth_50_to_1000_reduced"] = growth
        print(f"{name}: growth from 50 to 1,000 answer tokens {100 * growth:.1f} %")
    document = {**document, **provenance(given.data, [])}
    so_far(document, given.out)
    for detector, name in () if given.quick else ((exact, "float32"), (reduced, given.reduced)):
        table: dict[str, float] = {}
        document[f"steps_ms_{name}"] = table
        for count in (1, 5, 10, 20, 50):
            table[f"candidates_{count}"] = Run(detector, texts, CONTEXT_AND_ANSWER, ANSWER).median(count)
        table["beams_4"] = Beams(detector, texts, CONTEXT_AND_ANSWER, ANSWER).median()
        detector.drop_caches()
        table["batch_8"] = Run(detector, texts, CONTEXT_AND_ANSWER, ANSWER, rows=8).median()
        detector.drop_caches()
        for size in (500, 1_000, 2_000, 4_000, 7_000):
            if size > given.longest:
                break
            run = Run(detector, texts, size, 50)
            table[f"context_{size}_first_step"] = 1e3 * run.step()
            table[f"context_{size}"] = run.median(steps=5)
            detector.drop_caches()
            so_far(document, given.out)
        print(name, {key: round(value, 1) for key, value in table.items()})
    finish(document, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
