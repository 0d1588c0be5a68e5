"""Token masks as tensors: made once per mask, applied in place to a row that is already a copy.

Contract: only tokens that a mask blocks change (C3); ids beyond the tokenizer (padded logits) and other
tokens without text are never blocked, apart from end tokens where the text may not end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from .detectors import Ids, TokenMask

# Masks belong to automaton states. A very long context can have many of them; dropping all is always right.
_MAX_MASKS = 8192
# One row of scores, to be edited in place: an array where NumPy can work (see `on_host`), else a tensor.
Row: TypeAlias = "torch.Tensor | NDArray[np.float32]"
_NO_IDS: Ids = np.empty(0, dtype=np.int64)


class TextTable:
    """Which ids of a vocabulary have text."""

    _tables: ClassVar[WeakKeyDictionary[Any, TextTable]] = WeakKeyDictionary()

    def __init__(self, vocabulary: Any) -> None:
        size = len(vocabulary)
        self.has_text: NDArray[np.bool_] = np.fromiter(
            (len(vocabulary[i]) > 0 for i in range(size)), bool, size
        )
        self.with_text: Ids = np.flatnonzero(self.has_text).astype(np.int64)
        self.without_text: Ids = np.flatnonzero(~self.has_text).astype(np.int64)

    @classmethod
    def of(cls, vocabulary: Any) -> TextTable:
        """The table of `vocabulary`, worked out once."""
        table = cls._tables.get(vocabulary)
        if table is None:
            table = cls._tables[vocabulary] = cls(vocabulary)
        return table


class Prepared:
    """One TokenMask for logits of one width on one device.

    blocked: int64 index of what to penalise; None where `keep` is the shorter way to say it: the index of
    what stays; blocked_ids and keep_ids say the same on the host. ends: end tokens that may not come.
    """

    __slots__ = ("_starts", "blocked", "blocked_ids", "ends", "keep", "keep_ids", "mask")

    def __init__(
        self, mask: TokenMask, table: TextTable, ends: Ids, width: int, device: torch.device
    ) -> None:
        self.mask = mask
        self.ends = frozenset(ends.tolist())
        self._starts: torch.Tensor | None = None
        self.blocked: torch.Tensor | None = None
        self.keep: torch.Tensor | None = None
        self.blocked_ids = self.keep_ids = _NO_IDS
        if mask.allowed is not None:
            textless = np.concatenate([table.without_text, np.arange(len(table.has_text), width)])
            keep = np.concatenate([mask.allowed, np.setdiff1d(textless, ends)])
            self.keep = _index(keep, width, device)
            self.keep_ids = keep[keep < width]
        else:
            blocked = _NO_IDS if mask.blocked is None else mask.blocked
            blocked = np.concatenate([blocked, ends])
            self.blocked = _index(blocked, width, device)
            self.blocked_ids = blocked[blocked < width]

    def blocks(self, token_id: int, has_text: bool) -> bool:
        """Whether this mask penalises `token_id`."""
        if token_id in self.ends:
            return True
        return has_text and self.mask.is_blocked(token_id)

    def open_starts(self, width: int, device: torch.device) -> torch.Tensor:
        """The index of the tokens that would start a literal here and are not blocked by the mask."""
        if self._starts is None:
            mask = self.mask
            if mask.allowed is not None:
                starts = np.intersect1d(mask.starts, mask.allowed)
            else:
                starts = mask.starts if mask.blocked is None else np.setdiff1d(mask.starts, mask.blocked)
            self._starts = _index(starts, width, device)
        return self._starts

    def penalise_(self, row: Row, penalty: float) -> None:
        """Lower what the mask blocks in `row` (width,), in place; `penalty` is positive, inf to forbid."""
        if self.keep is None:
            assert self.blocked is not None
            if isinstance(row, np.ndarray) and math.isinf(penalty):
                row[self.blocked_ids] = -math.inf
            else:
                lower_(row, self.blocked, penalty)
            return
        if isinstance(row, np.ndarray):
            saved = row[self.keep_ids]
            if math.isinf(penalty):
                row.fill(-math.inf)
            else:
                row -= np.float32(penalty)
            row[self.keep_ids] = saved
            return
        kept = row.index_select(0, self.keep)
        if math.isinf(penalty):
            row.fill_(-math.inf)
        else:
            row.sub_(penalty)
        row.index_copy_(0, self.keep, kept)


def on_host(scores: torch.Tensor) -> bool:
    """Whether NumPy can work on `scores` where they are.

    Worth it: below a few hundred thousand elements a torch operation costs more to start than to run, and its
    worker threads wait for a free core, which on a busy machine is worth milliseconds.
    """
    return scores.device.type == "cpu" and scores.dtype == torch.float32


def lower_(row: Row, index: torch.Tensor, penalty: float) -> None:
    """Lower `row` (width,) at `index`, in place; a score of -inf or NaN stays what it is."""
    if index.numel() == 0:
        return
    if isinstance(row, np.ndarray):
        at = index.numpy()
        row[at] = -math.inf if math.isinf(penalty) else row[at] - np.float32(penalty)
        return
    if math.isinf(penalty):
        row.index_fill_(0, index, -math.inf)
    else:
        row.index_copy_(0, index, row.index_select(0, index) - penalty)


def top_chances(scores: torch.Tensor, tops: torch.Tensor) -> torch.Tensor:
    """Softmax probability of the top score of each row, (rows,); NaN where a score is NaN."""
    if on_host(scores):
        return torch.tensor(host_chances(scores.numpy(), tops.tolist()), dtype=torch.float64)
    return (scores - tops[:, None]).exp_().sum(dim=-1).reciprocal()


def host_chances(values: NDArray[np.float32], tops: list[float]) -> list[float]:
    """The same for an array (rows, width)."""
    chances = []
    for row, top in zip(values, tops, strict=True):
        if not math.isfinite(top):
            chances.append(math.nan)
            continue
        distances = row - np.float32(top)
        chances.append(1.0 / float(np.exp(distances, out=distances).sum()))
    return chances


class MaskCache:
    """The Prepared of every TokenMask that was needed so far."""

    def __init__(self, vocabulary: Any) -> None:
        self._vocabulary = vocabulary
        self._prepared: dict[tuple[int, frozenset[int]], Prepared] = {}
        self._text: torch.Tensor | None = None
        self._digits: torch.Tensor | None = None
        self._blanks: torch.Tensor | None = None
        self._width = -1
        self._device = torch.device("cpu")

    @property
    def table(self) -> TextTable:
        return TextTable.of(self._vocabulary)

    def fit(self, width: int, device: torch.device) -> None:
        """Set what the scores look like; other masks than those of this width and device are dropped."""
        if width != self._width or device != self._device:
            self._prepared.clear()
            self._text = self._digits = self._blanks = None
            self._width, self._device = width, device

    def get(self, mask: TokenMask, ends: frozenset[int]) -> Prepared:
        """`mask` with `ends`, the end tokens that it blocks, as tensors."""
        key = (id(mask), ends)
        prepared = self._prepared.get(key)
        if prepared is None:
            if len(self._prepared) >= _MAX_MASKS:
                self._prepared.clear()
            index = np.array(sorted(ends), dtype=np.int64)
            prepared = Prepared(mask, self.table, index, self._width, self._device)
            self._prepared[key] = prepared  # holds the mask, so that its id stays its own
        return prepared

    def open_starts(self, prepared: Prepared) -> torch.Tensor:
        """The index of the literal starts that `prepared` leaves open."""
        return prepared.open_starts(self._width, self._device)

    def text_index(self) -> torch.Tensor:
        """The index of the tokens that have text."""
        if self._text is None:
            self._text = _index(self.table.with_text, self._width, self._device)
        return self._text

    def digit_index(self) -> torch.Tensor:
        """The index of the tokens that begin with a digit, or with blanks and a digit."""
        if self._digits is None:
            self._digits = self._index_of(lambda text: text.lstrip(b" ")[:1].isdigit())
        return self._digits

    def blank_index(self) -> torch.Tensor:
        """The index of the tokens that are blanks and nothing else; there may be several for the same bytes."""
        if self._blanks is None:
            self._blanks = self._index_of(lambda text: not text.strip(b" "))
        return self._blanks

    def _index_of(self, wanted: Callable[[bytes], bool]) -> torch.Tensor:
        found = [token for token in self.table.with_text.tolist() if wanted(self._vocabulary[token])]
        return _index(np.asarray(found, dtype=np.int64), self._width, self._device)


def _index(ids: Ids, width: int, device: torch.device) -> torch.Tensor:
    within = ids[ids < width] if len(ids) and int(ids.max()) >= width else ids
    return torch.from_numpy(np.ascontiguousarray(within, dtype=np.int64)).to(device)
