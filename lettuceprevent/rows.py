"""Rows of ids, as generate() passes them, turned into nodes that carry detector states.

Contract: the states of a node are a function of its row's grounding, its prompt's last word, and its history,
and of nothing else. What is kept between calls (the last ids, the tips) only saves work: any of it may be
dropped, and calls may come in any order, as they do in beam search (rows reorder), in assisted decoding
(positions are visited again) and when one processor serves several generate() calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .detectors import Ids

# Enough for any literal; without a bound a prompt without blanks would be walked to its first token.
_PREFIX_TOKENS = 256
_BLANKS = b" \t\n\r\v\f"


class Node:
    """One history: its last token, the node before it, and one state per literal detector.

    group: which grounding it is held to. finished: the history contains an end token. fate: why the step at
    this node may let a blocked token through ("" where it may not). clear: a token known not to be blocked
    here. counted: whether the step to this node went into the report. closed: a beam that was closed off
    here or before; what other beams did decides that, not the ids alone. risk, judged: what a probe said of the
    token that comes next, and of the last token; None where the host has not been here.
    """

    __slots__ = (
        "clear",
        "closed",
        "counted",
        "depth",
        "fate",
        "finished",
        "group",
        "judged",
        "parent",
        "risk",
        "states",
        "token",
    )

    def __init__(self, parent: Node | None, token: int, states: tuple[Any, ...], group: int) -> None:
        self.parent = parent
        self.token = token
        self.states = states
        self.group = group
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.finished = False
        self.fate = ""
        self.clear = -1
        self.counted = True
        self.risk: float | None = None
        self.judged: float | None = None
        self.closed: bool = parent is not None and parent.closed

    def ancestor(self, depth: int) -> Node:
        """The node of the first `depth` ids of this history."""
        node = self
        while node.depth > depth:
            assert node.parent is not None
            node = node.parent
        return node

    def path(self) -> tuple[int, ...]:
        """The history as ids."""
        return tuple(node.token for node in self._up())[::-1]

    def _up(self) -> Iterator[Node]:
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


def prompt_tail(vocabulary: Any, prompt: Sequence[int]) -> bytes:
    """The text of `prompt` since its last blank, or since its last special token.

    A special token ends a word: what stands before it belongs to another turn, and a literal that begins
    there must not swallow (and so exempt) the one that begins after it.
    """
    tail = b""
    for token in reversed(prompt[-_PREFIX_TOKENS:]):
        piece: bytes = vocabulary[token]
        if not piece and token in vocabulary.special_ids:
            break
        tail = piece + tail
        cut = max(piece.rfind(blank) for blank in _BLANKS)
        if cut >= 0:
            return tail[cut + 1 :]
    return tail


class Rows:
    """Finds the node of every row of a call, from the nodes of the last call where there is a way.

    start(row, rows, prompt ids) makes the root of a row, step(node, token) its child. `prompt_length` is the
    width of the prompt, None to take it from the first call and anew whenever the ids do not go on from the
    last ones.
    """

    def __init__(
        self,
        start: Callable[[int, int, Sequence[int]], Node],
        step: Callable[[Node, int], Node],
        prompt_length: int | None,
    ) -> None:
        self._start = start
        self._step = step
        self.fixed = prompt_length
        self.prompt_length = prompt_length or 0
        self.fresh = False  # whether the last call began a generation
        self.forget()

    def forget(self) -> None:
        """Drop what is kept between calls."""
        self._tips: list[Node] = []
        self._roots: list[Node] = []
        self._lanes: list[int] = []
        self._by_prompt: dict[tuple[int, bytes], int] = {}
        self._last = b""
        self._width = 0
        self._pinned = False

    def pin(self, ids: Ids, nodes: Sequence[Node]) -> None:
        """Say at which nodes the rows of the next call stand, if it has exactly these ids (rows, width)."""
        self._tips = list(nodes)
        self._last = np.ascontiguousarray(ids, dtype=np.int64).tobytes()
        self._width = ids.shape[1]
        self._pinned = True

    def tip(self, row: int) -> Node:
        """The node of a row of the last call."""
        return self._tips[row]

    def locate(self, ids: Ids) -> list[Node]:
        """The node of each row of `ids` (rows, width)."""
        rows, width = ids.shape
        content = ids.tobytes()
        self.fresh = False
        if rows == len(self._tips) and content == self._last and self._pinned:
            self._pinned = False
            return self._tips
        self._pinned = False
        if rows == len(self._tips) and width == self._width + 1 and self._goes_on(ids, content):
            step = self._step
            self._tips = [
                step(tip, token) for tip, token in zip(self._tips, ids[:, -1].tolist(), strict=True)
            ]
        else:
            self._tips = self._relocate(ids)
        self._last = content
        self._width = width
        return self._tips

    def _goes_on(self, ids: Ids, content: bytes) -> bool:
        """Whether every row is the same row of the last call and one more id."""
        if len(ids) == 1:
            return content.startswith(self._last)  # several times faster than comparing arrays
        return bool((ids[:, :-1] == self._seen()).all())

    def _seen(self) -> Ids:
        """The ids of the last call."""
        return np.frombuffer(self._last, dtype=np.int64).reshape(len(self._tips), self._width)

    def _relocate(self, ids: Ids) -> list[Node]:
        width = ids.shape[1]
        if self.fixed is not None and width < self.fixed:
            raise ValueError(
                f"input_ids: expected at least prompt_length={self.fixed} ids a row, got {width}"
            )
        nodes = self._from_last(ids)
        if nodes is not None:
            return nodes
        self.prompt_length = width if self.fixed is None else self.fixed
        return self._anew(ids)

    def _from_last(self, ids: Ids) -> list[Node] | None:
        """The nodes by way of the last call's, or None where the ids do not go on from there."""
        rows, width = ids.shape
        base = self.prompt_length
        if rows != len(self._tips) or not base < width <= self._width + 1:
            return None
        seen = self._seen()
        if not bool((ids[:, :base] == seen[:, :base]).all()):
            return None
        if width == self._width + 1:
            return self._reordered(ids)
        nodes = []
        for row, tip in enumerate(self._tips):
            if not bool((ids[row, base : width - 1] == seen[row, base : width - 1]).all()):
                return None
            nodes.append(self._revisit(tip, width - base, int(ids[row, -1])))
        return nodes

    def _reordered(self, ids: Ids) -> list[Node] | None:
        """Beams: each row goes on from some row of the last call that has the same prompt and grounding."""
        base, last, seen = self.prompt_length, self._width, self._seen()
        by_history = {
            (lane, seen[row, base:last].tobytes()): tip
            for row, (lane, tip) in enumerate(zip(self._lanes, self._tips, strict=True))
        }
        nodes = []
        for row, lane in enumerate(self._lanes):
            parent = by_history.get((lane, ids[row, base:last].tobytes()))
            if parent is None:
                return None
            nodes.append(self._step(parent, int(ids[row, -1])))
        return nodes

    def _revisit(self, tip: Node, depth: int, token: int) -> Node:
        """A position that was visited before, with the same or another last token."""
        before = tip.ancestor(depth - 1)
        if tip.depth >= depth:
            node = tip.ancestor(depth)
            if node.token == token and node.counted:
                return node
        return self._step(before, token)

    def _anew(self, ids: Ids) -> list[Node]:
        rows, width = ids.shape
        base = self.prompt_length
        self.fresh = width == base
        lanes: dict[tuple[int, bytes], int] = {}
        roots: list[Node] = []
        self._lanes = []
        for row in range(rows):
            prompt = ids[row, :base]
            root = self._start(row, rows, prompt[-_PREFIX_TOKENS:].tolist())
            self._lanes.append(lanes.setdefault((root.group, prompt.tobytes()), row))
            roots.append(root)
        self._roots = roots
        self._by_prompt = lanes
        return [self.walk(root, ids[row, base:].tolist()) for row, root in enumerate(roots)]

    def walk(self, root: Node, history: Sequence[int]) -> Node:
        """The node of `history`, from its root."""
        node = root
        for token in history:
            node = self._step(node, token)
        return node

    def roots(self) -> list[Node]:
        """The roots of the rows of the current generation."""
        return list(self._roots)

    def roots_of(self, group: int, prompt: Ids) -> list[Node]:
        """Those of the rows with this prompt (ids) and grounding."""
        lane = self._by_prompt.get((group, prompt.tobytes()))
        return [root for root, each in zip(self._roots, self._lanes, strict=True) if each == lane]
