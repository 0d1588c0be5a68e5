"""Whole generations with SmolLM2-135M-Instruct and a random detector of the full 68M shape, beside plain decoding.

    OMP_NUM_THREADS=2 python scripts/e2e_causal.py --out results/causal_e2e.json

Host in float32, greedy, prompts of `--prompt-tokens` tokens made of news texts, `--new-tokens` new tokens without an
early end. Arms: plain decoding, and the detector at skip_threshold 0.8, 0.9, 0.99 and 1.0, in float32, and at 1.0 in the
reduced precision. For each prompt the arms run one after the other in a random order; each figure is the median over
prompts of the ratio to plain decoding of the same prompt. The detector's own reading of the context is in the time; the
model and the tokenizers are loaded before. `confidence_threshold` is 1, so that the arms write the same answer: a random
detector's verdicts mean nothing, and its cost does not depend on them. What is done is written after each prompt, with
the load average before it: other work on the same cores makes ratios worse.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from typing import Any

import torch
from _causal import checkpoint_folder, so_far
from _common import finish, parser, provenance, rows

from lettuceprevent.assets import host_id
from lettuceprevent.checkpoint import load_checkpoint
from lettuceprevent.generation import generate
from lettuceprevent.report import PreventionReport

THRESHOLDS = (0.8, 0.9, 0.99, 1.0)


def prompts(tokenizer: Any, texts: list[str], tokens: int, count: int) -> list[tuple[str, torch.Tensor]]:
    """(context, prompt ids (1, tokens)): chat prompts of exactly `tokens` tokens."""
    found = []
    pool = " ".join(texts)
    size = len(pool) // count
    for number in range(count):
        part = pool[number * size : (number + 1) * size]
        low, high = 0, len(part)
        while low < high:  # the longest context whose prompt is not longer than asked for
            middle = (low + high + 1) // 2
            low, high = (middle, high) if len(chat(tokenizer, part[:middle])) <= tokens else (low, middle - 1)
        found.append((part[:low], torch.tensor([chat(tokenizer, part[:low])])))
    return found


def chat(tokenizer: Any, context: str) -> list[int]:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": f"{context}\n\nSummarize the news above."}],
        tokenize=False,
        add_generation_prompt=True,
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def main() -> int:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = parser(__doc__)
    options.add_argument("--prompts", type=int, default=10)
    options.add_argument("--prompt-tokens", type=int, default=900)
    options.add_argument("--new-tokens", type=int, default=200)
    options.add_argument("--reduced", default="bfloat16")
    options.add_argument("--thresholds", default=",".join(map(str, THRESHOLDS)))
    given = options.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(host_id())
    model = AutoModelForCausalLM.from_pretrained(host_id(), dtype=torch.float32).eval()
    folder = str(checkpoint_folder("full"))
    for precision in ("float32", given.reduced):
        load_checkpoint(folder, dtype=precision)
    texts = [row["context"] for row in rows(given.data, "summary_prompts")[:200]]
    cases = prompts(tokenizer, texts, given.prompt_tokens, given.prompts)

    thresholds = [float(each) for each in given.thresholds.split(",")]
    arms: dict[str, dict[str, Any] | None] = {"plain": None}
    arms |= {f"float32_{each}": {"skip_threshold": each, "precision": "float32"} for each in thresholds}
    arms[f"{given.reduced}_1.0"] = {"skip_threshold": 1.0, "precision": given.reduced}
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    skipped: dict[str, list[float]] = {name: [] for name in arms if name != "plain"}
    loads: list[float] = []
    common = {"max_new_tokens": given.new_tokens, "min_new_tokens": given.new_tokens, "do_sample": False}
    order = random.Random(0)
    model.generate(cases[0][1], **{**common, "max_new_tokens": 4, "min_new_tokens": 4})
    for number, (context, ids) in enumerate(cases):
        names = list(arms)
        order.shuffle(names)
        loads.append(os.getloadavg()[0])
        for name in names:
            arm = arms[name]
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **common}
            start = time.perf_counter()
            if arm is None:
                model.generate(**inputs)
            else:
                report = PreventionReport()
                generate(
                    model,
                    **inputs,
                    tokenizer=tokenizer,
                    input_text=context,
                    detector_type="lettuceprevent",
                    detector_model=folder,
                    confidence_threshold=1.0,
                    report=report,
                    **arm,
                )
                counters = report.to_dict()["counters"]
                skipped[name].append(counters.get("skipped", 0) / max(1, counters["steps"]))
            seconds[name].append(time.perf_counter() - start)
        line = ", ".join(f"{name} {times[-1]:.1f}" for name, times in seconds.items())
        print(f"prompt {number + 1}: seconds {line}", flush=True)
        document = {
            "script": "e2e_causal",
            "prompts": number + 1,
            "new_tokens": given.new_tokens,
            **figures(seconds, skipped),
            "load_average_before": loads,
            **provenance(given.data, ["summary_prompts"]),
        }
        so_far(document, given.out)
    for name, ratio in document["time_ratio"].items():
        share = 100 * document["skip_rate"][name]
        print(f"{name}: {ratio:.2f} times plain, {share:.0f} % skipped")
    finish(document, given.out)
    return 0


def figures(seconds: dict[str, list[float]], skipped: dict[str, list[float]]) -> dict[str, Any]:
    """Medians over prompts of the ratio to plain decoding, and mean skip rates."""
    ratios = {
        name: [ours / plain for ours, plain in zip(seconds[name], seconds["plain"], strict=True)]
        for name in skipped
    }
    return {
        "plain_seconds": statistics.median(seconds["plain"]),
        "time_ratio": {name: statistics.median(each) for name, each in ratios.items()},
        "skip_rate": {name: statistics.mean(each) for name, each in skipped.items()},
        "seconds": seconds,
    }


if __name__ == "__main__":
    sys.exit(main())
