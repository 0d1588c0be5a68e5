from __future__ import annotations

import pytest

from lettuceprevent.evaluation.spans import Overlap, overlap, span_scores


def test_one_answer_by_hand():
    # labelled 10..20, predicted 15..30: five characters shared, fifteen predicted, ten labelled
    found = overlap([(15, 30)], [(10, 20)])
    assert found == Overlap(5, 15, 10)
    assert found.precision == pytest.approx(1 / 3)
    assert found.recall == pytest.approx(1 / 2)
    assert found.f1 == pytest.approx(2 * 5 / 25)
    assert found.iou == pytest.approx(5 / 20)


def test_a_character_counts_once():
    assert overlap([(0, 5), (3, 8), (8, 10)], [(4, 6), (4, 6)]) == Overlap(2, 10, 2)
    assert overlap([(3, 3)], []) == Overlap()


def test_nothing_on_either_side():
    empty = overlap([], [])
    assert (empty.precision, empty.recall, empty.f1, empty.iou) == (1, 1, 1, 1)
    missed = overlap([], [(0, 3)])
    assert (missed.precision, missed.recall, missed.f1, missed.iou) == (0, 0, 0, 0)
    invented = overlap([(0, 3)], [])
    assert (invented.precision, invented.recall, invented.f1, invented.iou) == (0, 0, 0, 0)


def test_a_corpus_by_hand():
    predicted = [[(0, 10)], [], [(5, 7)], []]
    labelled = [[(5, 10)], [], [], [(0, 4)]]
    found = span_scores(predicted, labelled)
    assert found.answers == 4
    assert found.characters == Overlap(5, 12, 9)
    assert found.characters.precision == pytest.approx(5 / 12)
    assert found.characters.recall == pytest.approx(5 / 9)
    assert found.characters.f1 == pytest.approx(10 / 21)
    assert found.iou == pytest.approx((0.5 + 1 + 0 + 0) / 4)
    # examples: one right, one invented, one missed, one rightly empty
    assert found.examples == Overlap(1, 2, 2)
    assert found.examples.f1 == pytest.approx(0.5)


def test_an_empty_corpus_and_mistakes():
    found = span_scores([], [])
    assert (found.iou, found.characters.f1, found.examples.f1) == (1, 1, 1)
    with pytest.raises(ValueError, match="spans for 2 answers, got 1"):
        span_scores([[]], [[], []])
    with pytest.raises(ValueError, match=r"got \(4, 2\)"):
        overlap([(4, 2)], [])
