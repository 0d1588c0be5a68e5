"""Are the cached scores those of full forward passes? Random trees against transformers' own model, in
float32.

    OMP_NUM_THREADS=2 python scripts/parity_causal.py --out results/causal_parity.json

Modes, each with `--cases` random (context, history, candidates): `plain` (one answer that grows), `skips`
(steps left out at random), `beams` (four answers that branch), `batch` (several groundings in one call, two
with a common prefix), `dropped` (caches dropped at random), and all of it together as `mixed`. With
`host_chunks` all of them; with the alignments that re-score the end of the text, `direct` and
`reference_chunks` (cut by Llama-3.1's tokenizer), `plain` and `mixed`. For the tiny checkpoint (window 16,
small byte-level tokenizer, so several pieces per candidate and halves of characters) and for the full 68M
shape. Of each case's candidates `--checked` are compared with a full pass, which has no cache and no mask of
ours.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
from _causal import Full, Texts, checkpoint_folder, detector_of, so_far
from _common import finish, parser, provenance, tokenizer

from lettuceprevent.detectors import ScoreRequest
from lettuceprevent.grounding import Grounding

ALIGNMENTS = ("host_chunks", "direct", "reference_chunks")
MODES = (
    *((alignment, walk) for walk in ("mixed", "plain") for alignment in ALIGNMENTS),
    *(("host_chunks", walk) for walk in ("skips", "beams", "batch", "dropped")),
)


class Walk:
    """Random requests of one mode, one call after the other."""

    def __init__(
        self, mode: str, texts: Texts, tokens: list[int], sizes: tuple[int, int], longest: int
    ) -> None:
        self.mode, self.chance, self.tokens = mode, texts.chance, tokens
        self.longest = longest
        self.groundings = [texts.grounding(self.chance.randint(*sizes)) for _ in range(3)]
        first = self.groundings[0]
        self.groundings.append(Grounding(first.passages, "and a query"))
        self.answers: list[tuple[Grounding, tuple[int, ...]]] = []

    def requests(self) -> list[ScoreRequest]:
        many = self.mode in ("beams", "mixed")
        if not self.answers:
            count = len(self.groundings) if self.mode in ("batch", "mixed") else 1
            self.answers = [(each, ()) for each in self.groundings[:count] for _ in range(4 if many else 1)]
        asked = [
            ScoreRequest(
                grounding, history, tuple(self.chance.choices(self.tokens, k=self.chance.choice((1, 3, 10))))
            )
            for grounding, history in self.answers
        ]
        self.answers = [self._next(each, asked) for each in asked]
        return asked

    def _next(self, request: ScoreRequest, asked: list[ScoreRequest]) -> tuple[Grounding, tuple[int, ...]]:
        if self.mode in ("beams", "mixed"):
            same = [each for each in asked if each.grounding == request.grounding]
            request = self.chance.choice(same)
        history = (*request.history, self.chance.choice(request.candidates))
        if self.mode in ("skips", "mixed") and self.chance.random() < 0.4:
            history += tuple(self.chance.choices(self.tokens, k=self.chance.randint(1, 5)))
        return request.grounding, history if len(history) < self.longest else ()


def compare(size: str, alignment: str, mode: str, cases: int, checked: int, seed: int) -> dict[str, Any]:
    """One mode on one checkpoint."""
    folder = checkpoint_folder(size, seed)
    reference = tokenizer("llama31") if alignment == "reference_chunks" else None
    detector = detector_of(folder, alignment=alignment, reference_tokenizer=reference)
    full = Full(folder)
    texts = Texts(detector, seed)
    vocabulary = detector.alignment._vocabulary  # type: ignore[attr-defined]
    tokens = [token for token in range(vocabulary.size) if vocabulary[token]]
    sizes, longest = ((40, 120), 60) if size == "tiny" else ((60, 100), 80)
    walk = Walk(mode, texts, tokens, sizes, longest)
    chance = random.Random(seed)
    done, compared, worst, logits = 0, 0, 0.0, []
    while done < cases:
        asked = walk.requests()
        if mode in ("dropped", "mixed") and chance.random() < 0.2:
            detector.drop_caches()
        for request, scores in zip(asked, detector.score(asked), strict=True):
            if done >= cases:
                break
            done += 1
            for at in chance.sample(range(len(scores)), min(checked, len(scores))):
                answer = detector.alignment.ids((*request.history, request.candidates[at]))
                expected = full(detector.prefixes(request.grounding)[0] + answer)
                worst = max(worst, abs(expected - float(scores[at])))
                logits.append(torch.logit(torch.tensor(expected, dtype=torch.float64)))
                compared += 1
    spread = float(torch.stack(logits).std())
    return {"cases": done, "scores_compared": compared, "max_abs_diff": worst, "logit_sd": spread}


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--cases", type=int, default=200)
    options.add_argument("--checked", type=int, default=1)
    options.add_argument("--sizes", default="full,tiny")
    given = options.parse_args()
    results: dict[str, dict[str, Any]] = {}
    for size in given.sizes.split(","):
        for alignment, walk in MODES:
            found = compare(size, alignment, walk, given.cases, given.checked, seed=0)
            results[f"{size}_{alignment}_{walk}"] = found
            print(
                f"{size:5} {alignment:16} {walk:8} {found['cases']} cases, "
                f"largest difference {found['max_abs_diff']:.2e}",
                flush=True,
            )
            so_far(document(results, given.data), given.out)
    finish(document(results, given.data), given.out)
    return 0


def document(results: dict[str, dict[str, Any]], data: Any) -> dict[str, Any]:
    return {
        "script": "parity_causal",
        "cases": min(each["cases"] for each in results.values()),
        "max_abs_diff": max(each["max_abs_diff"] for each in results.values()),
        "modes": results,
        **provenance(data, []),
    }


if __name__ == "__main__":
    sys.exit(main())
