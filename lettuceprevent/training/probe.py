"""Training a probe: states of the frozen host, cached on disk, and a logistic head for each layer and side.

Contract: states are the outputs of decoder layers on `prompt + answer`, read as `probe.watch` reads them. The
cache is float16 and is taken up where it stopped, if host, data and settings are the same. Layer and
regularisation are chosen by average precision on validation contexts, and the chosen heads calibrated there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

from ..evaluation.streaming import average_precision
from ..hosts import has_template, prompt_text
from ..probe import HEADS, Probe, decoder_layers, host_hash, weights_hash
from .data import Example
from .labels import LabelledTokens, label_tokens
from .splits import context_key, split_by_context

PENALTIES = (1e-4, 1e-3, 1e-2)  # of the squared weights on standardised states, per token
Floats = NDArray[np.float32]


def prompt_ids(tokenizer: Any, example: Example, most: int) -> list[int]:
    """The prompt as `lettuceprevent generate` writes it, the context cut to `most` tokens."""
    found = tokenizer(example.context, add_special_tokens=False, return_offsets_mapping=True)[
        "offset_mapping"
    ]
    context = example.context if len(found) <= most else example.context[: found[most - 1][1]]
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
    most_context: int = 1200,
    say: Callable[[str], None] = print,
) -> NDArray[np.float16]:
    """States (sum of tokens + 1 per answer, layers, width): the last of the prompt, then each token's."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = [len(each.ids) + 1 for each in labelled]
    shape = (sum(sizes), len(layers), int(model.config.hidden_size))
    note, path = folder / "states.json", folder / "states.f16"
    done = 0
    if note.exists() and path.exists():
        kept = json.loads(note.read_text(encoding="utf-8"))
        done = int(kept["done"]) if kept["key"] == key and kept["shape"] == list(shape) else 0
    states: NDArray[np.float16] = np.memmap(path, np.float16, "r+" if done else "w+", shape=shape)
    blocks = decoder_layers(model)
    found: dict[int, torch.Tensor] = {}

    def keep(at: int) -> Callable[..., None]:
        def read(module: Any, inputs: Any, output: Any) -> None:
            found[at] = (output[0] if isinstance(output, tuple) else output)[0]

        return read

    handles = [blocks[layer - 1].register_forward_hook(keep(at)) for at, layer in enumerate(layers)]
    try:
        start = sum(sizes[:done])
        for number in range(done, len(examples)):
            ids = [*prompt_ids(tokenizer, examples[number], most_context), *labelled[number].ids]
            with torch.inference_mode():
                model(input_ids=torch.tensor([ids], device=model.device), logits_to_keep=1, use_cache=False)
            size = sizes[number]
            for at in range(len(layers)):
                states[start : start + size, at] = (
                    found[at][-size:].float().clamp(-65504, 65504).cpu().numpy()
                )
            start += size
            if (number + 1) % 20 == 0 or number + 1 == len(examples):
                states.flush()  # type: ignore[attr-defined]
                note.write_text(
                    json.dumps({"key": key, "shape": shape, "done": number + 1}), encoding="utf-8"
                )
                say(f"states: {number + 1} of {len(examples)} answers")
    finally:
        for handle in handles:
            handle.remove()
    return states


def fit_logistic(x: Floats, y: NDArray[np.bool_], penalty: float) -> tuple[Floats, float]:
    """(weight (width,), bias) of a logistic regression on raw states; standardised inside, bias not penalised."""
    mean, scale = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64) + 1e-6
    z = ((x - mean) / scale).astype(np.float32)
    signs = np.where(y, 1.0, -1.0)

    def loss(theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        margins = signs * (z @ theta[:-1].astype(np.float32) + theta[-1])
        pull = -signs * np.exp(-np.logaddexp(0, margins)) / len(y)
        slope = np.append(z.T @ pull.astype(np.float32) + penalty * theta[:-1], pull.sum())
        return float(np.logaddexp(0, -margins).mean() + penalty / 2 * (theta[:-1] ** 2).sum()), slope

    found = minimize(loss, np.zeros(z.shape[1] + 1), jac=True, method="L-BFGS-B", options={"maxiter": 200}).x
    weight = found[:-1] / scale
    return weight.astype(np.float32), float(found[-1] - weight @ mean)


def best_f1(scores: Floats, labels: NDArray[np.bool_]) -> tuple[float, float]:
    """(threshold, F1) at which "above the threshold" has the best F1."""
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], np.cumsum(labels[order])
    f1 = 2 * hits / (np.arange(1, len(hits) + 1) + labels.sum())
    f1[:-1][ranked[:-1] == ranked[1:]] = -1.0  # equal scores come together
    at = int(f1.argmax())
    below = ranked[at + 1] if at + 1 < len(ranked) else 0.0
    return float((ranked[at] + below) / 2), float(f1[at])


def train_probe(
    model: Any,
    tokenizer: Any,
    host: str,
    examples: Sequence[Example],
    folder: str | Path,
    *,
    layers: Sequence[int] | None = None,
    validation: float = 0.15,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> Probe:
    """Train, write to `folder` and return a probe of `model`. layers: candidates; by default seven, spread.

    Raises ValueError for layers that the host lacks, and where training or validation lacks tokens of either
    label.
    """
    count = int(model.config.num_hidden_layers)
    chosen = sorted({max(1, round(count * at / 8)) for at in range(2, 9)}) if layers is None else list(layers)
    wrong = [layer for layer in chosen if not 1 <= layer <= count]
    if wrong:
        raise ValueError(f"layers: expected layers from 1 to {count}, got {', '.join(map(str, wrong))}")
    data = hashlib.sha256(repr(list(examples)).encode("utf-8", "replace")).hexdigest()[:16]
    key = f"{host} {model.name_or_path} {model.dtype} {host_hash(model.config)} {data} {chosen}"
    labelled = [label_tokens(example, tokenizer) for example in examples]
    states = extract_states(
        model, tokenizer, examples, labelled, chosen, Path(folder) / "cache", key=key, say=say
    )
    apart = split_by_context(examples, validation=validation, seed=seed)[1]
    held = {context_key(example.context) for example in apart}
    labels = np.concatenate([each.labels for each in labelled])
    lengths = [len(each.ids) for each in labelled]
    is_held = np.repeat([context_key(example.context) in held for example in examples], lengths)
    # Where the state before each token lies; the one after it is the next.
    before = np.concatenate([np.arange(n) for n in lengths]) + np.repeat(
        np.cumsum([0, *(n + 1 for n in lengths[:-1])]), lengths
    )
    for name, part in (("training", labels[~is_held]), ("validation", labels[is_held])):
        if not part.any() or part.all():
            raise ValueError(f"{name}: expected tokens of both labels, got {int(part.sum())} of {len(part)}")
    weights, biases, heads = {}, {}, {}
    for side, head in enumerate(HEADS):
        best: tuple[float, int, float, Floats, float, Floats] | None = None
        for at, layer in enumerate(chosen):
            x = np.asarray(states[before + side, at], np.float32)
            for penalty in PENALTIES:
                weight, bias = fit_logistic(x[~is_held], labels[~is_held], penalty)
                logits = x[is_held] @ weight + np.float32(bias)
                quality = average_precision(logits, labels[is_held]) or 0.0
                if best is None or quality > best[0]:
                    best = (quality, layer, penalty, weight, bias, logits)
            say(f"{head}: layer {layer} done, best average precision {best[0]:.3f}" if best else head)
        assert best is not None
        quality, layer, penalty, weight, bias, logits = best
        slope, shift = fit_logistic(logits[:, None], labels[is_held], 1e-4)
        risks = (1 / (1 + np.exp(-(logits * slope[0] + shift)))).astype(np.float32)
        threshold, f1 = best_f1(risks, labels[is_held])
        weights[head] = torch.from_numpy(weight * slope[0])
        biases[head] = float(np.float32(bias * slope[0] + shift))  # as the file holds it
        heads[head] = {
            "layer": layer,
            "penalty": penalty,
            "threshold": threshold,
            "validation": {"average_precision": quality, "f1": f1},
        }
    card = {
        "format": 1,
        "host": {
            "id": host,
            "hash": host_hash(model.config),
            "weights": weights_hash(model),
            "layers": count,
            "width": int(model.config.hidden_size),
        },
        "heads": heads,
        "data": {"hash": data, "answers": len(examples), "validation_answers": len(apart), "seed": seed},
    }
    probe = Probe(weights, biases, card)
    probe.save(folder)
    return probe
