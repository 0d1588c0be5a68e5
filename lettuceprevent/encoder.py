"""LettuceDetect-type detectors: an encoder that reads context and answer anew for every candidate. For
comparison.

Contract: `EncoderDetector.score` gives P(label 1) at the last token of `[CLS] prompt [SEP] answer candidate
[SEP]`, as one forward pass of the token classifier over that input alone gives it; the candidates of all rows
go through the model in batches. The prompt is the one LettuceDetect was trained on. Nothing can be kept
between steps: in an encoder every token sees what follows it. That is what the causal detector is for.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from .alignment import DetectorTokenizer
from .checkpoint import CheckpointError, resolve_dtype
from .detectors import ScoreRequest
from .grounding import Grounding
from .vocabulary import Vocabulary

DEFAULT_ENCODER = "KRLabsOrg/lettucedect-base-modernbert-en-v1"
MAX_LENGTH = 4096  # what LettuceDetect was trained on; a model's own limit may be lower
ANSWER_ROOM = 512

_BATCH = 16  # sequences in one forward pass

_loaded: dict[tuple[str, str, torch.dtype], tuple[Any, Any]] = {}
_lock = threading.Lock()


def prompt_of(grounding: Grounding) -> str:
    """Context and query in the words of LettuceDetect's training data."""
    if not grounding.query:
        return f"Summarize the following text:\n{grounding.text}\noutput:"
    passages = "\n".join(f"passage {number}: {text}" for number, text in enumerate(grounding.passages, 1))
    return (
        f"Briefly answer the following question:\n{grounding.query}\nBear in mind that your response should be "
        f"strictly based on the following {len(grounding.passages)} passages:\n{passages}\nIn case the passages do "
        'not contain the necessary information to answer the question, please reply with: "Unable to answer based '
        'on given passages."\noutput:'
    )


class EncoderDetector:
    """A ModernBERT-type token classifier as a model detector.

    on_long_context: "raise", or "truncate" (the end of the prompt is cut off, counted in the notes).
    """

    name = "lettucedetect"
    kind = "model"

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        vocabulary: Vocabulary,
        *,
        version: str = "",
        on_long_context: Literal["raise", "truncate"] = "raise",
        max_length: int = MAX_LENGTH,
    ) -> None:
        if on_long_context not in ("raise", "truncate"):
            raise ValueError(f"on_long_context: expected 'raise' or 'truncate', got {on_long_context!r}")
        if model.config.num_labels != 2:
            raise CheckpointError(f"expected a token classifier with 2 labels, got {model.config.num_labels}")
        if tokenizer.cls_token_id is None or tokenizer.sep_token_id is None:
            raise CheckpointError("expected a tokenizer with cls and sep tokens")
        self.model = model
        self.vocabulary = vocabulary
        self.version = version
        self.on_long_context = on_long_context
        self.max_length = min(max_length, getattr(model.config, "max_position_embeddings", max_length))
        self._encode = DetectorTokenizer(tokenizer)
        self._cls, self._sep = int(tokenizer.cls_token_id), int(tokenizer.sep_token_id)
        self._pad = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self._sep)
        self._prompts: OrderedDict[Grounding, list[int]] = OrderedDict()
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    @classmethod
    def for_host(
        cls,
        tokenizer: Any,
        vocabulary: Vocabulary | None = None,
        groundings: Sequence[Grounding] = (),
        *,
        detector_model: str | Path = DEFAULT_ENCODER,
        detector_device: Any = None,
        detector_dtype: Any = None,
        precision: str | None = None,
        on_long_context: Literal["raise", "truncate"] = "raise",
    ) -> EncoderDetector:
        """The detector for a host's tokenizer; the same files are loaded once per process."""
        device = torch.device("cpu" if detector_device is None else detector_device)
        dtype = resolve_dtype(precision or detector_dtype, device)
        model, own = _load(str(detector_model), device, dtype)
        detector = cls(
            model,
            own,
            vocabulary or Vocabulary.for_tokenizer(tokenizer),
            version=str(getattr(model.config, "_commit_hash", None) or detector_model),
            on_long_context=on_long_context,
        )
        for grounding in groundings:
            detector._prompt(grounding)
        return detector

    def score(self, requests: Sequence[ScoreRequest]) -> list[NDArray[np.float32]]:
        """P(unsupported) of each request's candidates, float32 (K,). A candidate without text has probability
        0.
        """
        results = [np.zeros(len(request.candidates), np.float32) for request in requests]
        work: list[tuple[int, int, list[int]]] = []
        with self._lock:
            for row, request in enumerate(requests):
                prompt = self._prompt(request.grounding)
                written = self.vocabulary.join(request.history)
                for at, candidate in enumerate(request.candidates):
                    added = self.vocabulary[candidate]
                    if added:
                        answer = self._encode((written + added).decode("utf-8", errors="replace"))
                        work.append((row, at, self._input(prompt, answer)))
            work.sort(key=lambda item: len(item[2]))  # alike lengths together: less padding
            for start in range(0, len(work), _BATCH):
                batch = work[start : start + _BATCH]
                for (row, at, _), score in zip(batch, self._forward([ids for *_, ids in batch]), strict=True):
                    results[row][at] = score
        return results

    def notes(self) -> dict[str, int]:
        """Counters since the detector was made."""
        return dict(self._counts)

    def _prompt(self, grounding: Grounding) -> list[int]:
        known = self._prompts.get(grounding)
        if known is not None:
            return known
        ids = list(self._encode(prompt_of(grounding)))
        room = self.max_length - min(ANSWER_ROOM, self.max_length // 4) - 3
        if len(ids) > room:
            if self.on_long_context == "raise":
                raise ValueError(
                    f"expected a context of at most {room} detector tokens, prompt included, got {len(ids)}; "
                    "see on_long_context"
                )
            ids = ids[:room]
            self._count("contexts_truncated")
        self._prompts[grounding] = ids
        if len(self._prompts) > 256:
            self._prompts.popitem(last=False)
        return ids

    def _input(self, prompt: list[int], answer: tuple[int, ...]) -> list[int]:
        ids = [self._cls, *prompt, self._sep, *answer, self._sep]
        if len(ids) > self.max_length:
            raise ValueError(f"expected context and answer within {self.max_length} tokens, got {len(ids)}")
        return ids

    @torch.inference_mode()
    def _forward(self, batch: list[list[int]]) -> list[float]:
        longest = max(map(len, batch))
        ids = torch.full((len(batch), longest), self._pad)
        seen = torch.zeros((len(batch), longest), dtype=torch.long)
        for row, each in enumerate(batch):
            ids[row, : len(each)] = torch.tensor(each)
            seen[row, : len(each)] = 1
        device = self.model.device
        logits = self.model(input_ids=ids.to(device), attention_mask=seen.to(device)).logits.float()
        last = seen.sum(1).to(device) - 2  # before the closing separator
        chosen = logits[torch.arange(len(batch), device=device), last]
        self._count("forward_passes")
        self._count("tokens", int(seen.sum()))
        scores: list[float] = torch.softmax(chosen, -1)[:, 1].tolist()
        return scores

    def _count(self, name: str, by: int = 1) -> None:
        self._counts[name] = self._counts.get(name, 0) + by


def _load(source: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    key = (source, str(device), dtype)
    with _lock:
        if key not in _loaded:
            model = AutoModelForTokenClassification.from_pretrained(source, trust_remote_code=False)
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            _loaded[key] = (model.to(device, dtype).eval(), tokenizer)
        return _loaded[key]
