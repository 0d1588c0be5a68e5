"""Several trainings of a causal detector made one: the mean of what they add to the base's weights, and of their heads.

Contract: they are LoRA trainings of one base on the same data, with the same seed and share for validation, so that
none has seen a validation context of another; recipes may differ in the rest. The factors are put side by side: the new
rank is the sum of theirs, and the mean is exact but for the rounding to bfloat16. It costs nothing at work, where factors
are added to the weights once, and here a pass over the validation side, which gives the threshold.
Source: Wortsman et al. 2022, Model soups, arXiv:2203.05482.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checkpoint import ADAPTER, ADAPTER_WEIGHTS, TRAINED
from .causal import Recipe, Training, encode, shown_under, untrained, write_trained
from .classifier import TokenClassifier
from .data import Example, data_hash
from .prompts import Prompts
from .splits import split_by_context

_SAME = ("keep_layers", "answer_only", "alignment", "validation", "most_validated", "seed")
_HEAD = ("classifier.weight", "classifier.bias")


def merge(
    folders: Sequence[str | Path],
    examples: Sequence[Example],
    out: str | Path,
    *,
    hosts: Sequence[str] = (),
    cpu: bool = False,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Write the mean of the trainings in `folders` to `out`; returns its card, which training.json holds as well.

    examples: the data of all of them. hosts: their tokenizers, as `train_causal` takes them. Raises ValueError for
    fewer than two folders, trainings that cannot be one and other data, FileNotFoundError for a folder without a
    finished LoRA training.
    """
    from accelerate import Accelerator

    if len(folders) < 2:
        raise ValueError(f"expected two or more trainings to merge, got {len(folders)}")
    read = [_read(Path(folder)) for folder in folders]
    cards = [card for card, _, _ in read]
    adapters = [adapter for _, adapter, _ in read]
    weights = [tensors for _, _, tensors in read]
    whole, first = data_hash(examples), _identity(cards[0], adapters[0])
    for folder, card, adapter in zip(folders, cards, adapters, strict=True):
        for name, value in _identity(card, adapter).items():
            if value != first[name]:
                raise ValueError(f"{folder}: {name}: expected {first[name]}, as in {folders[0]}, got {value}")
        if card["data"]["hash"] != whole:
            raise ValueError(
                f"{folder}: expected the data it was trained on, with hash {card['data']['hash']}, got {whole}"
            )
    ranks = [int(adapter["rank"]) for adapter in adapters]
    spans = [adapter["lora_layers"] for adapter in adapters]
    layers = (min(first for first, _ in spans), max(last for _, last in spans))
    recipe = Recipe(**{**cards[0]["recipe"], "lora_rank": sum(ranks), "lora_layers": layers})
    model = untrained(cards[0]["backbone"], recipe)
    _take_mean(model, weights, ranks)
    accelerator = Accelerator(cpu=cpu)
    model.to(accelerator.device)
    apart = split_by_context(examples, validation=recipe.validation, seed=recipe.seed)[1]
    held = encode(
        apart, shown_under(model, hosts, recipe.alignment), model, recipe.most_validated, recipe.seed
    )
    key = hashlib.sha256(f"merge {[card['key'] for card in cards]}".encode()).hexdigest()[:16]
    prompts = Prompts(model, Path(out), key) if recipe.answer_only else None
    run = Training(model, held, recipe, accelerator, prompts)
    found = {**run.validate(held), "step": sum(int(card["steps"]) for card in cards)}
    model.take(run.best)
    say(
        f"validation: average precision {found['average_precision']:.3f}, AUROC {found['auroc']:.3f}, "
        f"best F1 {found['f1']:.3f}"
    )
    card = {
        **cards[0],
        "key": key,
        "recipe": {
            **_together([card["recipe"] for card in cards]),
            "lora_rank": recipe.lora_rank,
            "lora_layers": layers,
        },
        "data": _together([card["data"] for card in cards]),
        "validation": found,
        "history": [found],
        "steps": found["step"],
        "minutes": round(sum(card["minutes"] for card in cards), 2),
        "merged": [{name: card[name] for name in ("key", "recipe", "validation", "steps")} for card in cards],
    }
    card = write_trained(model, card, Path(out))
    if prompts is not None:
        prompts.remove()
    return card


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]:
    from safetensors.torch import load_file

    for name in (TRAINED, ADAPTER, ADAPTER_WEIGHTS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder}: expected a finished LoRA training, got no {name}")
    card, adapter = (json.loads((folder / name).read_text("utf-8")) for name in (TRAINED, ADAPTER))
    card["recipe"] = asdict(Recipe(**card["recipe"]))  # what an earlier one did not know it did without
    card["data"] = {"without_support": 0, **card["data"]}
    return card, adapter, load_file(folder / ADAPTER_WEIGHTS)


def _identity(card: Mapping[str, Any], adapter: Mapping[str, Any]) -> dict[str, Any]:
    """What trainings that are made one must have in common."""
    same = {name: card["recipe"][name] for name in _SAME}
    return {"base": adapter["base"], "layers": adapter["layers"], "hosts": card["hosts"], **same}


@torch.no_grad()
def _take_mean(model: TokenClassifier, weights: Sequence[Mapping[str, Tensor]], ranks: Sequence[int]) -> None:
    """Factors side by side, of the mean's second ones a share of each; zeros where a training has none."""
    places = [slice(end - rank, end) for rank, end in zip(ranks, accumulate(ranks), strict=True)]
    for name, module in model.backbone.named_modules():
        if not hasattr(module, "lora_A"):
            continue
        first, second = module.lora_A["default"].weight, module.lora_B["default"].weight
        first.zero_()
        second.zero_()
        for place, mine in zip(places, weights, strict=True):
            if f"{name}.lora_A" in mine:
                first[place] = mine[f"{name}.lora_A"].float()
                second[:, place] = mine[f"{name}.lora_B"].float() / len(weights)
    weight, bias = (torch.stack([mine[name].float() for mine in weights]).mean(0) for name in _HEAD)
    model.head.weight.copy_(weight)
    model.head.bias.copy_(bias)


def _together(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One value where all agree, else a list of each one's."""
    names = dict.fromkeys(name for each in found for name in each)
    values = {name: [each.get(name) for each in found] for name in names}
    return {name: each[0] if all(one == each[0] for one in each) else each for name, each in values.items()}
