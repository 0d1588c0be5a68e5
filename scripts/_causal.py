"""What the scripts of the causal detector share: random checkpoints, transformers' own model, random texts."""

from __future__ import annotations

import contextlib
import io
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from _common import ROOT, finish  # puts the package on the path
from make_causal_checkpoint import load_tokenizer, small_tokenizer, write_checkpoint

from lettuceprevent.assets import cache_dir
from lettuceprevent.checkpoint import Checkpoint, load_checkpoint, read_weights, split_weights
from lettuceprevent.detectors import ScoreRequest
from lettuceprevent.grounding import Grounding
from lettuceprevent.tree import CausalDetector
from lettuceprevent.vocabulary import Vocabulary

__all__ = ["ROOT", "Full", "Texts", "checkpoint_folder", "detector_of", "median_ms", "so_far", "timed"]


def checkpoint_folder(size: str, seed: int = 0, kind: str = "modernbert-decoder") -> Path:
    """A random checkpoint in the cache, made when first asked for. `tiny` has a small byte-level tokenizer.

    Each major release of transformers writes its own: 4's models do not read the rotation bases that 5 writes.
    """
    release = "" if int(transformers.__version__.split(".")[0]) > 4 else "-transformers4"
    folder = cache_dir() / "random-detectors" / f"{kind}-{size}-{seed}{release}"
    if not (folder / "config.json").is_file():
        tokenizer = load_tokenizer(None) if size == "full" else small_tokenizer()
        write_checkpoint(folder, size=size, kind=kind, tokenizer=tokenizer, seed=seed)
    return folder


def detector_of(folder: Path, precision: str = "float32", **options: Any) -> CausalDetector:
    """A detector whose host has the detector's own tokenizer."""
    checkpoint: Checkpoint = load_checkpoint(folder, dtype=precision)
    return CausalDetector.for_host(checkpoint.tokenizer, detector_model=checkpoint, **options)


class Full:
    """One full forward pass of transformers' own model per score: sdpa, inference mode, last position only."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoConfig, AutoModel

        config = AutoConfig.from_pretrained(folder)
        self.model = AutoModel.from_config(config, attn_implementation="sdpa").eval()
        backbone, self.weight, self.bias, _ = split_weights(read_weights(folder), str(folder))
        self.model.load_state_dict(backbone)

    def __call__(self, ids: Sequence[int]) -> float:
        """P(unsupported) at the last of `ids`."""
        with torch.inference_mode():
            hidden = self.model(input_ids=torch.tensor([list(ids)]), use_cache=False).last_hidden_state[0, -1]
            return float(torch.softmax(self.weight @ hidden + self.bias, -1)[1])


class Texts:
    """Random contexts and answers of a given number of detector tokens: each id is one piece on its own."""

    def __init__(self, detector: CausalDetector, seed: int = 0) -> None:
        self.detector = detector
        self.chance = random.Random(seed)
        vocabulary: Vocabulary = detector.alignment._vocabulary  # type: ignore[attr-defined]
        self.tokens = [
            token
            for token in range(vocabulary.size)
            if vocabulary[token][:1] == b" " and len(detector.alignment.ids([token])) == 1
        ]
        self.table = vocabulary.table

    def grounding(self, size: int) -> Grounding:
        """A context of about `size` detector tokens."""
        words = self.chance.choices(self.tokens, k=size)
        return Grounding((b"".join(self.table[word] for word in words).decode("utf-8", "replace").strip(),))

    def history(self, size: int) -> tuple[int, ...]:
        """Host ids of an answer of `size` detector tokens."""
        return tuple(self.chance.choices(self.tokens, k=size))

    def candidates(self, count: int) -> tuple[int, ...]:
        """Distinct candidates."""
        return tuple(self.chance.sample(self.tokens, count))

    def at_length(self, total: int, answer: int) -> ScoreRequest:
        """A request whose prefix and history have `total` detector tokens, `answer` of them (or a few more)
        the history's.
        """
        grounding = self.grounding(total - answer)
        while len(self.detector.prefixes(grounding)[0]) > total - 1:
            # Words that stand beside each other may be cut in other places than alone.
            text = grounding.passages[0]
            size = len(text) * (total - answer) // len(self.detector.prefixes(grounding)[0])
            grounding = Grounding((text[: min(size, len(text) - 4)],))
        return ScoreRequest(grounding, self.history(total - len(self.detector.prefixes(grounding)[0])), ())


def timed(action: Callable[[], Any]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def median_ms(seconds: Sequence[float]) -> float:
    return 1e3 * statistics.median(seconds)


def so_far(document: dict[str, Any], out: Path | None) -> None:
    """Write what there is, without printing it: the rest takes minutes."""
    if out is not None:
        with contextlib.redirect_stdout(io.StringIO()):
            finish(document, out)
