"""What `detector_type="probe"` costs: SmolLM2-135M-Instruct watched by its probe, beside plain decoding.

    OMP_NUM_THREADS=2 python scripts/bench_probe.py --out results/bench_probe.json

Greedy, chat prompts of `--prompt-tokens` tokens made of news texts, `--new-tokens` new tokens without an early end.
For each prompt, `--repeats` times, both arms run one after the other in a random order; `time_ratio` is the median over
these pairs of watched over plain, with everything between call and return in it (the probe's file is read each time, and
it is checked that it fits). The quarters are of the new tokens, the prompt left out: a cost that grew with length would
show there. Forward passes are counted by a hook that both arms have. Both arms must write the same ids, or the script
stops. Without a probe for the host a random one of its shape is used, and said so: the time does not depend on the
weights.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from _common import finish, parser, percentile, provenance, rows
from e2e_causal import prompts

from lettuceprevent.assets import host_id
from lettuceprevent.generation import generate
from lettuceprevent.probe import HEADS, Probe, host_hash
from lettuceprevent.report import PreventionReport

BAR = 1.01


@dataclass
class Timed:
    """One generation: seconds, forward passes, when each began, and what was written."""

    seconds: float
    stamps: list[float]
    ids: list[int]

    def quarter(self, number: int) -> float:
        """Seconds of a quarter (0 to 3) of the steps after the prompt's."""
        steps = len(self.stamps) - 2
        first, last = 1 + number * steps // 4, 1 + (number + 1) * steps // 4
        return self.stamps[last] - self.stamps[first]


class Stopwatch:
    """Notes when each forward pass of a host begins."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.stamps: list[float] = []
        model.register_forward_pre_hook(lambda *_: self.stamps.append(time.perf_counter()))

    def run(self, call: Any) -> Timed:
        self.stamps.clear()
        began = time.perf_counter()
        out = call()
        ended = time.perf_counter()
        return Timed(ended - began, [*self.stamps, ended], out[0].tolist())


def random_probe(model: Any) -> Probe:
    """A probe of the host's shape whose weights mean nothing, on the layers in the middle."""
    layers, width = model.config.num_hidden_layers, model.config.hidden_size
    made = torch.Generator().manual_seed(0)
    card = {
        "host": {"id": "random", "hash": host_hash(model.config), "layers": layers, "width": width},
        "heads": {
            head: {"layer": max(1, layers // 2) + at * (layers > 2), "threshold": 0.5}
            for at, head in enumerate(HEADS)
        },
    }
    return Probe(
        {head: torch.randn(width, generator=made) for head in HEADS}, dict.fromkeys(HEADS, 0.0), card
    )


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": statistics.median(values),
        "p10": percentile(values, 0.1),
        "p90": percentile(values, 0.9),
    }


def main() -> int:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = parser(__doc__)
    options.add_argument("--probe", help="folder of the probe (default: the package's for the host)")
    options.add_argument("--prompts", type=int, default=10)
    options.add_argument("--repeats", type=int, default=4)
    options.add_argument("--prompt-tokens", type=int, default=400)
    options.add_argument("--new-tokens", type=int, default=128)
    given = options.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(host_id())
    model = AutoModelForCausalLM.from_pretrained(host_id(), dtype=torch.float32).eval()
    source: Any = given.probe
    kind = "trained"
    if source is None:
        try:
            Probe.for_host(model)
        except ValueError as error:
            print(f"a random probe, since there is no other: {error}")
            source, kind = random_probe(model), "random"
    probe = Probe.for_host(model, source)
    texts = [row["context"] for row in rows(given.data, "summary_prompts")[:200]]
    cases = prompts(tokenizer, texts, given.prompt_tokens, given.prompts)

    watch = Stopwatch(model)
    common = {"max_new_tokens": given.new_tokens, "min_new_tokens": given.new_tokens, "do_sample": False}
    reports: list[PreventionReport] = []

    def plain(ids: torch.Tensor) -> Timed:
        return watch.run(lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **common))

    def watched(ids: torch.Tensor) -> Timed:
        report = PreventionReport()
        reports.append(report)
        return watch.run(
            lambda: generate(
                model,
                ids,
                attention_mask=torch.ones_like(ids),
                tokenizer=tokenizer,
                detector_type="probe",
                probe=source,
                report=report,
                **common,
            )
        )

    arms = {"plain": plain, "probe": watched}
    found: dict[str, list[Timed]] = {name: [] for name in arms}
    loads: list[float] = []
    order = random.Random(0)
    for run in arms.values():  # warm: vocabulary, allocator
        run(cases[0][1])
    reports.clear()
    for number, (_, ids) in enumerate(cases * given.repeats):
        loads.append(os.getloadavg()[0])
        names = list(arms)
        order.shuffle(names)
        for name in names:
            found[name].append(arms[name](ids))
        a, b = (found[name][-1] for name in arms)
        if a.ids != b.ids:
            raise SystemExit(f"expected the same ids of both arms, got others at pair {number}")
        print(
            f"pair {number + 1}: {a.seconds:.2f} s, {b.seconds:.2f} s, {b.seconds / a.seconds:.4f}",
            flush=True,
        )

    pairs = list(zip(found["plain"], found["probe"], strict=True))
    passes = {name: sorted({len(each.stamps) - 1 for each in found[name]}) for name in arms}
    ratios = [b.seconds / a.seconds for a, b in pairs]
    stages = [report.to_dict()["latency"]["stages"]["total"]["p50_us"] for report in reports]
    document = {
        "script": "bench_probe",
        "host": "SmolLM2-135M-Instruct, float32",
        "probe": kind,
        "layers": {head: probe.layer(head) for head in HEADS},
        "pairs": len(pairs),
        "prompt_tokens": given.prompt_tokens,
        "new_tokens": given.new_tokens,
        "time_ratio": statistics.median(ratios),
        "bar": BAR,
        "ratio": spread(ratios),
        "first_quarter": spread([b.quarter(0) / a.quarter(0) for a, b in pairs]),
        "last_quarter": spread([b.quarter(3) / a.quarter(3) for a, b in pairs]),
        "plain_ms_per_token": 1e3 * statistics.median(a.seconds for a, _ in pairs) / given.new_tokens,
        "processor_us_per_step": statistics.median(stages),
        "forward_passes": passes,
        "same_passes": passes["plain"] == passes["probe"],
        "same_ids": True,
        "load": {"median": statistics.median(loads), "max": max(loads)},
        "provenance": provenance(given.data, ("summary_prompts",)),
    }
    finish(document, given.out)
    return 0 if document["same_passes"] else 1


if __name__ == "__main__":
    sys.exit(main())
