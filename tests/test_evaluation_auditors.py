from __future__ import annotations

import copy

import pytest
from causal import make_checkpoint, write_encoder

from lettuceprevent.evaluation.auditors import (
    AuditedSpan,
    CausalAuditor,
    EncoderAuditor,
    HumanLabels,
    MissingContext,
    NumberAuditor,
    Sample,
    merged,
)
from lettuceprevent.grounding import Grounding

CONTEXT = "Revenue was 2400 million in 2021 and 3100 million in 2022."
SAMPLE = Sample(
    Grounding((CONTEXT,), "What of 2030?"), "It was 2.4 billion in 1999, 700 million more by 2030."
)
EMPTY = Sample(Grounding(("", "  ")), "It was 3.")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return EncoderAuditor.load(
        str(write_encoder(tmp_path_factory.mktemp("encoder"), longest=256)), threshold=0.5
    )


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    return CausalAuditor.load(str(make_checkpoint(tmp_path_factory.mktemp("causal"))), threshold=0.5)


def test_an_auditor_without_context_raises(encoder, causal):
    human = HumanLabels([(EMPTY, [])])
    for auditor in (NumberAuditor(), encoder, causal, human):
        with pytest.raises(MissingContext, match="expected a context to judge by"):
            auditor.audit(EMPTY)


def test_numbers():
    spans = NumberAuditor().audit(SAMPLE)
    assert [SAMPLE.answer[span.start : span.end] for span in spans] == ["1999"]
    spans = NumberAuditor(strict=True).audit(SAMPLE)
    assert [(SAMPLE.answer[span.start : span.end], span.label) for span in spans] == [
        ("1999", "unsupported"),
        ("700 million", "derivable"),
    ]


def test_human_labels():
    row = {
        "context": CONTEXT,
        "query": "q",
        "answer": "It was 3.",
        "labels": [{"start": 7, "end": 8, "label": "Evident Conflict"}],
    }
    human = HumanLabels.from_rows([row])
    sample = Sample(Grounding((CONTEXT,), "q"), "It was 3.")
    assert human.audit(sample) == [AuditedSpan(7, 8, 1.0, "Evident Conflict")]
    with pytest.raises(KeyError, match="an answer that people labelled"):
        human.audit(SAMPLE)


def test_encoder(encoder):
    encoder.threshold = -1.0
    everything = encoder.audit(SAMPLE)
    assert [SAMPLE.answer[span.start : span.end] for span in everything] == [SAMPLE.answer]
    encoder.threshold = 1.0
    assert encoder.audit(SAMPLE) == []
    # between the two: the spans are those of the tokens above the threshold
    encoder.threshold = everything[0].score - 1e-6
    best = encoder.audit(SAMPLE)
    assert 1 <= len(best) <= 2
    assert best[0].score == everything[0].score
    with pytest.raises(ValueError, match="within 256 tokens"):
        encoder.audit(Sample(Grounding((CONTEXT * 40,)), "x"))


def test_causal(causal):
    causal.threshold = -1.0
    assert [(span.start, span.end) for span in causal.audit(SAMPLE)] == [(0, len(SAMPLE.answer))]
    causal.threshold = 1.0
    assert causal.audit(SAMPLE) == []


def test_merging_by_hand():
    answer = "one two three four"
    tokens = [(0, 3, 0.9), (3, 7, 0.6), (7, 13, 0.1), (13, 18, 0.7)]
    assert merged(tokens, 0.5, answer) == [AuditedSpan(0, 7, 0.9), AuditedSpan(14, 18, 0.7)]
    assert merged(tokens, 0.9, answer) == []
    assert merged([(0, 3, 0.9), (4, 7, 0.6)], 0.5, answer) == [AuditedSpan(0, 7, 0.9)]
    assert merged([(3, 4, 0.9)], 0.5, answer) == []  # a blank alone
    assert merged([(0, 3, 0.9), (3, 4, 0.9), (4, 7, 0.6)], 0.5, answer) == [AuditedSpan(0, 7, 0.9)]


def test_a_causal_auditor_has_its_detectors_threshold(causal):
    detector = causal.detector
    assert CausalAuditor(detector, causal.tokenizer).threshold == 0.8  # it brings none
    named = copy.copy(detector)
    named.threshold = 0.37
    assert CausalAuditor(named, causal.tokenizer).threshold == 0.37
    assert CausalAuditor(named, causal.tokenizer, threshold=0.6).threshold == 0.6
