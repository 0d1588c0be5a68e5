"""`on_unsupported="retract"`: go back to where a literal began when the host did not mean any supported one.

A mask alone holds a host that has written "202" and means "2023" to "2021". Here the row goes back to the
place where the literal began, or before a token of blanks that led to it; neither may come there, and
generation goes on. A number that may not even begin after such a blank takes the blank back as well: after it
a host has little else to say. transformers does the decoding all along: a stopping criterion pauses
generate(), the keys and values are cut back, and generate() is called again with them.

    keep        the ids a row keeps; the last token of a paused call is dropped where the row goes back
    cache       cropped where every row stays in its columns, else moved row by row (left padding grows); kinds
                that cannot be cut (sliding windows, static ones) are dropped and recomputed from the ids
    limits      each row's own: lengths, end tokens and stopping criteria are looked at here, row by row
    bounds      RETRACTIONS_PER_ANSWER and RETRACTIONS_PER_PLACE; beyond them the literal is held to a
                supported form, as with "avoid", and counted (`retractions_refused`)

Cost: the tokens of each literal that is taken back, and the overhead of one call; nothing where nothing is
taken back.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from .host_cache import cache_name, cache_of
from .processor import PreventionLogitsProcessor
from .report import Retraction
from .rows import Node

RETRACTIONS_PER_ANSWER = 24
RETRACTIONS_PER_PLACE = 2
#: where a host tries again within this many tokens, literals stay blocked for some tokens, not one
NEAR = 8
_REACH = 4
_INSTEAD = 12  # tokens of the answer that a report shows in place of what was taken back
#: arguments that hold for one call or one position, and would mean another thing in a call that goes on
_ONCE = (
    "position_ids",
    "cache_position",
    "inputs_embeds",
    "begin_suppress_tokens",
    "exponential_decay_length_penalty",
    "guidance_scale",
    "output_attentions",
    "output_hidden_states",
)
_IDS = ("input_ids", "inputs", "attention_mask")
_PER_STEP = ("scores", "logits")


@dataclass
class _Row:
    """One row of the batch: the new ids it keeps, and what is known of its places (numbers of ids kept).

    begins: the column of the current call in which it begins. end: how many new ids of the current call it had
    when a stopping criterion of the caller's stopped it.
    """

    kept: list[int] = field(default_factory=list)
    begins: int = 0
    end: int | None = None
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


def can_retract(
    arguments: dict[str, Any],
    setting: Callable[[str], Any],
    *,
    num_beams: int,
    drafts: bool,
    encoder_decoder: bool,
) -> bool:
    """Whether generate() with these arguments can be paused and taken up again. `setting`: what holds under a name."""
    if num_beams > 1 or drafts or encoder_decoder:
        return False
    if any(setting(name) for name in _ONCE if not _is_tensor(arguments.get(name))):
        return False
    if any(_is_tensor(value) for name, value in arguments.items() if name not in _IDS):
        return False  # pictures, positions, embeddings: one entry per position of the prompt
    ids = next((arguments[name] for name in _IDS[:2] if _is_tensor(arguments.get(name))), None)
    rows = (1 if ids is None else ids.shape[0]) * (setting("num_return_sequences") or 1)
    return rows == 1 or arguments.get("streamer") is None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 1


class Retractor(StoppingCriteria):  # type: ignore[misc]
    """One generate() with retractions. setting: what generate() goes by under a name, wherever it was said.
    limit: the most new ids a row may have. pad: fills finished rows."""

    def __init__(
        self,
        processor: PreventionLogitsProcessor,
        plain: Callable[..., Any],
        model: Any,
        arguments: dict[str, Any],
        setting: Callable[[str], Any],
        *,
        limit: int,
        pad: int | None,
        user_stops: Sequence[Any] = (),
        as_dict: bool = False,
    ) -> None:
        self._processor = processor
        self._plain = plain
        self._model = model
        self._setting = setting
        self._limit = limit
        self._pad = pad
        self._as_dict = as_dict
        self._user_stops = list(user_stops)
        self._rows: list[_Row] = []
        self._width = 0
        self._paused = False
        self._stopping = False
        self._deadline = None
        if arguments.get("max_time") is not None:
            self._deadline = time.monotonic() + float(arguments["max_time"])
        streamer = arguments.get("streamer")
        self._held = _HeldStreamer(streamer, processor, self) if streamer is not None else None
        self._arguments = {
            **{name: value for name, value in arguments.items() if name != "stop_strings"},
            "stopping_criteria": StoppingCriteriaList([self]),  # it asks the caller's own
            "return_dict_in_generate": True,
        }
        if self._held is not None:
            self._arguments["streamer"] = self._held
        processor.retract = self.wants

    # --- during a call -----------------------------------------------------------------------------

    def wants(self, row: int, node: Node, first: int) -> bool:
        """Asked by the processor where a first choice is masked inside a literal: whether the row goes back."""
        while len(self._rows) <= row:
            self._rows.append(_Row())
        state = self._rows[row]
        if state.done or state.end is not None or node.depth >= self._limit or self._stopping:
            return False  # what this row is asked for now is padding
        place = self._processor.place_of(node, first)
        if place is None or not state.allows(place):
            # Refused before it has begun, a number is avoided, as anywhere else: nothing is held.
            self._processor.report.counters["retractions_refused"] += self._processor.is_open(node)
            return False
        state.wanted = (place, node, first)
        self._paused = True
        return True

    @property
    def pausing(self) -> bool:
        return self._paused

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Stops every row where one goes back, else the rows that are done or reach their limit."""
        rows, new = input_ids.shape[0], input_ids.shape[1] - (self._width or self._processor.prompt_length)
        while len(self._rows) < rows:
            self._rows.append(_Row())
        self._ask_user_stops(input_ids, scores, new, kwargs)
        self._stopping = self._paused
        flags = [
            self._paused or row.done or row.end is not None or len(row.kept) + new >= self._limit
            for row in self._rows
        ]
        return torch.tensor(flags, device=input_ids.device, dtype=torch.bool)

    def _ask_user_stops(self, ids: torch.Tensor, scores: Any, new: int, kwargs: dict[str, Any]) -> None:
        """Note which rows the caller's own stopping criteria stop; not by a token that is not kept."""
        for stop in self._user_stops:
            found = stop(ids, scores, **kwargs)
            flags = found.tolist() if isinstance(found, torch.Tensor) else [bool(found)] * len(self._rows)
            for row, stopped in zip(self._rows, flags, strict=True):
                if stopped and row.end is None and row.wanted is None:
                    row.end = new

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
        self._width = self._processor.prompt_length
        prompt: torch.Tensor = out.sequences[:, : self._width]
        return prompt

    def _collect(self, out: Any) -> None:
        """Take over what a call has written; rows that go back keep what stands before the literal."""
        for index, row in enumerate(self._rows):
            if row.done:
                continue
            new = out.sequences[index, self._width :].tolist()
            if row.wanted is not None:
                place = row.wanted[0]
                self._keep(row, index, new, len(new) - 1, out)
                self._go_back(index, row, place)
                continue
            end = self._end_of(row, new)
            self._keep(row, index, new, end, out)
            ended = bool(end) and new[end - 1] in self._processor.eos
            row.done = ended or row.end is not None or not self._paused or len(row.kept) >= self._limit

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
        closed = {at: blanks for at, blanks in processor.closed.items() if at[0] != index or at[1] < place}
        blank = bool(taken_back) and processor.is_blank(taken_back[0])
        closed.update({(index, place + ahead): blank for ahead in range(row.reach(place))})
        processor.closed = closed
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

    def _end_of(self, row: _Row, new: list[int]) -> int:
        """How many of a call's new ids belong to the row: what comes after its end is padding."""
        most = min(len(new), self._limit - len(row.kept), len(new) if row.end is None else row.end)
        return next((at + 1 for at in range(most) if new[at] in self._processor.eos), most)

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
        cache = _cut(cache_of(out), [row.begins for row in rows], lengths, width)
        self._processor.resume(ids, nodes)
        self._width = width
        self._paused = self._stopping = False
        for row, length in zip(rows, lengths, strict=True):
            row.begins = width - length
        if self._held is not None:
            self._held.resume(nodes[0])
        arguments = {
            k: v for k, v in self._arguments.items() if k not in ("inputs", "past_key_values", "cache")
        }
        arguments.update(input_ids=ids, attention_mask=mask, num_return_sequences=1)
        arguments["max_new_tokens"] = max(self._limit - len(row.kept) for row in rows if not row.done)
        arguments.pop("max_length", None)
        least = self._least(prompt.shape[1])
        if least:  # transformers counts from where a call begins, and all rows alike
            for name in ("min_new_tokens", "min_length"):
                if self._setting(name) or name == "min_length":
                    arguments[name] = 0
            still = _AtLeast([least - len(row.kept) for row in rows], width, self._processor.eos)
            arguments["logits_processor"] = LogitsProcessorList([still, *arguments["logits_processor"]])
        if self._deadline is not None:
            arguments["max_time"] = max(0.0, self._deadline - time.monotonic())
        if cache is not None:
            arguments[cache_name(self._model)] = cache
        return arguments

    def _least(self, prompt_width: int) -> int:
        """How many new ids a row must have before it may end."""
        new, whole = self._setting("min_new_tokens"), self._setting("min_length")
        return max(0, int(new or 0), int(whole or 0) - prompt_width)

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


def _cut(cache: Any, begins: Sequence[int], lengths: Sequence[int], width: int) -> Any:
    """Keys and values for all ids kept but the last, left-padded to `width` - 1; None where they must be recomputed.

    begins: the column in which each row begins in `cache`; lengths: how many ids of each row are kept.
    """
    layers = getattr(cache, "layers", None)
    if not layers or any(type(layer).__name__ != "DynamicLayer" for layer in layers):
        return None
    have = cache.get_seq_length()
    spans = [(begin, begin + length - 1) for begin, length in zip(begins, lengths, strict=True)]
    if have < max(end for _, end in spans):
        return None
    if all(end == width - 1 for _, end in spans):
        if have > width - 1:
            cache.crop(-(have - (width - 1)))
        return cache
    for layer in layers:
        for name in ("keys", "values"):
            old = getattr(layer, name)
            new = torch.zeros_like(old[:, :, : width - 1])
            for row, (begin, end) in enumerate(spans):
                new[row, :, width - 1 - (end - begin) :] = old[row, :, begin:end]
            setattr(layer, name, new)
    return cache


class _AtLeast(LogitsProcessor):  # type: ignore[misc]
    """Blocks end tokens where a row has not yet so many more ids. least: one number per row, counted from `width`."""

    def __init__(self, least: Sequence[int], width: int, eos: frozenset[int]) -> None:
        self._least = least
        self._width = width
        self._eos = sorted(eos)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        rows = [at for at, least in enumerate(self._least) if input_ids.shape[1] - self._width < least]
        if rows and self._eos:
            scores = scores.clone()
            scores[torch.tensor(rows)[:, None], torch.tensor(self._eos)] = -torch.inf
        return scores


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
        if not self._processor.is_open(self._node) and not self._processor.leads(self._node):
            self._flush()

    def resume(self, node: Node) -> None:
        """Another call follows, from this node; what was put after it was taken back."""
        back = 0 if self._node is None else max(0, self._node.depth - node.depth)
        self._held = self._held[: max(0, len(self._held) - back)]
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
