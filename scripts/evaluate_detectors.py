"""Detectors by replay: answers of real models against labels, token by token and span by span.

    python scripts/evaluate_detectors.py --out results/detectors.json

Three sets. number_mentions: numbers that a reader judged; how often is a number of each label flagged. ragtruth_test:
spans that people marked; all tokens, all characters, and numbers alone (a number is wrong where it overlaps a span).
host_answers: the same against another auditor's spans, which are no truth. Judges: the number detector as it works inside
generation (each prefix seen once, a number is flagged where one of its tokens, or the one that would end it, is blocked),
and the independent checker on the finished answer. Intervals are bootstrap intervals over answers.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from _common import finish, parser, provenance, rows, tokenizer

from lettuceprevent.automaton import NumberDetector
from lettuceprevent.evaluation.auditors import NumberAuditor, Sample
from lettuceprevent.evaluation.numbers import find_literals
from lettuceprevent.evaluation.spans import Overlap, overlap, span_scores
from lettuceprevent.evaluation.statistics import interval
from lettuceprevent.evaluation.streaming import (
    StreamedAnswer,
    first_tokens,
    stream,
    streaming_scores,
    token_labels,
    token_overlap,
    token_spans,
)
from lettuceprevent.grounding import Grounding
from lettuceprevent.vocabulary import Vocabulary

FILES = ("number_mentions", "ragtruth_test", "host_answers")
LABELS = ("unsupported", "derivable", "rounding_supported", "supported", "exempt")
JUDGES = ("detector", "checker", "checker, strict")
Span = tuple[int, int]


class Judges:
    """The number detector on each host's tokens, and the checker."""

    def __init__(self) -> None:
        self._hosts: dict[str, tuple[Any, Vocabulary]] = {}
        self._detectors: OrderedDict[Any, NumberDetector] = OrderedDict()
        self._auditors = {"checker": NumberAuditor(), "checker, strict": NumberAuditor(strict=True)}
        self.skipped: Counter[str] = Counter()

    def audits(self, row: dict[str, Any]) -> dict[str, list[Span]]:
        """Spans by the checker: unsupported ones, and with derivable and rounded ones."""
        sample = Sample(grounding(row), row["answer"])
        return {
            name: [(span.start, span.end) for span in auditor.audit(sample)]
            for name, auditor in self._auditors.items()
        }

    def streamed(
        self, row: dict[str, Any], labelled: Sequence[Span]
    ) -> tuple[StreamedAnswer, list[Span]] | None:
        """The detector's scores and the tokens' characters; None where the tokenizer changes the text."""
        name = host_tokenizer(row["host"])
        if name not in self._hosts:
            made = tokenizer(name)
            self._hosts[name] = made, Vocabulary.for_tokenizer(made)
        encoder, vocabulary = self._hosts[name]
        ids = encoder.encode(row["answer"], add_special_tokens=False)
        text = vocabulary.join(ids).decode("utf-8", errors="replace")
        lead = len(text) - len(row["answer"])  # SentencePiece begins with a blank
        if lead not in (0, 1) or text[lead:] != row["answer"]:
            self.skipped[name] += 1
            return None
        found = stream(self._detector(row, name, vocabulary), grounding(row), ids, vocabulary)
        tokens = [(max(0, a - lead), max(0, b - lead)) for a, b in token_spans(vocabulary, ids)]
        answer = StreamedAnswer(
            found.scores, token_labels(tokens, labelled), tuple(first_tokens(tokens, labelled)), found.seconds
        )
        return answer, tokens

    def _detector(self, row: dict[str, Any], name: str, vocabulary: Vocabulary) -> NumberDetector:
        key = (name, row["context"], row["query"])
        if key not in self._detectors:
            self._detectors[key] = NumberDetector.for_grounding(grounding(row), vocabulary)
            if len(self._detectors) > 8:
                self._detectors.popitem(last=False)
        return self._detectors[key]


def grounding(row: dict[str, Any]) -> Grounding:
    return Grounding((row["context"],), row["query"])


def host_tokenizer(host: str | None) -> str:
    """The asset with the host's tokenizer: Qwen3's for Qwen2.5, Llama-2's where there is no telling."""
    known = (("qwen", "qwen3"), ("mistral", "mistral"))
    return next((name for part, name in known if part in (host or "").lower()), "llama2")


def flagged(literal: Span, scores: Any, tokens: Sequence[Span], literals: Sequence[Span]) -> bool:
    """Whether a token of the literal was blocked, or the one that would end it, if that begins no other."""

    def concerns(token: Span) -> bool:
        inside = token[0] < literal[1] and token[1] > literal[0]
        return inside or (token[0] == literal[1] and not touching(token, literals))

    return any(score and concerns(token) for token, score in zip(tokens, scores, strict=True))


def touching(span: Span, others: Sequence[Span]) -> bool:
    return any(a < span[1] and b > span[0] for a, b in others)


def with_interval(counts: Sequence[Overlap], measure: Callable[[Overlap], float]) -> dict[str, float]:
    """A measure of the sum of the answers' counts, with its interval over answers."""
    data = np.array([(c.both, c.predicted, c.labelled) for c in counts], float).reshape(-1, 3)

    def of(some: Any) -> float:
        return float(measure(Overlap(*(int(value) for value in some.sum(0)))))

    low, high = interval(data, of)
    return {"value": of(data), "low": low, "high": high}


def scores_of(counts: Sequence[Overlap]) -> dict[str, Any]:
    """Precision, recall and F1 with intervals, and what was counted."""
    total = sum(counts, Overlap())
    return {
        "both": total.both,
        "predicted": total.predicted,
        "labelled": total.labelled,
        "precision": with_interval(counts, lambda c: c.precision),
        "recall": with_interval(counts, lambda c: c.recall),
        "f1": with_interval(counts, lambda c: c.f1),
    }


# --- number_mentions -----------------------------------------------------------------------------------


def mentions(judges: Judges, data: list[dict[str, Any]]) -> dict[str, Any]:
    """Per judge: how often mentions of each label are flagged; precision and recall on unsupported ones."""
    counts: dict[str, dict[str, list[Overlap]]] = {judge: defaultdict(list) for judge in JUDGES}
    for row in data:
        streamed = judges.streamed(row, [])
        if streamed is None:
            continue
        answer, tokens = streamed
        audits = judges.audits(row)
        literals = [(lit.start, lit.end) for lit in find_literals(row["answer"]) if lit.kind != "word"]
        by_label: dict[str, dict[str, list[bool]]] = {judge: defaultdict(list) for judge in JUDGES}
        for mention in row["mentions"]:
            if "eighteenth" in row["answer"][mention["start"] : mention["end"] + 14]:
                continue  # mangled by the detector of that arm
            span = mention["start"], mention["end"]
            whole = next((lit for lit in literals if touching(span, [lit])), span)
            by_label["detector"][mention["label"]].append(flagged(whole, answer.scores, tokens, literals))
            for judge, spans in audits.items():
                by_label[judge][mention["label"]].append(touching(whole, spans))
        for judge, labels in by_label.items():
            for label, said in labels.items():
                counts[judge][label].append(Overlap(sum(said), len(said), len(said)))
            wrong, right = labels["unsupported"], [x for key in LABELS[1:] for x in labels[key]]
            counts[judge]["all"].append(Overlap(sum(wrong), sum(wrong) + sum(right), len(wrong)))
    return {
        judge: {
            "flagged": {
                label: {
                    "flagged": sum(c.both for c in found[label]),
                    "of": sum(c.labelled for c in found[label]),
                    "share": with_interval(found[label], lambda c: c.recall),
                }
                for label in LABELS
                if found[label]
            },
            "unsupported": scores_of(found["all"]),
        }
        for judge, found in counts.items()
    }


# --- spans -----------------------------------------------------------------------------------------------


def against_spans(judges: Judges, data: list[tuple[dict[str, Any], list[Span]]]) -> dict[str, Any]:
    """Tokens, characters and numbers against labelled spans."""
    streams: list[StreamedAnswer] = []
    audited: dict[str, list[list[Span]]] = defaultdict(list)
    truth: list[list[Span]] = []
    numbers: dict[str, list[Overlap]] = defaultdict(list)
    for row, labelled in data:
        streamed = judges.streamed(row, labelled)
        if streamed is None:
            continue
        answer, tokens = streamed
        streams.append(answer)
        truth.append(labelled)
        audits = judges.audits(row)
        for name, spans in audits.items():
            audited[name].append(spans)
        literals = [(lit.start, lit.end) for lit in find_literals(row["answer"]) if lit.kind != "word"]
        wrong = [touching(lit, labelled) for lit in literals]
        verdicts = {"detector": [flagged(lit, answer.scores, tokens, literals) for lit in literals]}
        verdicts |= {name: [touching(lit, spans) for lit in literals] for name, spans in audits.items()}
        for name, said in verdicts.items():
            both = sum(a and b for a, b in zip(said, wrong, strict=True))
            numbers[name].append(Overlap(both, sum(said), sum(wrong)))
    found = streaming_scores(streams, 0.5)
    return {
        "answers": len(streams),
        "tokens": {
            "count": found.count,
            **scores_of([token_overlap(s.scores, s.labels, 0.5) for s in streams]),
            "average_precision": found.average_precision,
            "first_token_recall": found.first_recall,
            "spans": found.spans,
            "calibration_error": found.calibration_error,
            "ms_per_check": 1000 * found.seconds_per_check,
        },
        "numbers": {name: scores_of(listed) for name, listed in numbers.items()},
        "spans": {name: span_figures(spans, truth) for name, spans in audited.items()},
    }


def span_figures(predicted: list[list[Span]], truth: list[list[Span]]) -> dict[str, Any]:
    """Characters, IoU and whole answers."""
    total = span_scores(predicted, truth)
    pairs = list(zip(predicted, truth, strict=True))
    return {
        "characters": scores_of([overlap(a, b) for a, b in pairs]),
        "iou": total.iou,
        "examples": scores_of(
            [Overlap(int(bool(a) and bool(b)), int(bool(a)), int(bool(b))) for a, b in pairs]
        ),
    }


def shown(value: dict[str, float]) -> str:
    return f"{value['value']:.3f} ({value['low']:.3f} to {value['high']:.3f})"


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--limit", type=int, default=None, help="only so many answers of each file")
    options = arguments.parse_args()
    began = time.perf_counter()
    judges = Judges()
    results: dict[str, Any] = {
        "number_mentions": mentions(judges, rows(options.data, "number_mentions")[: options.limit])
    }
    for judge, found in results["number_mentions"].items():
        print(f"number_mentions, {judge}:")
        for label, figures in found["flagged"].items():
            print(
                f"  {label:20s} flagged {figures['flagged']:4d} of {figures['of']:4d}  {shown(figures['share'])}"
            )
        print(
            "  unsupported:",
            *(f"{key} {shown(found['unsupported'][key])}" for key in ("precision", "recall", "f1")),
        )
    human = rows(options.data, "ragtruth_test")[: options.limit]
    audited = [row for row in rows(options.data, "host_answers") if row["auditor_spans"] is not None][
        : options.limit
    ]
    # Answers to one prompt together: its context is read once.
    audited.sort(key=lambda row: (host_tokenizer(row["host"]), row["context"], row["query"]))
    for name, data, field in (("ragtruth_test", human, "labels"), ("host_answers", audited, "auditor_spans")):
        pairs = [(row, [(span["start"], span["end"]) for span in row[field]]) for row in data]
        found = results[name] = against_spans(judges, pairs)
        print(f"{name}, {found['answers']} answers, {found['tokens']['count']} tokens:")
        for title, group in (("numbers", found["numbers"]), ("tokens", {"detector": found["tokens"]})):
            for judge, figures in group.items():
                print(
                    f"  {title}, {judge}:",
                    *(f"{key} {shown(figures[key])}" for key in ("precision", "recall", "f1")),
                )
        for judge, figures in found["spans"].items():
            print(
                f"  characters, {judge}: f1 {shown(figures['characters']['f1'])}, iou {figures['iou']:.3f}; "
                f"answers: f1 {shown(figures['examples']['f1'])}"
            )
    finish(
        {
            **results,
            "skipped_answers": dict(judges.skipped),
            "seconds": time.perf_counter() - began,
            "provenance": provenance(options.data, FILES),
        },
        options.out,
    )


if __name__ == "__main__":
    main()
