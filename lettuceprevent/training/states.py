"""What a frozen host holds while it reads answers: states of some decoder layers, cached on disk.

Contract: states are the outputs of decoder layers on `prompt + answer`, as `probe.watch` reads them. Answers to
one prompt come together and share its keys and values. The cache is float16 and is taken up where it stopped, however
that was, if host, data and settings are the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..host_cache import cache_name
from ..hosts import has_template, prompt_text
from ..probe import decoder_layers
from .data import Example
from .files import replace_text
from .labels import LabelledTokens

MOST_CONTEXT = 1200  # tokens
FIGURES = ("log_probability", "entropy", "top_probability")


@dataclass(frozen=True)
class States:
    """states (rows, layers, width) float16: per answer the last of the prompt, then each token's, in the
    examples' order. figures (rows, 3) float32, or None: log P of the answer's next token (0 after the last),
    entropy in nats and highest probability of what the host would write after each.

    before, after (tokens,): the rows of the states before and after each token of all answers.
    """

    states: NDArray[np.float16]
    figures: NDArray[np.float32] | None
    before: NDArray[np.int64]

    @property
    def after(self) -> NDArray[np.int64]:
        """The rows of the states after each token."""
        return self.before + 1


def cut_context(tokenizer: Any, context: str, most: int = MOST_CONTEXT) -> str:
    """The context up to its token number `most`."""
    found = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return context if len(found) <= most else context[: found[most - 1][1]]


def prompt_ids(tokenizer: Any, example: Example, most: int = MOST_CONTEXT) -> list[int]:
    """The prompt as `lettuceprevent generate` writes it, the context cut to `most` tokens."""
    context = cut_context(tokenizer, example.context, most)
    text = prompt_text(tokenizer, f"{context.strip()}\n\n{example.query.strip()}")
    return list(tokenizer(text, add_special_tokens=not has_template(tokenizer))["input_ids"])


def extract_states(
    model: Any,
    tokenizer: Any,
    examples: Sequence[Example],
    labelled: Sequence[LabelledTokens],
    layers: Sequence[int],
    folder: Path,
    *,
    key: str,
    figures: bool = False,
    say: Callable[[str], None] = print,
) -> States:
    """Read all answers, or the rest of them. layers: from 1. key: what the cache in `folder` must be of.

    figures: also what the host says after each state; without them the host is run up to the last of `layers`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sizes = [len(each.ids) + 1 for each in labelled]
    starts = np.cumsum([0, *sizes])
    shape = (int(starts[-1]), len(layers), int(model.config.hidden_size))
    note, path = folder / "states.json", folder / "states.f16"
    wanted = {"key": f"{key} {list(layers)} {MOST_CONTEXT} {figures}", "shape": list(shape)}
    done = 0
    if note.exists() and path.exists():
        kept = json.loads(note.read_text(encoding="utf-8"))
        done = int(kept.pop("done")) if kept.keys() >= wanted.keys() else 0
        done = done if kept == wanted else 0
    mode: Any = "r+" if done else "w+"
    if not done:
        note.unlink(missing_ok=True)  # before the states it tells of are gone
    states: NDArray[np.float16] = np.memmap(path, np.float16, mode, shape=shape)
    says: NDArray[np.float32] | None = None
    if figures:
        says = np.memmap(folder / "figures.f32", np.float32, mode, shape=(shape[0], len(FIGURES)))
    reader = _Reader(model, layers, figures)
    asked: tuple[str, str] | None = None
    try:
        for number, at in enumerate(_by_prompt(examples)):
            if number < done:
                continue
            example, ids = examples[at], labelled[at].ids
            rows = slice(int(starts[at]), int(starts[at + 1]))
            if (example.context, example.query) != asked:
                reader.prompt(prompt_ids(tokenizer, example))
                asked = (example.context, example.query)
            logits = reader.answer(ids)
            for layer, found in enumerate(reader.found):
                states[rows, layer] = found.float().clamp(-65504, 65504).cpu().numpy()
            if says is not None:
                says[rows] = _figures(logits, ids)
            if (number + 1) % 20 == 0 or number + 1 == len(examples):
                for written in (states, says):
                    if isinstance(written, np.memmap):
                        written.flush()
                replace_text(note, json.dumps({**wanted, "done": number + 1}))
                say(f"states: {number + 1} of {len(examples)} answers")
    finally:
        reader.close()
    before = np.concatenate(
        [np.arange(start, start + size - 1) for start, size in zip(starts[:-1], sizes, strict=True)]
    )
    return States(states, says, before.astype(np.int64))


def _by_prompt(examples: Sequence[Example]) -> list[int]:
    """The places of the examples, those of one prompt together, else in order."""
    first: dict[tuple[str, str], int] = {}
    for at, example in enumerate(examples):
        first.setdefault((example.context, example.query), at)
    return sorted(range(len(examples)), key=lambda at: first[examples[at].context, examples[at].query])


def _figures(logits: torch.Tensor, ids: Sequence[int]) -> NDArray[np.float32]:
    """FIGURES, (len(ids) + 1, 3), of logits (len(ids) + 1, vocabulary)."""
    logp = torch.log_softmax(logits.float(), -1)
    chosen = logp[:-1].gather(1, torch.tensor(ids, device=logp.device)[:, None])[:, 0]
    entropy = -(logp.exp() * logp).nan_to_num(0.0).sum(-1)
    last = torch.zeros(1, device=logp.device)
    return torch.stack([torch.cat([chosen, last]), entropy, logp.max(-1).values.exp()], 1).cpu().numpy()


class _Enough(Exception):
    """The last layer that matters has been run."""


class _Reader:
    """A host that reads answers; `found` has the states (rows, width) of each layer after `answer`."""

    def __init__(self, model: Any, layers: Sequence[int], logits: bool) -> None:
        self.model = model
        self.logits = logits
        self.found: list[torch.Tensor] = [torch.empty(0)] * len(layers)
        self._last = 0
        self._cache: Any = None
        self._cache_name = cache_name(model)
        last = max(layers)
        blocks = decoder_layers(model)
        self._handles = [
            blocks[layer - 1].register_forward_hook(self._keep(at, layer == last and not logits))
            for at, layer in enumerate(layers)
        ]

    def _keep(self, at: int, enough: bool) -> Callable[..., None]:
        def read(module: Any, inputs: Any, output: Any) -> None:
            self.found[at] = (output[0] if isinstance(output, tuple) else output)[0]
            if enough:
                raise _Enough

        return read

    def prompt(self, ids: list[int]) -> None:
        """Read a prompt but for its last token, which is read with each answer."""
        from transformers import DynamicCache

        *first, self._last = ids
        self._cache = DynamicCache()
        if first:
            self._forward(first, 1)

    def answer(self, ids: Sequence[int]) -> torch.Tensor:
        """Logits (len(ids) + 1, vocabulary), where they were asked for. The cache is the prompt's again."""
        found = self._forward([self._last, *ids], len(ids) + 1)
        self._cache.crop(-len(ids) - 1)
        return found

    @torch.inference_mode()
    def _forward(self, ids: list[int], keep: int) -> torch.Tensor:
        try:
            out = self.model(
                input_ids=torch.tensor([ids], device=self.model.device),
                use_cache=True,
                logits_to_keep=keep if self.logits else 1,
                **{self._cache_name: self._cache},
            )
        except _Enough:
            return torch.empty(0)
        return torch.as_tensor(out.logits[0])

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
