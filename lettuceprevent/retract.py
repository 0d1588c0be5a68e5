"""`on_unsupported="retract"`: go back to where a literal began when the host did not mean any supported one.

A mask alone holds a host that has written "202" and means "2023" to "2021". Here the row goes back to the
place where the literal began, no literal may start there, and generation goes on. transformers does the
decoding all along: a stopping criterion pauses generate(), the keys and values are cut back, and generate()
is called again with them.

    keep        the ids a row keeps; the last token of a paused call is dropped where the row goes back
    cache       cropped where all rows keep as many ids, else moved row by row (left padding grows); kinds that
                cannot be cut (sliding windows, static ones) are dropped and recomputed from the ids
    bounds      RETRACTIONS_PER_ANSWER and RETRACTIONS_PER_PLACE; beyond them the literal is held to a
                supported form, as with "avoid", and counted (`retractions_refused`)

Cost: the tokens of each literal that is taken back, and the overhead of one call; nothing where nothing is
taken back.
"""

from __future__ import annotations

import inspect
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from .processor import PreventionLogitsProcessor
from .report import Retraction
from .rows import Node

RETRACTIONS_PER_ANSWER = 24
RETRACTIONS_PER_PLACE = 2
#: where a host tries again within this many tokens, literals stay blocked for some tokens, not one
NEAR = 8
_REACH = 4
_INSTEAD = 12  # tokens of the answer that a report shows in place of what was taken back
#: arguments that say one thing per position of the prompt and cannot be carried over a cut
_PER_POSITION = ("position_ids", "token_type_ids", "inputs_embeds")
_PER_STEP = ("scores", "logits")


@dataclass
class _Row:
    """One row of the batch: the new ids it keeps, and what is known of its places (numbers of ids kept)."""

    kept: list[int] = field(default_factory=list)
    steps: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    done: bool = False
    places: Counter[int] = field(default_factory=Counter)
    wanted: tuple[int, Node, int] | None = None  # go back to this place: node and the first choice there

    def allows(self, place: int) -> bool:
        within = self.places.total() < RETRACTIONS_PER_ANSWER
        return within and self.places[place] < RETRACTIONS_PER_PLACE

    def reach(self, place: int) -> int:
        """For how many tokens from this place no literal may start."""
        near = sum(count for earlier, count in self.places.items() if 0 <= place - earlier <= NEAR)
        return 1 if near <= 1 else min(_REACH * (near - 1), 2 * NEAR)


def can_retract(arguments: dict[str, Any], *, num_beams: int, drafts: bool, encoder_decoder: bool) -> bool:
    """Whether generate() with these arguments can be paused and taken up again."""
    if num_beams > 1 or drafts or encoder_decoder:
        return False
    if any(arguments.get(name) is not None for name in _PER_POSITION):
        return False
    return not (arguments.get("output_attentions") or arguments.get("output_hidden_states"))


class Retractor(StoppingCriteria):  # type: ignore[misc]
    """One generate() with retractions. limit: the most new ids a row may have. pad: fills finished rows."""

    def __init__(
        self,
        processor: PreventionLogitsProcessor,
        plain: Callable[..., Any],
        model: Any,
        arguments: dict[str, Any],
        *,
        limit: int,
        pad: int | None,
        user_stops: Sequence[Any] = (),
        as_dict: bool = False,
    ) -> None:
        self._processor = processor
        self._plain = plain
        self._model = model
        self._limit = limit
        self._pad = pad
        self._as_dict = as_dict
        self._user_stops = list(user_stops)
        self._rows: list[_Row] = []
        self._width = 0
        self._paused = False
        self._deadline = None
        if arguments.get("max_time") is not None:
            self._deadline = time.monotonic() + float(arguments["max_time"])
        streamer = arguments.get("streamer")
        self._held = _HeldStreamer(streamer, processor, self) if streamer is not None else None
        stops = StoppingCriteriaList([*self._user_stops, self])
        self._arguments = {**arguments, "stopping_criteria": stops, "return_dict_in_generate": True}
        if self._held is not None:
            self._arguments["streamer"] = self._held
        processor.retract = self.wants

    # --- during a call -----------------------------------------------------------------------------

    def wants(self, row: int, node: Node, first: int) -> bool:
        """Asked by the processor where a first choice is masked inside a literal: whether the row goes back."""
        while len(self._rows) <= row:
            self._rows.append(_Row())
        state = self._rows[row]
        if state.done:
            return False
        place = self._processor.place_of(node)
        if place is None or not state.allows(place):
            self._processor.report.counters["retractions_refused"] += 1
            return False
        state.wanted = (place, node, first)
        self._paused = True
        return True

    @property
    def pausing(self) -> bool:
        return self._paused

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Stops every row where one goes back, else the rows that were done before or reach their limit."""
        rows = input_ids.shape[0]
        if self._paused:
            flags = [True] * rows
        else:
            new = input_ids.shape[1] - self._width if self._width else 0
            known = self._rows
            flags = [
                r < len(known) and (known[r].done or (bool(new) and len(known[r].kept) + new >= self._limit))
                for r in range(rows)
            ]
        return torch.tensor(flags, device=input_ids.device, dtype=torch.bool)

    # --- the loop -----------------------------------------------------------------------------------

    def run(self) -> Any:
        """What generate() returns."""
        try:
            out = self._run()
        finally:
            self._processor.retract = None
        return out if self._as_dict else out.sequences

    def _run(self) -> Any:
        out = self._plain(self._model, **self._arguments)
        prompt = None
        while self._paused:
            if prompt is None:
                prompt = self._first_pause(out)
            self._collect(out)
            if all(row.done for row in self._rows):
                break
            out = self._plain(self._model, **self._next(prompt, out))
        if self._held is not None:
            self._held.close()
        if prompt is None:
            return out
        if not self._paused:
            self._collect(out)
        return self._assemble(prompt, out)

    def _first_pause(self, out: Any) -> torch.Tensor:
        width = self._processor.prompt_length
        self._width = width
        while len(self._rows) < out.sequences.shape[0]:
            self._rows.append(_Row())
        prompt: torch.Tensor = out.sequences[:, :width]
        return prompt

    def _collect(self, out: Any) -> None:
        """Take over what a call has written; rows that go back keep what stands before the literal."""
        sequences = out.sequences
        stopped = self._stopped_by_user(sequences) if self._paused else None
        for index, row in enumerate(self._rows):
            new = sequences[index, self._width :].tolist()
            if row.done:
                continue
            end = self._end_of(new)
            if row.wanted is not None:
                place = row.wanted[0]
                self._keep(row, index, new, len(new) - 1, out)
                self._go_back(index, row, place)
                continue
            self._keep(row, index, new, end, out)
            ended = end < len(new) or (bool(new) and end and new[end - 1] in self._processor.eos)
            row.done = bool(ended) or not self._paused or len(row.kept) >= self._limit
            if stopped is not None and stopped[index]:
                row.done = True

    def _keep(self, row: _Row, index: int, new: list[int], end: int, out: Any) -> None:
        row.kept += new[:end]
        for name in _PER_STEP:
            steps = getattr(out, name, None)
            if steps is not None:
                row.steps.setdefault(name, []).extend(step[index] for step in steps[:end])

    def _go_back(self, index: int, row: _Row, place: int) -> None:
        assert row.wanted is not None
        _, node, first = row.wanted
        row.wanted = None
        taken_back = row.kept[place:]
        del row.kept[place:]
        for steps in row.steps.values():
            del steps[place:]
        row.places[place] += 1
        processor = self._processor
        processor.closed = {(r, depth) for r, depth in processor.closed if r != index or depth < place}
        processor.closed |= {(index, place + ahead) for ahead in range(row.reach(place))}
        processor.report.counters["retractions"] += 1
        report, vocabulary = processor.report, processor.vocabulary
        found = processor.explain(node, first)
        report.retractions.append(
            Retraction(
                run=report.runs,
                row=index,
                history_length=place,
                meant=found.literal,
                nearest=found.nearest,
                span=found.span,
                taken_back=vocabulary.join(taken_back).decode("utf-8", "replace"),
            )
        )

    def _end_of(self, new: list[int]) -> int:
        """How many of a call's new ids belong to the row: through its end token, and no padding."""
        for at, token in enumerate(new):
            if token in self._processor.eos:
                return at + 1
            if token == self._pad:
                return at
        return len(new)

    def _stopped_by_user(self, sequences: torch.Tensor) -> list[bool]:
        flags = [False] * len(sequences)
        for stop in self._user_stops:
            found = stop(sequences, None)
            found = found.tolist() if isinstance(found, torch.Tensor) else [bool(found)] * len(flags)
            flags = [a or b for a, b in zip(flags, found, strict=True)]
        return flags

    def _next(self, prompt: torch.Tensor, out: Any) -> dict[str, Any]:
        """Arguments for the call that goes on from what the rows keep."""
        rows, width = self._rows, max(len(row.kept) for row in self._rows) + prompt.shape[1]
        fill = self._pad if self._pad is not None else 0
        ids = prompt.new_full((len(rows), width), fill)
        old_mask = self._prompt_mask(prompt)
        mask = old_mask.new_zeros((len(rows), width))
        nodes, lengths = [], []
        for index, row in enumerate(rows):
            length = prompt.shape[1] + len(row.kept)
            ids[index, width - length :] = torch.cat([prompt[index], prompt.new_tensor(row.kept)])
            mask[index, width - length :] = torch.cat([old_mask[index], old_mask.new_ones(len(row.kept))])
            nodes.append(self._processor.node_of(index, row.kept))
            lengths.append(length)
        cache = _cut(_cache_of(out), lengths, width)
        self._processor.resume(ids, nodes)
        self._width = width
        self._paused = False
        if self._held is not None:
            self._held.resume(nodes[0])
        arguments = {
            k: v for k, v in self._arguments.items() if k not in ("inputs", "past_key_values", "cache")
        }
        arguments.update(input_ids=ids, attention_mask=mask, num_return_sequences=1)
        arguments["max_new_tokens"] = max(self._limit - len(row.kept) for row in rows if not row.done)
        for name in ("max_length", "min_new_tokens"):
            arguments.pop(name, None)
        least = self._arguments.get("min_new_tokens")
        if least:
            open_rows = [len(row.kept) for row in rows if not row.done]
            arguments["min_new_tokens"] = max(0, int(least) - min(open_rows))
        if self._deadline is not None:
            arguments["max_time"] = max(0.0, self._deadline - time.monotonic())
        if cache is not None:
            arguments[_cache_name(self._model)] = cache
        return arguments

    def _prompt_mask(self, prompt: torch.Tensor) -> torch.Tensor:
        mask: torch.Tensor | None = self._arguments.get("attention_mask")
        if mask is None:
            mask = torch.ones_like(prompt)
            if self._pad is not None and self._pad not in self._processor.eos:
                mask[prompt == self._pad] = 0
            return mask
        return torch.repeat_interleave(mask, prompt.shape[0] // mask.shape[0], dim=0)

    def _assemble(self, prompt: torch.Tensor, out: Any) -> Any:
        """The last call's output with the ids that were kept, and the scores that belong to them."""
        fill = self._pad if self._pad is not None else 0
        longest = max(len(row.kept) for row in self._rows)
        new = prompt.new_full((len(self._rows), longest), fill)
        for index, row in enumerate(self._rows):
            new[index, : len(row.kept)] = prompt.new_tensor(row.kept)
        out.sequences = torch.cat([prompt, new], dim=1)
        report, vocabulary = self._processor.report, self._processor.vocabulary
        for item in report.retractions:
            if item.run == report.runs and not item.instead:
                following = self._rows[item.row].kept[item.history_length : item.history_length + _INSTEAD]
                item.instead = vocabulary.join(following).decode("utf-8", "replace")
        for name in _PER_STEP:
            if getattr(out, name, None) is not None:
                setattr(out, name, self._steps(name, longest))
        return out

    def _steps(self, name: str, longest: int) -> tuple[torch.Tensor, ...]:
        """Per kept step a tensor (rows, width); a finished row repeats its last."""
        merged = []
        for at in range(longest):
            rows = [row.steps[name] for row in self._rows]
            merged.append(torch.stack([steps[min(at, len(steps) - 1)] for steps in rows]))
        return tuple(merged)


def _cache_name(model: Any) -> str:
    """transformers 5 renamed the argument."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _cache_of(out: Any) -> Any:
    return out["cache"] if "cache" in out else out.get("past_key_values")


def _cut(cache: Any, lengths: Sequence[int], width: int) -> Any:
    """Keys and values for all ids kept but the last, left-padded to `width` - 1; None where they must be recomputed."""
    layers = getattr(cache, "layers", None)
    if not layers or any(type(layer).__name__ != "DynamicLayer" for layer in layers):
        return None
    have = cache.get_seq_length()
    if have < width - 1:
        return None
    if all(length == width for length in lengths):
        if have > width - 1:
            cache.crop(-(have - (width - 1)))
        return cache
    for layer in layers:
        for name in ("keys", "values"):
            old = getattr(layer, name)
            new = torch.zeros_like(old[:, :, : width - 1])
            for row, length in enumerate(lengths):
                new[row, :, width - length :] = old[row, :, : length - 1]
            setattr(layer, name, new)
    return cache


class _HeldStreamer:
    """Passes on what can no longer be taken back: tokens of an open literal wait until it ends."""

    def __init__(self, streamer: Any, processor: PreventionLogitsProcessor, retractor: Retractor) -> None:
        self._streamer = streamer
        self._processor = processor
        self._retractor = retractor
        self._prompt = True
        self._first = True
        self._held: list[torch.Tensor] = []
        self._node: Node | None = None

    def put(self, value: torch.Tensor) -> None:
        if self._prompt:
            self._prompt = False
            if self._first:
                self._first = False
                self._streamer.put(value)
            return
        if self._retractor.pausing:
            return  # this token is not kept
        self._node = self._processor.peek(self._node, int(value.reshape(-1)[0]))
        self._held.append(value)
        if not self._processor.is_open(self._node):
            self._flush()

    def resume(self, node: Node) -> None:
        """Another call follows, from this node; what is held was taken back."""
        self._held.clear()
        self._node = node
        self._prompt = True

    def _flush(self) -> None:
        for value in self._held:
            self._streamer.put(value)
        self._held.clear()

    def end(self) -> None:
        """The end of a call is not the end of the answer."""

    def close(self) -> None:
        self._flush()
        self._streamer.end()
