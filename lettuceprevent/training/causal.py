"""Training a causal detector: token classification on a causal backbone, whole or by LoRA.

Contract: `train_causal` writes a folder that `load_checkpoint` loads. The data order is a function of seed and
epoch and nothing is dropped at random, so a run that was stopped goes on from its last saved state to the same
result (bit by bit on the same machine, where no time limit cuts it). Early stopping and threshold see contexts
of the validation side only, scored with the weights as they will be written. The state is replaced by one
rename, and training.json, which says that the folder is finished, is written last. Under `accelerate launch` each
process takes its share of a step's answers; the first one writes.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from ..alignment import TRAINABLE, Alignment, make_alignment
from ..checkpoint import TRAINED
from ..evaluation.streaming import auroc, average_precision
from ..profiles import host_name
from ..vocabulary import Vocabulary
from .card import model_card
from .classifier import TokenClassifier, base_name
from .corruption import KINDS, corrupt
from .data import Example, data_hash
from .files import replace_text
from .labels import drawn, label_detector_tokens
from .omission import without_support
from .probe import best_f1, fit_logistic, standardised
from .prompts import Prompts
from .records import record_examples
from .splits import context_key, split_by_context

_STATE = "state.pt"
_ROWS_AT_ONCE = 4096  # tokens of one forward pass, padding included
_POOL = 16  # steps whose answers are sorted by length together
_WARM = 0.05  # of the steps
_ANSWERS_A_RECORD = 3
_HEAD_PENALTY = 0.1  # of the head that is fitted before the first step


@dataclass(frozen=True)
class Recipe:
    """How a detector is trained. Layers count from 1; None: all of them.

    answer_only: LoRA acts on answers alone; contexts and queries are read once each, by the base as it is.
    positive_weight: of an unsupported token in the loss. most_prompt: detector tokens before the answer in
    training, most_validated in validation; longer contexts are cut. head_answers: on whose states the head is fitted
    before the first step; 0: it begins with zeros. corrupted: share of the supported training
    answers that come a second time with a synthetic error. omitted: share of the training answers that come a second
    time, over a context without the sentences that one of theirs rests on. records: so many made-up business records,
    with three answers each, are trained on, too. average: what is validated and written is a moving average of the
    weights, of which a step keeps this share (0: the weights as they are). validation: share of contexts. patience:
    validations without a better average precision before it stops. minutes: on the clock, validation included; None:
    no limit. validations: per epoch.
    """

    keep_layers: int | None = None
    lora_rank: int = 16
    lora_layers: tuple[int, int] | None = None
    answer_only: bool = False
    dtype: str = "bfloat16"
    alignment: str = "host_chunks"
    positive_weight: float = 4.0
    learning_rate: float = 3e-4
    head_rate: float = 1e-3
    head_answers: int = 256
    batch: int = 8
    most_prompt: int = 700
    most_validated: int = 1200
    corrupted: float = 0.0
    omitted: float = 0.0
    records: int = 0
    average: float = 0.0
    validation: float = 0.1
    epochs: float = 2.0
    validations: int = 2
    patience: int = 3
    minutes: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Row:
    """Detector ids of prompt and answer. labels: (n,), of the last n of them, the answer's."""

    ids: tuple[int, ...]
    labels: NDArray[np.bool_]


def encode(
    examples: Sequence[Example],
    hosts: Sequence[tuple[Any, Alignment]],
    model: TokenClassifier,
    most_prompt: int,
    seed: int,
) -> list[Row]:
    """`[CLS] context [SEP] query [SEP] answer` of each example, under one of `hosts` drawn for it.

    The end of a context is cut off so that at most `most_prompt` tokens come before the answer, the end of an
    answer where the model has no positions for it.
    """
    room = int(model.config.max_position_embeddings)
    rows = []
    for example in examples:
        tokenizer, alignment = drawn(example, hosts, seed)
        query = alignment.text_ids(example.query)
        context = alignment.text_ids(example.context)[: max(0, most_prompt - len(query) - 3)]
        prompt = (model.cls_id, *context, model.sep_id, *query, model.sep_id)
        answer, labels = label_detector_tokens(example, tokenizer, alignment)
        ids = (prompt + answer)[:room]
        rows.append(Row(ids, labels[: max(0, len(ids) - len(prompt))]))
    return rows


def corrupted(examples: Sequence[Example], share: float, seed: int) -> list[Example]:
    """One synthetic error, of a kind that applies, for a share of the supported examples."""
    made = []
    for example in examples:
        rng = random.Random(f"{seed} {example.id}")
        if example.spans or rng.random() >= share:
            continue
        tries = (corrupt(example, kind, seed) for kind in rng.sample(KINDS, len(KINDS)))
        found = next((each for each in tries if each is not None), None)
        made += [] if found is None else [found]
    return made


def omitted(examples: Sequence[Example], share: float, seed: int) -> list[Example]:
    """A share of the examples, where it can be done, over a context without what one of their sentences rests on."""
    drawn = (each for each in examples if random.Random(f"{seed} omission {each.id}").random() < share)
    return [made for each in drawn if (made := without_support(each, seed)) is not None]


def order(lengths: Sequence[int], batch: int, seed: int, epoch: int) -> list[list[int]]:
    """The steps of one epoch, each a list of indices: shuffled, with answers of like length together."""
    rng = np.random.default_rng([seed, epoch])
    shuffled = rng.permutation(len(lengths)).tolist()
    steps: list[list[int]] = []
    for start in range(0, len(shuffled), batch * _POOL):
        pool = sorted(shuffled[start : start + batch * _POOL], key=lambda at: (lengths[at], at))
        steps += [pool[at : at + batch] for at in range(0, len(pool), batch)]
    return [steps[at] for at in rng.permutation(len(steps))]


def padded(rows: Iterable[Row], device: Any) -> Iterator[tuple[torch.Tensor, list[Row]]]:
    """(ids (R, T), their rows), in forward passes of a bounded size; padded at the end."""
    ready: list[Row] = []
    for row in [*sorted(rows, key=lambda row: len(row.ids)), None]:
        if ready and (row is None or len(row.ids) * (len(ready) + 1) > _ROWS_AT_ONCE):
            width = len(ready[-1].ids)
            ids = [[*each.ids, *[each.ids[-1]] * (width - len(each.ids))] for each in ready]
            yield torch.tensor(ids, device=device), ready
            ready = []
        if row is not None:
            ready.append(row)


def answers(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """The logits of the rows' labels, (n, 2), of those of all their ids."""
    pieces = [
        each[len(row.ids) - len(row.labels) : len(row.ids)] for each, row in zip(logits, rows, strict=True)
    ]
    return torch.cat(pieces)


class Training:
    """A run: model, optimiser and where they are. Made, taken up and driven by `train_causal`."""

    def __init__(
        self,
        model: TokenClassifier,
        rows: Sequence[Row],
        recipe: Recipe,
        accelerator: Any,
        prompts: Prompts | None = None,
    ) -> None:
        self.model = model
        self.prompts = prompts  # with answer_only
        self.rows = rows
        self.recipe = recipe
        self.accelerator = accelerator
        self.rank, self.of = int(accelerator.process_index), int(accelerator.num_processes)
        trained = model.trained()
        groups: dict[float, list[Any]] = {recipe.learning_rate: [], recipe.head_rate: []}
        for name, weight in trained.items():
            groups[recipe.head_rate if name.startswith("head.") else recipe.learning_rate].append(weight)
        self.optimizer = torch.optim.AdamW(
            [{"params": weights, "lr": rate, "rate": rate} for rate, weights in groups.items()]
        )
        self.lengths = [len(row.ids) for row in rows]
        self.per_epoch = math.ceil(len(rows) / recipe.batch)
        self.steps = max(1, math.ceil(self.per_epoch * recipe.epochs))
        self.step = 0
        self.seconds = 0.0
        self.averages: dict[str, torch.Tensor] = {}  # of what is trained, with recipe.average
        self.best: dict[str, torch.Tensor] = {}
        self.history: list[dict[str, Any]] = []
        self.losses: list[float] = []

    def states(self, rows: Sequence[Row]) -> Iterator[tuple[torch.Tensor, list[Row]]]:
        """(what the head reads of the labelled tokens of some rows (n, hidden), these rows), in bounded passes."""
        if self.prompts is None:
            for ids, some in padded(rows, self.accelerator.device):
                yield answers(self.model.states(ids), some), some
            return
        for row in rows:
            start = len(row.ids) - len(row.labels)
            if start < len(row.ids):
                yield self.model.answer_states(self.prompts(row.ids[:start]), row.ids[start:]), [row]

    @torch.no_grad()
    def begin_head(self) -> None:
        """Fit the head to the untrained backbone, by logistic regression on some answers, so that the first steps
        do not pull the backbone after a head that knows nothing (Kumar et al. 2022, arXiv:2202.10054)."""
        count = min(self.recipe.head_answers, len(self.rows))
        drawn = np.random.default_rng(self.recipe.seed).permutation(len(self.rows))[:count]
        states, labels = [], []
        for found, some in self.states([self.rows[at] for at in drawn]):
            states.append(found.cpu().numpy())
            labels.append(np.concatenate([row.labels for row in some]))
        x, y = np.concatenate(states), np.concatenate(labels)
        if not 0 < y.sum() < len(y):
            return
        weight, bias = fit_logistic(x, y, _HEAD_PENALTY, np.where(y, self.recipe.positive_weight, 1.0))
        _, mean, scale = standardised(x)
        numbers = [torch.from_numpy(np.asarray(each, np.float32)) for each in (weight, mean, scale)]
        if self.of > 1:
            from accelerate.utils import broadcast_object_list

            (numbers, bias) = broadcast_object_list([numbers, bias])
        self.model.begin_head(numbers[0], bias, *numbers[1:])

    def advance(self) -> float:
        """One step; the mean weighted loss of its tokens."""
        epoch, at = divmod(self.step, self.per_epoch)
        chosen = order(self.lengths, self.recipe.batch, self.recipe.seed, epoch)[at]
        rows = [self.rows[each] for each in chosen]
        weights = torch.tensor([1.0, self.recipe.positive_weight], device=self.accelerator.device)
        total = sum(float(weights[1]) * row.labels.sum() + (~row.labels).sum() for row in rows)
        loss = torch.zeros((), device=self.accelerator.device)
        for states, some in self.states(rows[self.rank :: self.of]):
            labels = torch.from_numpy(np.concatenate([row.labels for row in some]).astype(np.int64))
            labels = labels.to(states.device)
            part = F.cross_entropy(self.model.classify(states), labels, weights, reduction="sum")
            part = part / max(total, 1.0)
            part.backward()
            loss += part.detach()
        trained = list(self.model.trained().values())
        if self.of > 1:
            for weight in trained:
                grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                weight.grad = self.accelerator.reduce(grad, "sum")
            loss = self.accelerator.reduce(loss, "sum")
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = group["rate"] * self._rate()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self._average()
        self.losses.append(float(loss))
        return self.losses[-1]

    @torch.no_grad()
    def _average(self) -> None:
        if not self.recipe.average:
            return
        if not self.averages:
            self.averages = {name: weight.detach().clone() for name, weight in self.model.trained().items()}
        # The first weights are not worth keeping for long.
        share = min(self.recipe.average, self.step / (self.step + 10))
        for name, weight in self.model.trained().items():
            self.averages[name].lerp_(weight, 1 - share)

    def _rate(self) -> float:
        """Up over the first steps, then down to nothing."""
        warm = max(1, round(_WARM * self.steps))
        return min((self.step + 1) / warm, (self.steps - self.step) / max(1, self.steps - warm))

    def due(self) -> bool:
        """Whether to validate after this step."""
        every = max(1, round(self.per_epoch / self.recipe.validations))
        return self.step % every == 0 or self.step == self.steps

    def validate(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Figures of the weights as they would be written; they are kept if they are the best so far."""
        exact = {name: weight.detach().clone() for name, weight in self.model.trained().items()}
        if self.averages:
            self.model.take(self.averages)
        kept = self.model.as_written()
        self.model.take(kept)
        risks, labels = self._risks(rows)
        self.model.take(exact)
        threshold, f1 = best_f1(risks, labels)
        found = {
            "step": self.step,
            "average_precision": average_precision(risks, labels) or 0.0,
            "auroc": auroc(risks, labels),
            "threshold": threshold,
            "f1": f1,
            "loss": float(np.mean(self.losses)) if self.losses else None,
        }
        self.losses = []
        if not self.history or found["average_precision"] > max(
            each["average_precision"] for each in self.history
        ):
            self.best = kept
        self.history.append(found)
        return found

    @torch.no_grad()
    def _risks(self, rows: Sequence[Row]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        mine: list[tuple[NDArray[np.float32], NDArray[np.bool_]]] = []
        for states, some in self.states(rows[self.rank :: self.of]):
            risks = torch.softmax(self.model.classify(states), -1)[:, 1].cpu().numpy()
            mine.append((risks, np.concatenate([row.labels for row in some])))
        if self.of > 1:
            from accelerate.utils import gather_object

            mine = gather_object(mine)
        return np.concatenate([risks for risks, _ in mine]), np.concatenate([labels for _, labels in mine])

    def chosen(self) -> dict[str, Any]:
        """The best validation so far."""
        return max(self.history, key=lambda each: each["average_precision"])

    def stale(self) -> bool:
        """Whether the last validations brought nothing better."""
        since = [each["step"] for each in self.history].index(self.chosen()["step"]) if self.history else 0
        return len(self.history) - since > self.recipe.patience

    def save(self, path: Path, key: str) -> None:
        """Write everything that `resume` needs, in one rename."""
        if self.rank:
            return
        state = {
            "key": key,
            "step": self.step,
            "seconds": self.seconds,
            "trained": {name: weight.detach() for name, weight in self.model.trained().items()},
            "standard": [self.model.mean, self.model.scale],
            "optimizer": self.optimizer.state_dict(),
            "averages": self.averages,
            "best": self.best,
            "history": self.history,
            "losses": self.losses,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)

    def resume(self, path: Path, key: str) -> bool:
        """Take up a saved run of the same key; False where there is none. The first process decides, and where it
        goes on the others must find the file, too: FileNotFoundError."""
        state = None
        if path.is_file():
            device = self.accelerator.device
            # several processes on a CPU are said to be on "cpu:0", where nothing can be loaded to
            location = "cpu" if device.type == "cpu" else device
            state = torch.load(path, map_location=location, weights_only=True)
            state = state if state["key"] == key else None
        if not first_says(self.of, state is not None):
            return False
        if state is None:
            raise FileNotFoundError(
                f"{path}: expected the state that the first process goes on from, got none"
            )
        self.model.take(state["trained"])
        self.model.mean.copy_(state["standard"][0])
        self.model.scale.copy_(state["standard"][1])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = int(state["step"]), float(state["seconds"])
        self.averages, self.best = state["averages"], state["best"]
        self.history, self.losses = state["history"], state["losses"]
        return True


def train_causal(
    backbone: str,
    examples: Sequence[Example],
    folder: str | Path,
    recipe: Recipe | None = None,
    *,
    hosts: Sequence[str] = (),
    cpu: bool = False,
    save_minutes: float = 5.0,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Train a detector and write it to `folder`; returns its card, which training.json holds as well.

    backbone: a folder (named by its absolute path in what is written) or hub id of a causal model. hosts:
    tokenizers (ids or folders) under whose segmentation answers are shown, one drawn per example; by default the
    backbone's own. A folder whose training was stopped is taken up where its state was last saved, one that is
    finished is left as it is, if nothing was changed.
    Raises ValueError where training or validation lacks tokens of either label, for hosts with the alignment
    `direct`, which has no use for them, and as `TokenClassifier` does.
    """
    from accelerate import Accelerator

    recipe = recipe or Recipe()
    if not 0 <= recipe.average < 1:
        raise ValueError(f"average: expected a decay from 0 up to, not including, 1, got {recipe.average}")
    if recipe.alignment not in TRAINABLE:
        raise ValueError(
            f"alignment: expected one of {', '.join(TRAINABLE)} in training, got {recipe.alignment!r}"
        )
    if hosts and recipe.alignment == "direct":
        raise ValueError(
            "--host-tokenizer (hosts): expected none with --alignment direct, under which answers are cut by the "
            f"backbone's own tokenizer, got {', '.join(hosts)}"
        )
    accelerator = Accelerator(cpu=cpu)
    atexit.register(_leave_group)
    main = bool(accelerator.is_main_process)
    say = say if main else _silent
    out = Path(folder)
    text = f"{base_name(backbone)} {data_hash(examples)} {list(hosts)} {recipe}"
    key = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
    card = json.loads((out / TRAINED).read_text("utf-8")) if (out / TRAINED).is_file() else {}
    if first_says(int(accelerator.num_processes), card.get("key") == key):
        say(f"{out} is finished already")
        return dict(card)
    model = untrained(backbone, recipe)
    pairs = shown_under(model, hosts, recipe.alignment)
    train, apart = split_by_context(examples, validation=recipe.validation, seed=recipe.seed)
    made = corrupted(train, recipe.corrupted, recipe.seed)
    bare = omitted(train, recipe.omitted, recipe.seed)
    listed = record_examples(recipe.records, _ANSWERS_A_RECORD, recipe.seed)
    rows = encode([*train, *made, *bare, *listed], pairs, model, recipe.most_prompt, recipe.seed)
    held = encode(apart, pairs, model, recipe.most_validated, recipe.seed)
    counts = {}
    for name, part in (("training", rows), ("validation", held)):
        counts[name] = (sum(int(row.labels.sum()) for row in part), sum(len(row.labels) for row in part))
        if not 0 < counts[name][0] < counts[name][1]:
            raise ValueError(
                f"{name}: expected tokens of both labels, got {counts[name][0]} of {counts[name][1]}"
            )
    model.to(accelerator.device)
    prompts = Prompts(model, out, key) if recipe.answer_only else None
    run = Training(model, rows, recipe, accelerator, prompts)
    state = out / _STATE
    if run.resume(state, key):
        say(f"going on after step {run.step} of {run.steps}, {run.seconds / 60:.1f} minutes in")
    say(
        f"{len(rows)} answers ({len(made)} corrupted, {len(bare)} without support, {len(listed)} of made-up records), "
        f"{counts['training'][0]} of {counts['training'][1]} tokens unsupported, "
        f"{sum(run.lengths)} tokens with prompts; {len(held)} for validation; {run.steps} steps; "
        f"{sum(weight.numel() for weight in model.trained().values())} parameters"
    )
    if run.step == 0 and recipe.head_answers:
        run.begin_head()
        say(f"head begun on {min(recipe.head_answers, len(rows))} answers")
    _drive(run, held, state, key, save_minutes, say)
    if not main:
        return {}
    model.take(run.best)
    card = {
        "key": key,
        "backbone": model.base,
        "layers": model.layers,
        "hosts": [host_name(host) for host in hosts] or [model.base],
        "recipe": asdict(recipe),
        "data": {
            "hash": data_hash(examples),
            "contexts": " ".join(sorted({context_key(example.context)[:8] for example in examples})),
            "answers": len(train),
            "corrupted": len(made),
            "without_support": len(bare),
            "records": len(listed),
            "validation_answers": len(apart),
            "unsupported_tokens": counts["training"][0],
            "tokens": counts["training"][1],
        },
        "validation": run.chosen(),
        "history": run.history,
        "steps": run.step,
        "minutes": round(run.seconds / 60, 2),
    }
    card = write_trained(model, card, out)
    state.unlink(missing_ok=True)
    if prompts is not None:
        prompts.remove()
    return card


def untrained(base: str, recipe: Recipe) -> TokenClassifier:
    """The model that `recipe` trains, on the CPU; raises as `TokenClassifier` does."""
    return TokenClassifier(
        base,
        keep_layers=recipe.keep_layers,
        rank=recipe.lora_rank,
        lora_layers=recipe.lora_layers,
        answer_only=recipe.answer_only,
        dtype=getattr(torch, recipe.dtype),
        seed=recipe.seed,
    )


def shown_under(model: TokenClassifier, hosts: Sequence[str], alignment: str) -> list[tuple[Any, Alignment]]:
    """The tokenizers of `hosts`, by default the model's own, each with how the model is shown its tokens."""
    from transformers import AutoTokenizer

    shown = [AutoTokenizer.from_pretrained(host) for host in hosts] or [model.tokenizer]
    return [
        (each, make_alignment(alignment, Vocabulary.for_tokenizer(each), each, model.tokenizer))
        for each in shown
    ]


def write_trained(model: TokenClassifier, card: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Write weights, model card and training.json, which says that the folder is finished, last; returns the latter."""
    (out / TRAINED).unlink(missing_ok=True)  # of an earlier training: its threshold is of other weights
    model.write(out)
    (out / "README.md").write_text(model_card(card), encoding="utf-8")
    text = json.dumps(card, indent=2)
    replace_text(out / TRAINED, f"{text}\n")
    return dict(json.loads(text))


def _silent(_: str) -> None:
    pass


def _leave_group() -> None:
    """At the end of the process: one that ends while its threads still talk to the others is now and then aborted.
    Not at the end of a training, after which the same process may start another."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _drive(
    run: Training, held: Sequence[Row], state: Path, key: str, save_minutes: float, say: Callable[[str], None]
) -> None:
    """Step, validate and save until the steps, the time or the patience are at an end."""
    saved = last = time.monotonic()
    validation_seconds = 0.0
    while run.step < run.steps and not run.stale():
        loss = run.advance()
        now = time.monotonic()
        if not validation_seconds:  # before the first one: per token a pass without its gradient
            tokens = sum(len(row.ids) for row in held)
            validation_seconds = 0.6 * (now - last) * tokens * run.per_epoch / sum(run.lengths)
        run.seconds += now - last
        last = now
        over = first_says(  # clocks differ
            run.of,
            run.recipe.minutes is not None and run.seconds + validation_seconds >= run.recipe.minutes * 60,
        )
        if run.step % 10 == 0 or run.step == run.steps:
            say(f"step {run.step} of {run.steps}: loss {loss:.3f}, {run.seconds / 60:.1f} minutes")
        if run.due() or over:
            found = run.validate(held)
            now = time.monotonic()
            validation_seconds = now - last
            run.seconds += validation_seconds
            last = now
            say(
                f"validation after step {run.step}: average precision {found['average_precision']:.3f}, AUROC "
                f"{found['auroc']:.3f}, best F1 {found['f1']:.3f} ({validation_seconds:.0f} s)"
            )
        if time.monotonic() - saved >= save_minutes * 60:
            run.save(state, key)
            saved = time.monotonic()
        if over:
            say("no time is left")
            return


def first_says(processes: int, mine: bool) -> bool:
    """The first process's word on it, for all of them, who must not part ways. Waits for all."""
    if processes == 1:
        return mine
    from accelerate.utils import broadcast_object_list

    word = [mine]
    broadcast_object_list(word)
    return bool(word[0])
