from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from lettuceprevent.evaluation.statistics import holm, interval, paired, rank_biserial


def test_rank_biserial_by_hand():
    # |d| = 1, 2, 3, 4 have ranks 1 to 4; increases 1 and 4 (ranks 1 + 4), decreases 2 and 3 (ranks 2 + 3)
    assert rank_biserial([1, -2, -3, 4]) == 0
    # zeros are left out: ranks of 2, -1, -1 are 3, 1.5, 1.5; (3 - 3) / 6
    assert rank_biserial([0, 2, -1, -1, 0]) == 0
    # ranks 1.5, 1.5, 3; (3 - 3 * ... ): decreases 1.5 + 3, increases 1.5; (1.5 - 4.5) / 6
    assert rank_biserial([1, -1, -5]) == pytest.approx(-0.5)
    assert rank_biserial([-1, -2]) == -1
    assert rank_biserial([3, 1]) == 1
    assert rank_biserial([0, 0]) == 0


def test_paired_against_scipy():
    rng = np.random.default_rng(0)
    before = rng.poisson(3, 40)
    after = np.maximum(before - rng.poisson(1, 40), 0)
    found = paired(before, after)
    wanted = stats.wilcoxon(after, before)
    assert found.p_value == pytest.approx(wanted.pvalue)
    moved = (after - before)[after != before]
    ranks = stats.rankdata(abs(moved))
    assert found.effect == pytest.approx(
        (ranks[moved > 0].sum() - ranks[moved < 0].sum()) / (len(moved) * (len(moved) + 1) / 2)
    )
    assert (found.pairs, found.changed) == (40, len(moved))
    assert found.mean_difference == pytest.approx(after.mean() - before.mean())
    assert found.interval[0] < found.mean_difference < found.interval[1] < 0


def test_small_pairs_are_exact():
    # four decreases out of four: the two-sided exact p is 2 / 2**4
    found = paired([5, 6, 7, 8], [4, 4, 4, 4])
    assert found.p_value == pytest.approx(2 / 16)
    assert found.effect == -1


def test_equal_pairs():
    found = paired([1, 2, 3], [1, 2, 3])
    assert (found.p_value, found.effect, found.changed, found.mean_difference) == (1, 0, 0, 0)
    assert found.interval == (0, 0)
    assert paired([], []).p_value == 1
    with pytest.raises(ValueError, match=r"same length, got shapes \(1,\) and \(2,\)"):
        paired([1], [1, 2])


def test_interval_against_scipy():
    values = np.random.default_rng(1).normal(5, 2, 60)
    low, high = interval(values)
    wanted = stats.bootstrap((values,), np.mean, n_resamples=9999).confidence_interval
    assert low == pytest.approx(wanted.low, abs=0.1)
    assert high == pytest.approx(wanted.high, abs=0.1)
    assert interval(values) == (low, high)  # the same again
    assert interval([3.0]) == (3, 3)


def test_interval_of_rows_that_stay_together():
    rng = np.random.default_rng(2)
    counts = rng.integers(0, 5, (80, 2)) + np.array([0, 4])
    low, high = interval(counts, lambda rows: rows[:, 0].sum() / rows[:, 1].sum())
    assert low < counts[:, 0].sum() / counts[:, 1].sum() < high
    assert high - low < 0.15


def share(rows):
    part, whole = rows.sum(0)
    return part / whole if whole else np.nan


def test_resamples_of_nothing_are_left_out():
    # one row in six holds something: a resample without it has no share, which is not a share of 1
    rows = np.array([[0, 3], *[[0, 0]] * 5], float)
    assert np.isnan(interval(rows, share)).all()  # (5/6)^6, a third of the resamples, know nothing
    rows = np.array([[0, 3]] * 4 + [[0, 0]] * 4, float)
    assert interval(rows, share) == (0, 0)  # 1 in 256
    rows = np.array([[1, 3], [0, 3], [2, 3], [0, 3]] + [[0, 0]] * 4, float)
    low, high = interval(rows, share)
    assert 0 <= low < 0.25 < high <= 2 / 3


def test_what_is_not_defined_is_nan():
    assert np.isnan(interval([])).all()
    found = paired([], [])
    assert np.isnan([found.mean_difference, *found.interval]).all()


def test_holm_by_hand():
    # sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1; none below the one before
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.001, 0.5]) == pytest.approx([0.002, 0.5])
    assert holm([0.7, 0.9]) == [1, 1]
    assert holm([]) == []
    with pytest.raises(ValueError, match="from 0 to 1"):
        holm([1.2])
