"""What the number detector costs per step, next to llguidance and to a step of the host.

    python scripts/bench_numbers.py --out results/bench_numbers.json

Timed is the whole processor: find the row's state, its mask, apply it out of place, keep the report. llguidance gets its
best case: filling the bit mask and applying it out of place, without consuming the token, for a regular expression
that lets digits through only as the digit strings of the context. Both walk the same text, interleaved in one run. The
text is the context itself, so that both accept it; at every other start of a number the host's first choice is
another digit, so that interventions are recorded. Warm figures come after one pass over the same text.
"""

from __future__ import annotations

import gc
import os
import re
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _common import finish, parser, percentile, provenance, rows, tokenizer

from lettuceprevent.assets import HOST, asset_path
from lettuceprevent.automaton import NumberDetector
from lettuceprevent.grounding import Grounding
from lettuceprevent.processor import PreventionLogitsProcessor
from lettuceprevent.vocabulary import Vocabulary

FILES = ("summary_prompts",)
NAMES = ("mistral", "smollm2", "llama31", "qwen3", "gptoss", "gemma3")
HISTORIES = (50, 500, 2000)
Applier = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Ours:
    """The processor on one text."""

    def __init__(self, bench: Bench, ids: list[int], history: int, **options: Any) -> None:
        settings = {"on_unsupported": "substitute", "skip_threshold": 1.0} | options
        self.processor = PreventionLogitsProcessor(
            bench.vocabulary, [bench.grounding], [[bench.detector]], prompt_length=1, **settings
        )
        self.ids = torch.tensor([[0, *ids]])
        self.at = history + 1
        if history:
            self.processor(self.ids[:, : self.at], bench.scores[0])

    def step(self, scores: torch.Tensor) -> float:
        ids = self.ids[:, : self.at + 1]
        self.at += 1
        began = time.perf_counter_ns()
        self.processor(ids, scores)
        return (time.perf_counter_ns() - began) / 1e3


class Theirs:
    """llguidance on the same text."""

    def __init__(self, bench: Bench, ids: list[int], history: int) -> None:
        import llguidance

        self.matcher = llguidance.LLMatcher(bench.llg, bench.regex)
        self.ids, self.at = ids, history
        self.mask = bench.bitmask
        self.apply = bench.applier
        if not self.matcher.consume_tokens(ids[:history]):
            raise SystemExit(f"llguidance: {self.matcher.get_error()}")
        self.consuming: list[float] = []

    def step(self, scores: torch.Tensor) -> float:
        from llguidance.torch import fill_next_token_bitmask

        consumed = time.perf_counter_ns()
        if not self.matcher.consume_token(self.ids[self.at]):
            raise SystemExit(f"llguidance refuses the context's own text: {self.matcher.get_error()}")
        self.at += 1
        began = time.perf_counter_ns()
        self.consuming.append((began - consumed) / 1e3)
        fill_next_token_bitmask(self.matcher, self.mask)
        self.apply(scores, self.mask)
        return (time.perf_counter_ns() - began) / 1e3


class Bench:
    """One vocabulary and one context."""

    def __init__(self, name: str, context: str, steps: int, appliers: dict[str, Applier]) -> None:
        import llguidance
        import llguidance.hf
        import llguidance.torch

        self.encoder = tokenizer(name)
        self.vocabulary = Vocabulary.for_tokenizer(self.encoder)
        self.width = len(self.vocabulary)
        self.grounding = Grounding((context,))
        self.detector = NumberDetector.for_grounding(self.grounding, self.vocabulary)
        self.llg = llguidance.hf.from_tokenizer(self.encoder, n_vocab=self.width)
        self.bitmask = llguidance.torch.allocate_token_bitmask(1, self.width)
        numbers = sorted(set(re.findall(r"[0-9]+", context)), key=lambda n: (-len(n), n)) or ["0"]
        one = f"({'|'.join(numbers)})"
        self.regex = llguidance.LLMatcher.grammar_from_regex(f"({one}?[^0-9])*{one}?")
        generator = torch.Generator().manual_seed(0)
        self.scores = [torch.randn(1, self.width, generator=generator) for _ in range(8)]
        self.last, self.raised, self.raised_value = self.scores[0], 0, float(self.scores[0][0, 0])
        self.digits = [i for i in range(self.width) if re.fullmatch(rb" ?[0-9]", self.vocabulary[i])]
        text = context + "\n"
        ids = self.encoder.encode(text, add_special_tokens=False)
        while len(ids) < max(HISTORIES) + steps + 1:
            text += context + "\n"
            ids = self.encoder.encode(text, add_special_tokens=False)
        self.ids = ids
        self.starts = frozenset(self._starts())
        self.applier = self._fastest(appliers)

    def _starts(self) -> list[int]:
        """Places whose next token begins a run of digits."""
        has = [bool(re.search(rb"[0-9]", self.vocabulary[token])) for token in self.ids]
        return [at for at in range(1, len(has)) if has[at] and not has[at - 1]]

    def _fastest(self, appliers: dict[str, Applier]) -> Applier:
        """The way to apply a bit mask that is fastest at this width."""
        best, chosen = float("inf"), ""
        for name, applier in list(appliers.items()):
            try:
                times = []
                for _ in range(30):
                    began = time.perf_counter_ns()
                    applier(self.scores[0], self.bitmask)
                    times.append((time.perf_counter_ns() - began) / 1e3)
            except Exception as error:
                print(f"llguidance apply by {name}: not available here ({type(error).__name__})")
                del appliers[name]
                continue
            if percentile(times[5:], 0.5) < best:
                best, chosen = percentile(times[5:], 0.5), name
        self.applied_by = chosen
        return appliers[chosen]

    def input(self, at: int, number: int) -> torch.Tensor:
        """Scores for the step after `at` ids: the next id of the text first, or a digit where a number starts."""
        scores = self.scores[number % len(self.scores)]
        self.last[0, self.raised] = self.raised_value
        self.last = scores
        wrong = at in self.starts or (at - 1 in self.starts and number % 2)
        self.raised = self.digits[number % len(self.digits)] if wrong else self.ids[at]
        self.raised_value = float(scores[0, self.raised])
        scores[0, self.raised] = 30.0
        return scores

    def run(self, steps: int, **options: Any) -> dict[Any, list[float]]:
        """Interleaved steps of ours and theirs at all history lengths; microseconds."""
        sides: dict[Any, Any] = {}
        for history in HISTORIES:
            sides["ours", history] = Ours(self, self.ids, history, **options)
            sides["theirs", history] = Theirs(self, self.ids, history)
        times: dict[Any, list[float]] = {key: [] for key in sides}
        for number in range(steps):
            for history in HISTORIES:
                scores = self.input(history + number + 1, number)
                order = ("ours", "theirs") if number % 2 else ("theirs", "ours")
                for side in order:
                    times[side, history].append(sides[side, history].step(scores))
        for history in HISTORIES:
            times["consume", history] = sides["theirs", history].consuming
        self.penalised = sum(sides["ours", h].processor.report.counters["penalised"] for h in HISTORIES)
        return times


def appliers() -> dict[str, Applier]:
    """Ways to apply llguidance's bit mask to a copy of the scores; the fastest is used."""
    from llguidance.torch import apply_token_bitmask_inplace

    def own(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        out = scores.clone()
        apply_token_bitmask_inplace(out, mask)
        return out

    def unpacked(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")[: scores.shape[-1]]
        return scores.masked_fill(torch.from_numpy(bits == 0), -torch.inf)

    return {"llguidance.torch": own, "numpy.unpackbits": unpacked}


def host_share(bench: Bench, steps: int) -> dict[str, float]:
    """A step of SmolLM2 with a cache of 500 ids, and our step after it, in turn."""
    from transformers import AutoModelForCausalLM

    folder = asset_path(HOST)
    if folder is None:
        raise SystemExit(f"{HOST}: not fetched yet; run `python scripts/get_assets.py {HOST}`")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours = Ours(bench, bench.ids, 500)
    host, detector = [], []
    threads = torch.get_num_threads()
    with torch.no_grad():
        out = model(torch.tensor([bench.ids[:500]]), use_cache=True)
        for number in range(steps):
            cache = out["cache"] if "cache" in out else out["past_key_values"]
            key = "cache" if "cache" in out else "past_key_values"
            torch.set_num_threads(os.cpu_count() or 1)
            began = time.perf_counter_ns()
            out = model(torch.tensor([[bench.ids[500 + number]]]), use_cache=True, **{key: cache})
            host.append((time.perf_counter_ns() - began) / 1e3)
            torch.set_num_threads(threads)
            detector.append(ours.step(bench.input(501 + number, number)))
    ours_us, host_us = percentile(detector, 0.5), percentile(host, 0.5)
    return {"host_step_us": host_us, "ours_us": ours_us, "share": ours_us / host_us}


def prepare(data: list[dict[str, Any]], count: int) -> dict[str, float]:
    """Milliseconds to prepare contexts of about 1,000 tokens."""
    encoder = tokenizer("smollm2")
    vocabulary = Vocabulary.for_tokenizer(encoder)
    NumberDetector.for_grounding(Grounding(("12 men",)), vocabulary)
    times: list[float] = []
    for row in data:
        size = len(encoder.encode(row["context"], add_special_tokens=False))
        if 900 <= size <= 1100:
            began = time.perf_counter_ns()
            detector = NumberDetector.for_grounding(Grounding((row["context"],)), vocabulary)
            detector.start(b"")
            times.append((time.perf_counter_ns() - began) / 1e6)
            if len(times) >= count:
                break
    return {
        "median": percentile(times, 0.5),
        "p99": percentile(times, 0.99),
        "max": max(times),
        "contexts": len(times),
    }


def figures(times: list[float]) -> dict[str, float]:
    return {"median": percentile(times, 0.5), "p99": percentile(times, 0.99)}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--tokenizers", nargs="+", default=list(NAMES))
    arguments.add_argument("--contexts", type=int, default=3)
    arguments.add_argument(
        "--steps", type=int, default=200, help="timed steps per history length and context"
    )
    arguments.add_argument("--threads", type=int, default=1, help="of torch, but for the host's own step")
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    data = rows(options.data, "summary_prompts")
    chosen = [row["context"] for row in data if 3500 < len(row["context"]) < 5000][: options.contexts]
    ways = appliers()
    table: dict[str, dict[str, Any]] = {}
    pooled: dict[str, list[float]] = {
        key: [] for key in ("ours", "theirs", "consume", "short", "long", "cold")
    }
    share: dict[str, float] = {}
    for name in options.tokenizers:
        kept: dict[Any, list[float]] = {}
        width = penalised = 0
        for context in chosen:
            bench = Bench(name, context, options.steps, ways)
            width = bench.width
            passes = {
                "cold": bench.run(options.steps),
                "warm": bench.run(options.steps),
            }
            gc.collect()
            passes["warm"] = bench.run(options.steps)
            penalised += bench.penalised
            bench.run(options.steps, on_unsupported="avoid")
            passes["avoid"] = bench.run(options.steps, on_unsupported="avoid")
            passes["skip"] = bench.run(options.steps, skip_threshold=0.9)
            for label, times in passes.items():
                for key, values in times.items():
                    kept.setdefault((label, *key), []).extend(values)
            if name == "smollm2" and not share:
                share = host_share(bench, 100)
        entry: dict[str, Any] = {"width": width, "applied_by": bench.applied_by, "penalised": penalised}
        for label in ("cold", "warm", "avoid", "skip"):
            for history in HISTORIES:
                entry[f"{label}_{history}"] = figures(kept[label, "ours", history])
        for history in HISTORIES:
            entry[f"llguidance_{history}"] = figures(kept["warm", "theirs", history])
            entry[f"llguidance_consume_{history}"] = figures(kept["warm", "consume", history])
            pooled["ours"] += kept["warm", "ours", history]
            pooled["theirs"] += kept["warm", "theirs", history]
            pooled["cold"] += kept["cold", "ours", history]
        entry["long_to_short"] = entry["warm_2000"]["median"] / entry["warm_50"]["median"]
        table[name] = entry
        print(
            f"{name:8s} V={width:6d}  ours 50/500/2000: "
            + " ".join(f"{entry[f'warm_{h}']['median']:6.0f}" for h in HISTORIES)
            + f" us, p99 {entry['warm_500']['p99']:6.0f}, cold p99 {entry['cold_500']['p99']:7.0f}"
            + f"  llguidance {entry['llguidance_500']['median']:6.0f} us ({bench.applied_by})"
            + f"  avoid {entry['avoid_500']['median']:6.0f}, skip {entry['skip_500']['median']:6.0f}",
            flush=True,
        )
    prepared = prepare(data, 60)
    document = {
        "median_us": percentile(pooled["ours"], 0.5),
        "p99_us": percentile(pooled["ours"], 0.99),
        "cold_p99_us": percentile(pooled["cold"], 0.99),
        "llguidance_median_us": percentile(pooled["theirs"], 0.5),
        "llguidance_p99_us": percentile(pooled["theirs"], 0.99),
        "median_at_most_llguidance_for": {
            name: all(entry[f"warm_{h}"]["median"] <= entry[f"llguidance_{h}"]["median"] for h in HISTORIES)
            for name, entry in table.items()
        },
        "worst_p99_us": max(entry[f"warm_{h}"]["p99"] for entry in table.values() for h in HISTORIES),
        "long_to_short": max(entry["long_to_short"] for entry in table.values()),
        "share_of_host_step": share.get("share"),
        "host": share,
        "prepare_ms": prepared["median"],
        "prepare": prepared,
        "per_tokenizer": table,
        "threads": options.threads,
        "provenance": provenance(options.data, FILES),
    }
    ours, theirs = document["median_us"], document["llguidance_median_us"]
    print(f"\nmedian {ours:.0f} us, p99 {document['p99_us']:.0f} us, llguidance {theirs:.0f} us")
    print(f"2,000 against 50 tokens of history: {document['long_to_short']:.2f} at most")
    if share:
        print(f"share of a SmolLM2 step: {share['share']:.2%} of {share['host_step_us'] / 1e3:.1f} ms")
    print(
        f"prepare a context of 1,000 tokens: median {prepared['median']:.1f} ms, max {prepared['max']:.1f} ms"
    )
    finish(document, options.out)


if __name__ == "__main__":
    main()
