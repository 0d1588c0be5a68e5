"""The causal detector in the loop: nothing that was scored is ever scored again.

Contract: `CausalDetector.score` gives, for each candidate, the probability that a full forward pass over
`[CLS] context [SEP] query [SEP] answer candidate` gives at its last token. What is cached is found by content
alone (the grounding's ids, then the detector's ids of the answer), so callers may come in any order, skip
steps, reorder rows or branch, and `drop_caches` may be called at any time: only the time changes, never a
score.

Each grounding has one buffer of keys and values, indexed by slot: first the prefix, then the answer's tree in
the order in which its nodes were made. `parent[slot]` and `position[slot]` describe the tree. The slots that
form one chain from the start are the trunk, where a slot is its own position. New nodes always take the slots
after the last one. At the next call those of them that were not chosen are dropped and the chosen ones move
down. See docs/tree.md.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .alignment import Alignment, make_alignment
from .checkpoint import DEFAULT_CHECKPOINT, Checkpoint, load_checkpoint
from .decoder import Decoder, Mask, Segment
from .detectors import ScoreRequest
from .grounding import Grounding
from .vocabulary import Vocabulary

LongContext = Literal["raise", "passages", "truncate"]

ANSWER_ROOM = 1024  # positions kept for the answer where a context is truncated or split
DEFAULT_CACHE_BYTES = 2 << 30

_FIRST_ROOM = 256  # slots for the answer in a new buffer
_SLACK = 256  # dead slots that are put up with before a buffer is compacted
_REMEMBERED = 32  # recently asked answers per grounding, from which walks start
_NO = np.float32("-inf")


class _Node:
    """One detector token of an answer, with its keys and values in `slot`. slot < 0: not computed yet."""

    __slots__ = ("children", "parent", "score", "slot", "token")

    def __init__(self, token: int, parent: _Node | None, slot: int = -1) -> None:
        self.token = token
        self.parent = parent
        self.slot = slot
        self.score = 0.0
        self.children: dict[int, _Node] = {}


class _Prefix:
    """The detector ids before an answer. `key` is the same for the same ids, and bytes know their hash."""

    __slots__ = ("ids", "key")

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.ids = ids
        self.key = np.asarray(ids, np.int64).tobytes()


class _Buffer:
    """One grounding's cached tree."""

    def __init__(self, decoder: Decoder, prefix: _Prefix) -> None:
        self.decoder = decoder
        self.prefix = prefix.ids
        self.key = prefix.key
        self.keys = decoder.new_cache(len(prefix.ids) + _FIRST_ROOM)
        self.parent = np.empty(self.capacity, np.int64)
        self.position = np.empty(self.capacity, np.int64)
        self.used = 0  # slots with keys and values
        self.settled = 0  # the slots before this one are prefix, or on an answer that was asked about
        self.trunk = 0  # the slots before this one form a chain: each sees all before it
        self.compact_at = len(prefix.ids) + _SLACK
        self.root = _Node(-1, None)
        self.nodes: list[_Node] = []  # of the slots from the prefix's end on
        self.recent: list[tuple[tuple[int, ...], _Node]] = []  # answers asked about, newest last

    @property
    def capacity(self) -> int:
        return int(self.keys.shape[2])

    @property
    def bytes(self) -> int:
        return self.keys.numel() * self.keys.element_size()

    # -- finding ----------------------------------------------------------------------------------

    def walk(self, ids: tuple[int, ...]) -> tuple[_Node, list[_Node]]:
        """The node at the end of the answer `ids`, and those of its ancestors-or-self that are new, in order."""
        node, done = self._nearest(ids)
        new: list[_Node] = []
        for token in ids[done:]:
            child = node.children.get(token)
            if child is None:
                child = _Node(token, node)
                node.children[token] = child
            if child.slot < 0:
                new.append(child)
            node = child
        if done < len(ids):
            self.recent.append((ids, node))
            if len(self.recent) > _REMEMBERED:
                del self.recent[0]
        return node, new

    def _nearest(self, ids: tuple[int, ...]) -> tuple[_Node, int]:
        best, node = 0, self.root
        for known, found in reversed(self.recent):  # the newest is most often the longest
            size = len(known)
            if best < size <= len(ids) and found.slot >= 0 and ids[:size] == known:
                best, node = size, found
        return node, best

    # -- room -------------------------------------------------------------------------------------

    def settle(self, asked: Sequence[_Node]) -> None:
        """Drop the unsettled nodes that are neither on an asked answer nor its candidates; move the others
        down.
        """
        if self.settled == self.used:
            return
        chosen: set[_Node] = set()
        for end in asked:
            at: _Node | None = end
            while at is not None and at not in chosen and not 0 <= at.slot < self.settled:
                chosen.add(at)
                at = at.parent
        path: list[_Node] = []
        siblings: list[_Node] = []
        holders = set(asked)
        dropped: set[_Node] = set()
        for node in self.nodes[self.settled - len(self.prefix) :]:  # parents come before children
            if node in chosen:
                path.append(node)
            elif node.parent in holders:
                siblings.append(node)
                holders.add(node)
            else:
                dropped.add(node)
        self._forget(dropped)
        self._renumber(path + siblings, self.settled)
        self._extend_trunk(self.settled, self.settled + len(path))
        self.settled += len(path)

    def compact(self, asked: Sequence[_Node]) -> None:
        """Drop what no recent answer needs, if that is much; the longest common chain becomes the trunk."""
        if self.used < self.compact_at:
            return
        first = len(self.prefix)
        live: set[_Node] = set()
        for end in (*(node for _, node in self.recent), *asked):
            at: _Node | None = end
            while at is not None and at not in live:
                live.add(at)
                at = at.parent
        order = [node for node in self.nodes if node in live]
        if len(order) < len(self.nodes):
            self._forget({node for node in self.nodes if node not in live})
            settled = sum(1 for node in order if node.slot < self.settled)
            self._renumber(order, first)
            self.settled = first + settled
            self.trunk = first
            self._extend_trunk(first, self.settled)
        self.compact_at = max(2 * self.used - first, self.used + _SLACK)

    def _forget(self, nodes: set[_Node]) -> None:
        for node in nodes:
            if node.parent is not None and node.parent.children.get(node.token) is node:
                del node.parent.children[node.token]
        if any(node in nodes for _, node in self.recent):
            self.recent = [(ids, node) for ids, node in self.recent if node not in nodes]

    def _renumber(self, nodes: list[_Node], start: int) -> None:
        """Give `nodes` (parents first) the slots from `start` on, and nothing the slots after them."""
        first, end = len(self.prefix), start + len(nodes)
        moved = [(node.slot, slot) for slot, node in enumerate(nodes, start) if node.slot != slot]
        if len(moved) == 1:
            (old, new) = moved[0]
            self.keys[:, :, new] = self.keys[:, :, old]
        elif moved:
            low = moved[0][1]
            source = torch.tensor([node.slot for node in nodes[low - start :]], device=self.keys.device)
            self.keys[:, :, low:end] = self.keys.index_select(2, source)
        for slot, node in enumerate(nodes, start):
            node.slot = slot
        for node in nodes:
            assert node.parent is not None
            above = self._slot(node.parent)
            self.parent[node.slot] = above
            self.position[node.slot] = self.position[above] + 1
        self.nodes[start - first :] = nodes
        self.used = end

    def _slot(self, node: _Node) -> int:
        return node.slot if node.parent is not None else len(self.prefix) - 1

    def _extend_trunk(self, start: int, end: int) -> None:
        for slot in range(start, end):
            if slot != self.trunk or self.parent[slot] != slot - 1:
                break
            self.trunk += 1

    def reserve(self, slots: int) -> None:
        """Make room for `slots` more; the buffer grows by at least half."""
        need = self.used + slots
        if need <= self.capacity:
            return
        grown = self.decoder.new_cache(max(need, self.capacity * 3 // 2))
        grown[:, :, : self.used] = self.keys[:, :, : self.used]
        self.keys = grown
        self.parent = np.concatenate([self.parent, np.empty(self.capacity - len(self.parent), np.int64)])
        self.position = np.concatenate(
            [self.position, np.empty(self.capacity - len(self.position), np.int64)]
        )

    def add(self, nodes: list[_Node]) -> None:
        """Give new nodes (parents first) the next slots. Their keys and values are still to be computed."""
        for node in nodes:
            assert node.parent is not None
            slot, above = self.used, self._slot(node.parent)
            node.slot = slot
            self.parent[slot] = above
            self.position[slot] = self.position[above] + 1
            self.used += 1
        self.nodes.extend(nodes)

    # -- masks ------------------------------------------------------------------------------------

    def masks(self, start: int, window: int | None) -> tuple[Mask, Mask]:
        """What the rows of the slots [start, used) see, in full layers and in windowed ones."""
        end, rows = self.used, self.used - start
        parent = self.parent
        if (
            self.trunk == start
            and rows > 1
            and bool((parent[start:end] == np.arange(start - 1, end - 1)).all())
        ):
            chain = Mask(0, start, None)
            return chain, chain
        base: list[tuple[int, list[int]]] = []  # per row: it sees all slots below the first, and those listed
        for slot in range(start, end):
            above = int(parent[slot])
            if above >= start:
                level, listed = base[above - start]
                base.append((level, [*listed, slot]))
                continue
            listed = [slot]
            while above >= self.trunk:
                listed.append(above)
                above = int(parent[above])
            base.append((above + 1, listed))
        tail = min(level for level, _ in base)
        low, positions = tail, self.position
        if window is not None:
            # In the trunk a slot is its position, so each row's window starts at slot position - window + 1
            # or later.
            low = max(0, min(tail, int(positions[start:end].min()) - window + 1))
        seen = np.full((rows, end - low), _NO, np.float32)
        for row, (level, listed) in enumerate(base):
            seen[row, : level - low] = 0
            seen[row, np.asarray(listed) - low] = 0
        device = self.keys.device
        full = Mask(0, tail, torch.from_numpy(seen[:, tail - low :].copy()).to(device))
        if window is None:
            return full, full
        far = positions[low:end][None] <= positions[start:end][:, None] - window
        seen[far] = _NO
        return full, Mask(low, low, torch.from_numpy(seen).to(device))


@dataclass
class _Plan:
    """One buffer's share of a forward pass."""

    buffer: _Buffer
    chains: list[_Node]  # new nodes of the answers themselves
    leaves: list[_Node]  # new nodes of candidates


class CausalDetector:
    """The causal detector as the processor sees it. Thread-safe; calls of several threads wait for each
    other.

    checkpoint: a loaded detector. alignment: how host ids become detector ids.
    on_long_context: what to do where prefix and room for the answer exceed the model's positions. "raise";
        "truncate": the end of the context is cut off, counted in the notes; "passages": each passage is
        scored on its own, and the lowest probability counts.
    cache_bytes: bound on all buffers together; the groundings not used for longest go first. Those of one
        call are kept whatever they take.
    """

    name = "lettuceprevent"
    kind = "model"

    def __init__(
        self,
        checkpoint: Checkpoint,
        alignment: Alignment,
        *,
        on_long_context: LongContext = "raise",
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        max_positions: int | None = None,
    ) -> None:
        if on_long_context not in ("raise", "passages", "truncate"):
            raise ValueError(
                f"on_long_context: expected 'raise', 'passages' or 'truncate', got {on_long_context!r}"
            )
        self.checkpoint = checkpoint
        self.alignment = alignment
        self.version = checkpoint.fingerprint[:12]
        self.threshold = checkpoint.threshold
        self.on_long_context = on_long_context
        self.cache_bytes = cache_bytes
        self.max_positions = min(
            max_positions or checkpoint.decoder.max_positions, checkpoint.decoder.max_positions
        )
        self._buffers: OrderedDict[bytes, _Buffer] = OrderedDict()
        self._prefixes: OrderedDict[Grounding, list[_Prefix]] = OrderedDict()
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    @classmethod
    def for_host(
        cls,
        tokenizer: Any,
        vocabulary: Vocabulary | None = None,
        groundings: Sequence[Grounding] = (),
        *,
        detector_model: Any = DEFAULT_CHECKPOINT,
        detector_device: Any = None,
        detector_dtype: Any = None,
        precision: str | None = None,
        alignment: str | None = None,
        reference_tokenizer: Any = None,
        on_long_context: LongContext = "raise",
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> CausalDetector:
        """The detector for a host's tokenizer. `detector_model`: a folder, hub id, or loaded Checkpoint.

        alignment: a mode of `make_alignment`; by default the one the checkpoint was trained with, `host_chunks`
        where nothing says which. precision ("float32", "bfloat16") is another name for detector_dtype and goes
        before it. Contexts in `groundings` that are too long raise here and not in the middle of a generation.
        """
        checkpoint = detector_model
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = load_checkpoint(
                detector_model, device=detector_device, dtype=precision or detector_dtype
            )
        chosen = make_alignment(
            alignment or checkpoint.alignment or "host_chunks",
            vocabulary or Vocabulary.for_tokenizer(tokenizer),
            tokenizer,
            checkpoint.tokenizer,
            reference_tokenizer=reference_tokenizer,
        )
        detector = cls(checkpoint, chosen, on_long_context=on_long_context, cache_bytes=cache_bytes)
        for grounding in groundings:
            detector.prefixes(grounding)
        return detector

    # -- the processor's side ---------------------------------------------------------------------

    def score(self, requests: Sequence[ScoreRequest]) -> list[NDArray[np.float32]]:
        """P(unsupported) of each request's candidates, float32 (K,). A candidate without text has probability
        0.

        An answer that outgrows the model's positions, or a context that is too long, raises ValueError.
        """
        with self._lock, torch.inference_mode():
            return self._score(requests)

    def notes(self) -> dict[str, int]:
        """Counters since the detector was made: forward passes, rows computed, prefixes read, truncated
        contexts.
        """
        return dict(self._counts)

    def drop_caches(self) -> None:
        """Forget everything cached. Scores do not change."""
        with self._lock:
            self._buffers.clear()
            self._prefixes.clear()

    @property
    def cached_bytes(self) -> int:
        """Memory of all buffers."""
        return sum(buffer.bytes for buffer in self._buffers.values())

    def prefixes(self, grounding: Grounding) -> list[tuple[int, ...]]:
        """The detector ids before the answer: one prefix, or one per passage where the context had to be
        split.
        """
        return [prefix.ids for prefix in self._prefixes_of(grounding)]

    # -- prefixes ---------------------------------------------------------------------------------

    def _prefixes_of(self, grounding: Grounding) -> list[_Prefix]:
        known = self._prefixes.get(grounding)
        if known is None:
            known = self._prefixes[grounding] = self._make_prefixes(grounding)
            if len(self._prefixes) > 1024:
                self._prefixes.popitem(last=False)
        return known

    def _make_prefixes(self, grounding: Grounding) -> list[_Prefix]:
        context = self.alignment.text_ids(grounding.text)
        query = self.alignment.text_ids(grounding.query)
        room = self.max_positions - min(ANSWER_ROOM, self.max_positions // 4) - len(query) - 3
        if len(context) <= room:
            return [self._prefix(context, query)]
        if self.on_long_context == "passages" and len(grounding.passages) > 1:
            passages = [self.alignment.text_ids(passage) for passage in grounding.passages]
            longest = max(len(passage) for passage in passages)
            if longest > room:
                raise ValueError(
                    f"expected passages of at most {max(room, 0)} detector tokens, got one of {longest}; "
                    "split it, or use on_long_context='truncate'"
                )
            self._count("contexts_split")
            return [self._prefix(passage, query) for passage in passages]
        if self.on_long_context == "truncate" and room > 0:
            self._count("contexts_truncated")
            return [self._prefix(context[:room], query)]
        raise ValueError(
            f"expected a context of at most {max(room, 0)} detector tokens ({self.max_positions} positions less "
            f"query and room for the answer), got {len(context)}; see on_long_context ('passages' needs several)"
        )

    def _prefix(self, context: list[int], query: list[int]) -> _Prefix:
        cls_id, sep_id = self.checkpoint.cls_id, self.checkpoint.sep_id
        return _Prefix((cls_id, *context, sep_id, *query, sep_id))

    def _buffer(self, prefix: _Prefix) -> _Buffer:
        buffer = self._buffers.get(prefix.key)
        if buffer is None:
            buffer = _Buffer(self.checkpoint.decoder, prefix)
            self._read_prefix(buffer)
            self._buffers[prefix.key] = buffer
        self._buffers.move_to_end(prefix.key)
        return buffer

    def _read_prefix(self, buffer: _Buffer) -> None:
        """Compute the prefix, but for what another buffer's prefix has in common with it."""
        ids = buffer.prefix
        shared, donor = 0, None
        for other in self._buffers.values():
            same = _common(ids, other.prefix)
            if same > shared:
                shared, donor = same, other
        shared = min(shared, len(ids) - 1)
        if donor is not None and shared > 0:
            buffer.keys[:, :, :shared] = donor.keys[:, :, :shared]
        end = len(ids)
        buffer.parent[:end] = np.arange(-1, end - 1)
        buffer.position[:end] = np.arange(end)
        chain = Mask(0, shared, None)
        segment = Segment(buffer.keys, 0, end - shared, shared, chain, chain)
        self._forward(ids[shared:], buffer.position[shared:end], [segment], self.checkpoint.prompt_decoder)
        buffer.used = buffer.settled = buffer.trunk = end
        self._count("prefixes_read")
        self._count("prefix_tokens", end - shared)

    # -- scoring ----------------------------------------------------------------------------------

    def _score(self, requests: Sequence[ScoreRequest]) -> list[NDArray[np.float32]]:
        answers: dict[_Buffer, list[tuple[_Node, list[_Node], list[tuple[int, ...]]]]] = {}
        places: list[list[tuple[_Buffer, int]]] = []
        for request in requests:
            stable, tails = self.alignment.paths(request.history, request.candidates)
            mine = []
            for prefix in self._prefixes_of(request.grounding):
                longest = len(prefix.ids) + len(stable) + max((len(tail) for tail in tails), default=0)
                if longest > self.max_positions:
                    raise ValueError(
                        f"expected context, query and answer within the detector's {self.max_positions} "
                        f"positions, got {longest}"
                    )
                buffer = self._buffer(prefix)
                node, new = buffer.walk(stable)
                list_of = answers.setdefault(buffer, [])
                mine.append((buffer, len(list_of)))
                list_of.append((node, new, tails))
            places.append(mine)

        plans = []
        leaves: dict[tuple[_Buffer, int], list[_Node | None]] = {}  # where each candidate's score will be
        for buffer, asked in answers.items():
            ends = [node for node, _, _ in asked]
            buffer.settle(ends)
            buffer.compact(ends)
            chains = [node for node in _unique(new for _, new, _ in asked) if node.slot < 0]
            fresh: dict[_Node, None] = {}
            for index, (node, _, tails) in enumerate(asked):
                leaves[buffer, index] = [self._grow(node, tail, fresh) for tail in tails]
            if chains or fresh:
                plans.append(_Plan(buffer, chains, list(fresh)))
        if plans:
            self._compute(plans)
        self._evict(set(answers))
        results = []
        for mine in places:
            each = [[0.0 if node is None else node.score for node in leaves[place]] for place in mine]
            results.append(np.array(each, np.float32).min(axis=0))
        return results

    def _grow(self, node: _Node, tail: tuple[int, ...], fresh: dict[_Node, None]) -> _Node | None:
        """The node at the end of `tail` below `node`; what is not computed yet goes into `fresh`, parents
        first.
        """
        if not tail:
            return None
        for token in tail:
            child = node.children.get(token)
            if child is None:
                child = _Node(token, node)
                node.children[token] = child
            if child.slot < 0:
                fresh[child] = None
            node = child
        return node

    def _compute(self, plans: list[_Plan]) -> None:
        segments: list[Segment] = []
        tokens: list[int] = []
        positions: list[NDArray[np.int64]] = []
        nodes: list[_Node] = []
        window = self.checkpoint.decoder.window
        try:
            for plan in plans:
                buffer, fresh = plan.buffer, list(dict.fromkeys(plan.chains + plan.leaves))
                start = buffer.used
                buffer.reserve(len(fresh))
                buffer.add(fresh)
                full, sliding = buffer.masks(start, window)
                segments.append(Segment(buffer.keys, len(tokens), len(fresh), start, full, sliding))
                tokens.extend(node.token for node in fresh)
                positions.append(buffer.position[start : buffer.used])
                nodes.extend(fresh)
                if start == buffer.settled:  # what the answers themselves needed is settled at once
                    buffer.settled += len(plan.chains)
                    buffer._extend_trunk(start, buffer.settled)
            hidden = self._forward(tokens, np.concatenate(positions), segments)
            scores = self.checkpoint.unsupported(hidden).tolist()
        except BaseException:
            # Slots without values must not be read later.
            for plan in plans:
                self._buffers.pop(plan.buffer.key, None)
            raise
        for node, score in zip(nodes, scores, strict=True):
            node.score = score

    def _forward(
        self,
        tokens: Sequence[int],
        positions: NDArray[np.int64],
        segments: list[Segment],
        decoder: Decoder | None = None,
    ) -> Tensor:
        decoder = decoder or self.checkpoint.decoder
        device = decoder.device
        self._count("forward_passes")
        self._count("rows", len(tokens))
        return decoder.forward(
            torch.tensor(tokens, device=device), torch.from_numpy(positions).to(device), segments
        )

    def _evict(self, busy: set[_Buffer]) -> None:
        total = self.cached_bytes
        for key, buffer in list(self._buffers.items()):
            if total <= self.cache_bytes:
                return
            if buffer not in busy:
                del self._buffers[key]
                total -= buffer.bytes
                self._count("groundings_evicted")

    def _count(self, name: str, by: int = 1) -> None:
        self._counts[name] = self._counts.get(name, 0) + by


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Length of the common prefix."""
    size = min(len(a), len(b))
    if a[:size] == b[:size]:
        return size
    return next(i for i in range(size) if a[i] != b[i])


def _unique(groups: Any) -> list[_Node]:
    return list(dict.fromkeys(node for group in groups for node in group))
