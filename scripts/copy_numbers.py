"""Copying from the context is never blocked (C2): every context, every tokenizer, whole and from literal boundaries.

    python scripts/copy_numbers.py --out results/copy_numbers.json

Each context is encoded and fed token by token to the number detector of its grounding; each token that the detector
would block, and each copy after which the text may not end, counts. The same is done for pieces that begin at a literal
of the context, or at a word before one, and end at a boundary. A sample goes through the processor as well: with the
next token of the copy as first choice, its score must come out as it went in, under both settings of on_unsupported.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from _common import TOKENIZERS, finish, parser, provenance, rows, tokenizer

from lettuceprevent.automaton import NumberDetector
from lettuceprevent.evaluation.numbers import scan
from lettuceprevent.grounding import Grounding
from lettuceprevent.vocabulary import Vocabulary

FILES = ("summary_prompts", "host_answers")


def contexts(folder: Path) -> list[str]:
    """The distinct contexts of both files."""
    return list(dict.fromkeys(row["context"] for name in FILES for row in rows(folder, name)))


def pieces(context: str, rng: random.Random, count: int) -> list[str]:
    """Text from a literal, or from a word before one, to a boundary outside any literal."""
    literals = scan(context)
    found = []
    for at in sorted(rng.sample(range(len(literals)), min(count, len(literals)))):
        first, last = literals[at], literals[min(len(literals) - 1, at + rng.randint(0, 4))]
        start = first.start
        if rng.random() < 0.5:
            words = [m.start() for m in re.finditer(r"\S+", context[max(0, start - 40) : start])]
            if words:
                start = max(0, start - 40) + rng.choice(words)
                start = min([start, *(lit.start for lit in literals if lit.start < start < lit.end)])
        end = last.end
        if rng.random() < 0.5:
            end = next((lit.start for lit in literals if lit.start >= end), len(context))
        found.append(context[start:end])
    return found


def copy(detector: NumberDetector, vocabulary: Vocabulary, ids: list[int]) -> list[str]:
    """What was blocked while `ids` were fed."""
    state = detector.start(b"")
    blocked = []
    for at, token in enumerate(ids):
        if detector.blocks(state, token):
            before = vocabulary.join(ids[max(0, at - 12) : at]).decode("utf-8", "replace")
            after = vocabulary.join(ids[at + 1 : at + 6]).decode("utf-8", "replace")
            blocked.append(f"{before}>>>{vocabulary[token].decode('utf-8', 'replace')}<<<{after}")
        state = detector.advance(state, token)
    if not detector.finish(state):
        blocked.append(vocabulary.join(ids[-12:]).decode("utf-8", "replace") + ">>>end of text<<<")
    return blocked


def through_processor(
    detector: NumberDetector,
    vocabulary: Vocabulary,
    grounding: Grounding,
    ids: list[int],
    on_unsupported: str,
) -> int:
    """Tokens of the copy whose score the processor lowered."""
    import torch

    from lettuceprevent.processor import PreventionLogitsProcessor

    processor = PreventionLogitsProcessor(
        vocabulary, [grounding], [[detector]], prompt_length=1, on_unsupported=on_unsupported, evidence="none"
    )
    noise = torch.randn(1, len(vocabulary), generator=torch.Generator().manual_seed(0))
    lowered = 0
    history = [0]
    for token in ids:
        scores = noise.clone()
        scores[0, token] = 20.0
        out = processor(torch.tensor([history]), scores)
        lowered += float(out[0, token]) != 20.0
        history.append(token)
    return lowered


def work(name: str, options: Any) -> dict[str, Any]:
    """All contexts with the tokenizer `name`."""
    import torch

    torch.set_num_threads(1)
    rng = random.Random(f"{options.seed} {name}")
    encoder = tokenizer(name)
    vocabulary = Vocabulary.for_tokenizer(encoder)
    count: Counter[str] = Counter()
    examples: list[dict[str, str]] = []
    chosen = contexts(options.data)[: options.contexts]
    sampled = set(rng.sample(range(len(chosen)), min(len(chosen), options.processor)))
    began = time.perf_counter()
    for at, context in enumerate(chosen):
        grounding = Grounding((context,))
        detector = NumberDetector.for_grounding(grounding, vocabulary)
        whole = encoder.encode(context, add_special_tokens=False)
        count["tokens"] += len(whole)
        for kind, ids in [("whole", whole)] + [
            ("piece", encoder.encode(piece, add_special_tokens=False))
            for piece in pieces(context, rng, options.pieces)
        ]:
            count[kind] += 1
            blocked = copy(detector, vocabulary, ids)
            count["blocked"] += len(blocked)
            count[f"blocked_{kind}"] += len(blocked)
            examples += [{"tokenizer": name, "kind": kind, "at": each} for each in blocked]
        if at in sampled:
            for setting in ("avoid", "substitute"):
                start = (
                    rng.choice([0, *(len(whole) * k // 8 for k in range(1, 7))]) if len(whole) > 400 else 0
                )
                part = encoder.encode(context, add_special_tokens=False)[:300] if start == 0 else None
                if part is None:
                    literal = rng.choice(scan(context) or scan("0"))
                    part = encoder.encode(
                        context[literal.start : literal.start + 900], add_special_tokens=False
                    )[:240]
                count["processor_steps"] += len(part)
                count["processor_lowered"] += through_processor(
                    detector, vocabulary, grounding, part, setting
                )
    count["contexts"] = len(chosen)
    print(f"{name}: {dict(count)} in {time.perf_counter() - began:.0f} s", flush=True)
    return {"name": name, "count": dict(count), "examples": examples}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--tokenizers", nargs="+", default=list(TOKENIZERS))
    arguments.add_argument("--contexts", type=int, default=None, help="only so many contexts")
    arguments.add_argument("--pieces", type=int, default=6, help="pieces per context")
    arguments.add_argument("--processor", type=int, default=40, help="contexts that go through the processor")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--workers", type=int, default=2)
    options = arguments.parse_args()
    began = time.perf_counter()
    with get_context("spawn").Pool(min(options.workers, len(options.tokenizers))) as pool:
        parts = pool.starmap(work, [(name, options) for name in options.tokenizers], chunksize=1)
    examples = [example for part in parts for example in part["examples"]]
    for example in examples[:60]:
        print("BLOCKED", example)
    total: Counter[str] = Counter()
    for part in parts:
        total.update({key: value for key, value in part["count"].items() if key != "contexts"})
    blocked = total["blocked"] + total["processor_lowered"]
    print(f"{parts[0]['count']['contexts']} contexts, {total['tokens']} tokens, blocked {blocked}")
    document = {
        "contexts": parts[0]["count"]["contexts"],
        "tokenizers": list(options.tokenizers),
        "blocked": blocked,
        "tokens": total["tokens"],
        "pieces": total["piece"],
        "processor_steps": total["processor_steps"],
        "processor_lowered": total["processor_lowered"],
        "per_tokenizer": {part["name"]: part["count"] for part in parts},
        "examples": examples[:60],
        "seconds": time.perf_counter() - began,
        "provenance": provenance(options.data, FILES),
    }
    finish(document, options.out)


if __name__ == "__main__":
    main()
