"""Which precisions a CPU has fast products for: without instructions of their own, torch emulates half precision,
and a model in it runs tens to hundreds of times slower than in float32.

Contract: found by measuring, once per process and precision (a tenth of a second at most on any CPU seen).
"""

from __future__ import annotations

import functools
import time
from typing import Any

import torch

_SIDE = 256
_SLOWER = (
    4.0  # than float32: in half precision products are as fast, or up to eight times faster, or emulated
)


@functools.cache
def slow_on_cpu(dtype: torch.dtype) -> bool:
    """Whether products in `dtype` are much slower on this CPU than in float32."""
    if dtype == torch.float32:
        return False
    return _seconds(dtype) > _SLOWER * _seconds(torch.float32)


def fast_dtype(dtype: torch.dtype, device: Any) -> torch.dtype:
    """`dtype`, or float32 where `device` is a CPU on which it is slow. For where nobody asked for a precision."""
    slow = torch.device(device).type == "cpu" and dtype.is_floating_point and slow_on_cpu(dtype)
    return torch.float32 if slow else dtype


def _seconds(dtype: torch.dtype) -> float:
    """Of one product, the best of some."""
    one = torch.ones(_SIDE, _SIDE, dtype=dtype)
    taken = []
    for _ in range(4):
        began = time.perf_counter()
        one @ one
        taken.append(time.perf_counter() - began)
    return min(taken)
