"""What masking.py says of scores: the host's top probability, from which skipping decides."""

from __future__ import annotations

import warnings

import pytest
import torch

from lettuceprevent.masking import top_chances


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_top_chances_are_the_softmax_of_each_rows_top(dtype: torch.dtype) -> None:
    scores = torch.randn(5, 1000, generator=torch.Generator().manual_seed(0)).mul(6).to(dtype)
    scores[1, 7] = 80  # nearly certain
    scores[2] = 0  # flat
    scores[3, 10:] = -torch.inf
    kept = scores.clone()
    found = top_chances(scores, scores.max(-1).values)
    expected = scores.double().softmax(-1).max(-1).values
    assert torch.allclose(found.double(), expected, rtol=0.02 if dtype == torch.bfloat16 else 1e-5)
    assert float(found[2]) == pytest.approx(1 / 1000, rel=0.02)
    assert torch.equal(scores, kept)


def test_top_chances_of_what_has_no_softmax_are_nan_and_say_nothing() -> None:
    scores = torch.zeros(3, 10)
    scores[0, 3] = torch.nan
    scores[1] = -torch.inf
    scores[2, 4] = torch.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = top_chances(scores, torch.tensor([0.0, -torch.inf, torch.inf]))
    assert found.isnan().all()
