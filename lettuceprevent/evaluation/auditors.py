"""Auditors: who says which parts of a finished answer its context does not support.

Contract: `audit(sample)` gives spans, characters of the answer, in order and apart. Every auditor raises
MissingContext for a sample without a context: an auditor that sees none flags everything, and the figures
look like a finding. An auditor that judges a trained detector should be of another family than it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..grounding import Grounding
from .names import unsupported_names
from .number_metrics import REFUSED, MissingContext
from .numbers import ContextNumbers, check_answer
from .runs import text_hash

__all__ = ["AuditedSpan", "Auditor", "CausalAuditor", "EncoderAuditor", "HumanLabels", "MissingContext"]
__all__ += ["NameAuditor", "NumberAuditor", "Sample", "require_context"]


@dataclass(frozen=True)
class Sample:
    """An answer and the evidence it is to be judged by."""

    grounding: Grounding
    answer: str


@dataclass(frozen=True)
class AuditedSpan:
    """answer[start:end] is not supported. score: the highest probability in it; 1 where there is none."""

    start: int
    end: int
    score: float = 1.0
    label: str = "unsupported"


class Auditor(Protocol):
    """What scoring asks of an auditor."""

    name: str
    version: str

    def audit(self, sample: Sample) -> list[AuditedSpan]:
        """The unsupported spans; raises MissingContext where the sample has no context."""


def require_context(sample: Sample) -> None:
    """Raise MissingContext where there is nothing to judge by."""
    if not any(passage.strip() for passage in sample.grounding.passages):
        raise MissingContext(
            f"auditor: expected a context to judge by, got an empty one for the answer {sample.answer[:40]!r}"
        )


def judges_itself(auditor: Auditor, arm: str, prevention: Mapping[str, Any] | None) -> str | None:
    """A warning where an auditor is of the kind that had its say while an arm's answers were written: it then finds
    little by construction, whatever is wrong with them. auditor.name: as a detector type is called."""
    kinds = str((prevention or {}).get("detector_type") or "").split("+")
    own = {"numbers": "number"}.get(auditor.name, auditor.name)
    if (
        own not in kinds or own == "number"
    ):  # the checker of numbers shares nothing but the lexicon with the detector
        return None
    return (
        f"the auditor {auditor.name!r} is of the kind that {arm!r} was generated with: it does not judge that arm "
        "independently; use one of another family, or people"
    )


class _Auditor(ABC):
    """The check that no auditor can leave out."""

    name: str
    version: str

    def audit(self, sample: Sample) -> list[AuditedSpan]:
        """The unsupported spans; raises MissingContext where the sample has no context."""
        require_context(sample)
        return self._spans(sample)

    @abstractmethod
    def _spans(self, sample: Sample) -> list[AuditedSpan]: ...


class NumberAuditor(_Auditor):
    """The independent checker of numbers. strict: derivable and rounded numbers are unsupported, too."""

    name = "numbers"
    version = "1"

    def __init__(self, *, strict: bool = False) -> None:
        self._statuses = REFUSED if strict else frozenset({"unsupported"})
        self._known: OrderedDict[Grounding, ContextNumbers] = OrderedDict()

    def _spans(self, sample: Sample) -> list[AuditedSpan]:
        grounding = sample.grounding
        numbers = self._known.get(grounding)
        if numbers is None:
            numbers = self._known[grounding] = ContextNumbers(f"{grounding.text}\n\n{grounding.query}")
            if len(self._known) > 64:
                self._known.popitem(last=False)
        checked = check_answer(sample.answer, numbers, passages=len(grounding.passages))
        return [
            AuditedSpan(each.start, each.end, label=each.status)
            for each in checked
            if each.status in self._statuses
        ]


class NameAuditor(_Auditor):
    """Names and identifiers that stand neither in context nor question (`names.py`)."""

    name = "names"
    version = "1"

    def _spans(self, sample: Sample) -> list[AuditedSpan]:
        evidence = (*sample.grounding.passages, sample.grounding.query)
        return [AuditedSpan(*span, label="name") for span in unsupported_names(sample.answer, evidence)]


class HumanLabels(_Auditor):
    """Spans that people marked. An answer that nobody read raises KeyError: it is not an answer without
    spans."""

    name = "human"

    def __init__(self, labels: Iterable[tuple[Sample, Sequence[AuditedSpan]]], version: str = "") -> None:
        self.version = version
        self._labels: dict[str, list[AuditedSpan]] = {
            _key(sample): sorted(spans, key=lambda span: span.start) for sample, spans in labels
        }

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]], version: str = "") -> HumanLabels:
        """From rows with context, query, answer and `labels`: objects with start, end and maybe label."""

        def one(row: Mapping[str, Any]) -> tuple[Sample, list[AuditedSpan]]:
            spans = [
                AuditedSpan(each["start"], each["end"], label=str(each.get("label", "unsupported")))
                for each in row["labels"]
            ]
            return Sample(Grounding((row["context"],), row.get("query") or ""), row["answer"]), spans

        return cls((one(row) for row in rows), version)

    def _spans(self, sample: Sample) -> list[AuditedSpan]:
        try:
            return self._labels[_key(sample)]
        except KeyError:
            raise KeyError(f"expected an answer that people labelled, got {sample.answer[:40]!r}") from None


def _key(sample: Sample) -> str:
    return text_hash(f"{sample.grounding.key}\0{sample.answer}")


class EncoderAuditor(_Auditor):
    """A token classifier of the LettuceDetect kind, which reads the whole answer at once.

    model, tokenizer: of transformers, two labels, 1 = unsupported. An input longer than the model can read
    raises ValueError. threshold: tokens above it are unsupported.
    """

    name = "lettucedetect"

    def __init__(self, model: Any, tokenizer: Any, *, threshold: float = 0.5, version: str = "") -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        self.threshold = threshold
        self.version = version
        self.max_length = int(getattr(model.config, "max_position_embeddings", 4096))

    @classmethod
    def load(cls, name: str, *, threshold: float = 0.5, device: Any = "cpu") -> EncoderAuditor:
        """From a folder or hub id."""
        from transformers import AutoModelForTokenClassification, AutoTokenizer

        model = AutoModelForTokenClassification.from_pretrained(name, trust_remote_code=False).to(device)
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        version = str(getattr(model.config, "_commit_hash", None) or name)
        return cls(model, tokenizer, threshold=threshold, version=version)

    def _spans(self, sample: Sample) -> list[AuditedSpan]:
        import torch

        from ..encoder import prompt_of

        encoded = self.tokenizer(
            prompt_of(sample.grounding), sample.answer, return_offsets_mapping=True, return_tensors="pt"
        )
        offsets = encoded.pop("offset_mapping")[0].tolist()
        size = len(offsets)
        if size > self.max_length:
            raise ValueError(f"expected context and answer within {self.max_length} tokens, got {size}")
        mine = [place for place, side in enumerate(encoded.sequence_ids(0)) if side == 1]
        inputs = {name: encoded[name].to(self.model.device) for name in ("input_ids", "attention_mask")}
        with torch.inference_mode():
            scores = torch.softmax(self.model(**inputs).logits[0].float(), -1)[:, 1].tolist()
        return merged([(*offsets[place], scores[place]) for place in mine], self.threshold, sample.answer)


class CausalAuditor(_Auditor):
    """A causal detector over the tokens of `tokenizer`, which need not be the host's. One pass an answer.

    threshold: tokens above it are unsupported; None: the detector's own, as in prevention (`own_threshold`).
    """

    name = "lettuceprevent"

    def __init__(self, detector: Any, tokenizer: Any, *, threshold: float | None = None) -> None:
        from ..candidates import own_threshold
        from ..vocabulary import Vocabulary

        self.detector, self.tokenizer = detector, tokenizer
        self.vocabulary = Vocabulary.for_tokenizer(tokenizer)
        self.threshold = own_threshold([detector]) if threshold is None else threshold
        self.version = str(detector.version)

    @classmethod
    def load(cls, name: str, *, threshold: float | None = None, device: Any = None) -> CausalAuditor:
        """From a checkpoint's folder or hub id; the answer is cut into the detector's own tokens."""
        from ..checkpoint import load_checkpoint
        from ..tree import CausalDetector

        checkpoint = load_checkpoint(name, device=device)
        detector = CausalDetector.for_host(checkpoint.tokenizer, detector_model=checkpoint)
        return cls(detector, checkpoint.tokenizer, threshold=threshold)

    def _spans(self, sample: Sample) -> list[AuditedSpan]:
        from .streaming import stream, token_spans

        ids = self.tokenizer.encode(sample.answer, add_special_tokens=False)
        scores = stream(self.detector, sample.grounding, ids, self.vocabulary).scores.tolist()
        spans = token_spans(self.vocabulary, ids)
        return merged(
            [(start, end, score) for (start, end), score in zip(spans, scores, strict=True)],
            self.threshold,
            sample.answer,
        )


def merged(tokens: Sequence[tuple[int, int, float]], threshold: float, answer: str = "") -> list[AuditedSpan]:
    """Tokens (start, end, score) above the threshold as spans: those that touch, or have only blanks between
    them, are one. Blanks at a span's beginning are not part of it."""
    spans: list[AuditedSpan] = []
    last = -1  # end of the last flagged token, if the one before this is flagged
    for start, end, score in tokens:
        if score <= threshold:
            last = -1
            continue
        while start < end and answer[start : start + 1].isspace():
            start += 1
        if start == end:
            last = end if last >= 0 else -1
            continue
        if last >= 0 and not answer[last:start].strip():
            spans[-1] = AuditedSpan(spans[-1].start, end, max(spans[-1].score, score))
        else:
            spans.append(AuditedSpan(start, end, score))
        last = end
    return spans
