from __future__ import annotations

import numpy as np
import pytest
from causal import make_checkpoint
from conftest import real_tokenizer
from fakes import make_tokenizer

from lettuceprevent.automaton import NumberDetector
from lettuceprevent.detectors import build_detectors
from lettuceprevent.evaluation.spans import Overlap
from lettuceprevent.evaluation.streaming import (
    StreamedAnswer,
    auroc,
    average_precision,
    calibration_error,
    first_tokens,
    step_by_step,
    stream,
    streaming_scores,
    token_labels,
    token_spans,
)
from lettuceprevent.grounding import Grounding
from lettuceprevent.vocabulary import Vocabulary

GROUNDING = Grounding(("Revenue was 2400 million in 2021 and 3100 million in 2022.",), "What of it?")
ANSWER = "It was 2400 million in 2024, then 31 – “so” – and 17 percent of 3100 million in 2022."


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="module")
def vocabulary(tokenizer):
    return Vocabulary.for_tokenizer(tokenizer)


def test_numbers_in_one_pass_are_those_step_by_step(tokenizer, vocabulary):
    ids = tokenizer.encode(ANSWER)
    detector = NumberDetector.for_grounding(GROUNDING, vocabulary)
    found = stream(detector, GROUNDING, ids, vocabulary)
    assert np.array_equal(found.scores, step_by_step(detector, GROUNDING, ids, vocabulary))
    spans = token_spans(vocabulary, ids)
    flagged = [ANSWER[a:b] for (a, b), score in zip(spans, found.scores, strict=True) if score]
    assert len(flagged) == 3  # in 2024, in (or after) 31, in 17
    assert found.seconds > 0


def test_a_causal_detector_in_one_pass_is_that_step_by_step(tmp_path):
    host = real_tokenizer("smollm2")
    vocabulary = Vocabulary.for_tokenizer(host)
    folder = make_checkpoint(tmp_path)

    def detector():
        return build_detectors("lettuceprevent", host, vocabulary, [GROUNDING], detector_model=str(folder))[0]

    ids = host.encode(ANSWER)
    once, stepwise = detector(), detector()
    found = stream(once, GROUNDING, ids, vocabulary).scores
    wanted = step_by_step(stepwise, GROUNDING, ids, vocabulary)
    assert np.allclose(found, wanted, atol=1e-5)
    assert len(set(np.round(found, 4).tolist())) > 5
    assert once.notes()["forward_passes"] == 2  # the context, and the answer as a whole
    assert stepwise.notes()["forward_passes"] == 1 + len(ids)
    assert stream(once, GROUNDING, [], vocabulary).scores.shape == (0,)


def test_characters_of_tokens(tokenizer, vocabulary):
    ids = tokenizer.encode(ANSWER)
    spans = token_spans(vocabulary, ids)
    assert spans[0][0] == 0 and spans[-1][1] == len(ANSWER)
    pieces = [vocabulary[token] for token in ids]
    assert any(piece[0] & 0xC0 == 0x80 for piece in pieces)  # some hold parts of a character
    for (start, end), piece in zip(spans, pieces, strict=True):
        text = piece.decode("utf-8", errors="ignore")
        assert text in ANSWER[start:end]
    assert token_spans(vocabulary, [tokenizer.eos_token_id, *ids])[:2] == [(0, 0), spans[0]]


def test_labels_by_hand():
    tokens = [(0, 2), (2, 5), (5, 5), (5, 9)]
    assert token_labels(tokens, [(1, 3)]).tolist() == [True, True, False, False]
    assert token_labels(tokens, [(5, 6)]).tolist() == [False, False, False, True]
    assert token_labels(tokens, []).tolist() == [False] * 4
    assert first_tokens(tokens, [(3, 9), (5, 6), (20, 22)]) == [1, 3]


def array(*values):
    return np.array(values, np.float32)


def test_average_precision_by_hand():
    labels = np.array([True, False, True, False])
    # ranked: hit at 1 (precision 1), hit at 3 (precision 2/3), each adds half the recall
    assert average_precision(array(0.9, 0.8, 0.7, 0.1), labels) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    # all alike: one step to recall 1 at precision 1/2, whatever the order
    assert average_precision(array(0.3, 0.3, 0.3, 0.3), labels) == pytest.approx(0.5)
    assert average_precision(array(0.1, 0.2, 0.1, 0.2), labels) == pytest.approx(0.5)
    assert average_precision(array(0.1), np.array([False])) is None


def test_auroc_by_hand():
    labels = np.array([True, False, True, False])
    assert auroc(array(0.9, 0.8, 0.7, 0.1), labels) == pytest.approx(3 / 4)  # one pair of four is wrong
    assert auroc(array(0.3, 0.3, 0.3, 0.3), labels) == pytest.approx(1 / 2)
    assert auroc(array(0.5, 0.5, 0.2, 0.1), labels) == pytest.approx((1 / 2 + 1 + 0 + 1) / 4)
    assert auroc(array(0.1, 0.2), np.array([False, False])) is None
    assert auroc(array(), np.array([], bool)) is None


def test_a_weight_counts_a_token_so_often():
    rng = np.random.default_rng(0)
    scores = np.round(rng.random(40), 1).astype(np.float32)
    labels, weights = rng.random(40) < 0.3, rng.integers(0, 4, 40)
    repeated = np.repeat(scores, weights), np.repeat(labels, weights)
    for measure in (auroc, average_precision):
        assert measure(scores, labels, weights) == pytest.approx(measure(*repeated))


def test_calibration_by_hand():
    # 0.9 and 0.95 share a bin: mean 0.925 against 1/2; 0.15 alone against 0; 1.0 is in the last bin, too
    scores, labels = array(0.9, 0.95, 0.15), np.array([True, False, False])
    assert calibration_error(scores, labels) == pytest.approx((2 * 0.425 + 0.15) / 3, abs=1e-6)
    assert calibration_error(array(1.0), np.array([True])) == 0
    assert calibration_error(array(), np.array([], bool)) == 0


def test_scores_by_hand():
    answers = [
        StreamedAnswer(array(0.9, 0.2, 0.8, 0.5), np.array([True, True, False, False]), (0,), 0.4),
        StreamedAnswer(array(0.1, 0.7), np.array([True, True]), (0,), 0.2),
    ]
    found = streaming_scores(answers, 0.5)
    assert found.tokens == Overlap(2, 3, 4)  # 0.5 is not above 0.5
    assert found.tokens.precision == pytest.approx(2 / 3)
    assert found.tokens.recall == pytest.approx(1 / 2)
    assert found.first_recall == pytest.approx(1 / 2)
    assert (found.count, found.spans) == (6, 2)
    assert found.seconds_per_check == pytest.approx(0.1)
    empty = streaming_scores([])
    assert (empty.average_precision, empty.auroc, empty.first_recall) == (None, None, None)
    assert empty.seconds_per_check == 0
