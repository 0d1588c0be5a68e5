"""`lettuceprevent evaluate`: arms × prompts, one answer after the other, each written before the next begins.

Contract: what is generated is a function of (host, prompt, arm, decoding, seed) and of the batch a prompt is
in, never of what was answered before; so a run that is killed and taken up again gives the lines of one that
was not. Arms that differ in anything but prevention are refused, also against the lines that are already
there; so are prompts that would come in another batch than before.
Several processes (`accelerate launch`) share the work by batch; each writes a shard of its own.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ..console import say
from ..generation import generate
from ..grounding import Grounding
from ..host_cache import cache_name, cache_of
from ..hosts import has_template, prompt_text
from ..probe import host_hash, weights_hash
from ..report import PreventionReport
from ..version import VERSION
from ..vocabulary import Vocabulary
from .arms import UNKNOWN, Arm, MatchError, OneRun, jsonable, require_matched
from .prompts import Prompt, Prompts
from .runs import FORMAT, Line, Run, ShardWriter, shard_name, text_hash

TOP = 5  # how many of the likeliest tokens a line keeps per place


_NOT_DECODING = frozenset({"transformers_version", "_from_model_config"})  # of a generation config


class EvaluatedHost:
    """A decoder-only model with its tokenizer.

    name: what lines call it, not necessarily where it was loaded from.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        if model.config.is_encoder_decoder:
            raise ValueError("host: expected a decoder-only model, got an encoder-decoder")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.vocabulary = Vocabulary.for_tokenizer(tokenizer)
        self.name = name
        tokenizer.padding_side = "left"
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        eos = model.generation_config.eos_token_id
        self.ends = frozenset([eos] if isinstance(eos, int) else eos or [])
        self._accepted = frozenset(inspect.signature(model.forward).parameters)
        self._read: tuple[str, Any, Any] | None = None  # the last prompt's text, cache and last logits

    def described(self) -> dict[str, Any]:
        """The field `host` of a line. shape, weights: hashes, the same wherever the host lies, whatever it is called
        and in every precision; generation: what its generation config sets, which holds where a call does not."""
        config = self.model.generation_config.to_diff_dict()
        return {
            "id": self.name,
            "revision": getattr(self.model.config, "_commit_hash", None),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": self.model.device.type,
            "shape": host_hash(self.model.config),
            "weights": _weights(self.model),
            "generation": jsonable({key: config[key] for key in sorted(config) if key not in _NOT_DECODING}),
        }

    def prompt_text(self, prompt: Prompt) -> str:
        """Query and context as one user turn; the host is shown all that supports a number."""
        return prompt_text(self.tokenizer, f"{prompt.query.strip()}\n\n{prompt.text.strip()}".strip())

    def encode(self, texts: list[str]) -> dict[str, torch.Tensor]:
        """Ids and attention mask (rows, width), left-padded, on the host's device."""
        encoded = self.tokenizer(
            texts, return_tensors="pt", padding=True, add_special_tokens=not has_template(self.tokenizer)
        )
        return {name: encoded[name].to(self.model.device) for name in ("input_ids", "attention_mask")}

    def length(self, prompt: Prompt) -> int:
        """Ids of the prompt."""
        return int(self.encode([self.prompt_text(prompt)])["input_ids"].shape[1])

    @torch.inference_mode()
    def view(self, prompt: str, ids: Sequence[int]) -> dict[str, list[Any]]:
        """What the host thinks of a finished answer, without prevention: the fields `log_probs`,
        `top_probs`, `top` of a line, by one pass over `ids` after the prompt's cached one."""
        if not ids:
            return {"log_probs": [], "top_probs": [], "top": []}
        cache, last = self._prefix(prompt)
        answer = torch.tensor([list(ids)], device=self.model.device)
        logits = [last]
        if len(ids) > 1:
            given = {cache_name(self.model): copy.deepcopy(cache)}
            out = self.model(input_ids=answer[:, :-1], use_cache=True, **given)
            logits.append(out.logits[0])
        spread = torch.log_softmax(torch.cat(logits).float(), -1)
        probabilities, tokens = spread.exp().topk(min(TOP, spread.shape[-1]), -1)
        chosen = spread.gather(1, answer[0, :, None])[:, 0]
        return {
            "log_probs": [round(max(value, -1e4), 5) for value in chosen.tolist()],
            "top_probs": [round(row[0], 6) for row in probabilities.tolist()],
            "top": [
                [[token, self._piece(token), round(p, 5)] for token, p in zip(row, each, strict=True)]
                for row, each in zip(tokens.tolist(), probabilities.tolist(), strict=True)
            ],
        }

    def _prefix(self, prompt: str) -> tuple[Any, torch.Tensor]:
        """The prompt's cache and the logits (1, V) after it; kept for the prompt's other arms."""
        if self._read is None or self._read[0] != prompt:
            self._read = None
            ids = self.encode([prompt])["input_ids"]
            few = {"logits_to_keep": 1} if "logits_to_keep" in self._accepted else {}
            out = self.model(input_ids=ids, use_cache=True, **few)
            self._read = (prompt, cache_of(out), out.logits[0, -1:])
        return self._read[1], self._read[2]

    def _piece(self, token: int) -> str:
        return self.vocabulary[token].decode("utf-8", errors="replace")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each id on its own."""
        return [self._piece(token) for token in ids]

    def text(self, ids: Sequence[int]) -> str:
        """The text of an answer; special tokens have none."""
        return self.vocabulary.join(ids).decode("utf-8", errors="replace")


def versions() -> dict[str, str]:
    """The field `versions` of a line."""
    found = {"lettuceprevent": VERSION, "python": platform.python_version()}
    for package in ("torch", "transformers", "tokenizers"):
        found[package] = metadata.version(package)
    return found


def evaluate(
    host: EvaluatedHost,
    prompts: Prompts,
    arms: Sequence[Arm],
    out: Path,
    *,
    decoding: Mapping[str, Any],
    seed: int = 0,
    batch: int = 1,
    process: int = 0,
    processes: int = 1,
    stop_after: float | None = None,
    say: Callable[[str], None] = say,
) -> int:
    """Answer what the run in the folder `out` lacks; returns how many answers are still missing.

    decoding: arguments of transformers' generate(), max_new_tokens among them. batch: prompts answered
    together. process, processes: this process's number and how many there are. stop_after: seconds after which
    no new batch is begun.
    """
    if batch < 1 or not 0 <= process < processes:
        raise ValueError(
            f"expected batch >= 1 and 0 <= process < processes, got {batch}, {process}, {processes}"
        )
    require_matched(arms, decoding)
    if (decoding.get("num_return_sequences") or 1) != 1:
        raise ValueError(f"expected one answer per prompt, got {decoding['num_return_sequences']}")
    # All arms agree; what they agree on may be written beside an arm.
    settings = {**decoding, **arms[0].decoding}
    shared = {
        "decoding": {**jsonable(settings), "seed": seed, "batch": batch},
        "host": host.described(),
        "versions": versions(),
        "data": {"source": prompts.source, "sha256": prompts.sha256},
    }
    shard = shard_name(out, process)
    with ShardWriter(shard) as writer:
        if writer.cut:
            say(f"{shard.name}: cut {writer.cut} bytes of a line that a kill left unfinished")
        with Run(out) as run:
            groups = [prompts.prompts[at : at + batch] for at in range(0, len(prompts.prompts), batch)]
            _require_same(run, shared, arms, groups)
            work = [
                (group, arm)
                for at, group in enumerate(groups)
                if at % processes == process
                for arm in _turned(arms, at)
            ]
            left = [
                (group, arm, [p for p in group if (p.id, arm.name) not in run])
                for group, arm in work
                if any((p.id, arm.name) not in run for p in group)
            ]
        done = sum(len(group) for group, _ in work) - sum(len(missing) for *_, missing in left)
        progress = _Progress(done, sum(len(missing) for *_, missing in left), say)
        for group, arm, missing in left:
            lines = _answers(host, group, arm, settings, seed)
            wanted = {prompt.id for prompt in missing}
            writer.append({**line, **shared} for line in lines if line["prompt"]["id"] in wanted)
            progress.add(len(missing), arm.name)
            if stop_after is not None and progress.seconds > stop_after:
                break
        return progress.left


def _weights(model: Any) -> str:
    try:
        return weights_hash(model) or UNKNOWN
    except TypeError:  # decoder layers that are not where others have them
        return UNKNOWN


def _turned(arms: Sequence[Arm], turn: int) -> list[Arm]:
    """The arms, another one first each time: none always runs on a cold or a warm machine."""
    at = turn % len(arms)
    return [*arms[at:], *arms[:at]]


def _require_same(
    run: Run, shared: Mapping[str, Any], arms: Sequence[Arm], groups: Sequence[Sequence[Prompt]]
) -> None:
    """Raise MatchError where an answer that is there was made otherwise than those to come."""
    one = OneRun(shared, {arm.name: jsonable(arm.prevention or {}) for arm in arms}, "this call")
    batches = {prompt.id: batch_hash(group) for group in groups for prompt in group}
    for line in run:
        found = one.differences(line)
        prompt = line["prompt"]
        before = prompt.get("batch", UNKNOWN)
        now = batches.get(prompt["id"], before)  # a prompt that this call leaves alone
        if before not in (UNKNOWN, now):
            found.append(
                f"{prompt['id']!r} is in another batch of prompts (--limit and the like choose them)"
            )
        if found:
            raise MatchError(f"the run cannot be taken up again, its answers differ: {'; '.join(found)}")


def _answers(
    host: EvaluatedHost, group: Sequence[Prompt], arm: Arm, settings: Mapping[str, Any], seed: int
) -> list[Line]:
    """One line per prompt of a batch, without what all lines share."""
    texts = [host.prompt_text(prompt) for prompt in group]
    inputs: dict[str, Any] = host.encode(texts)
    width = inputs["input_ids"].shape[1]
    report = PreventionReport()
    options: dict[str, Any] = {"detector_type": None}
    if arm.prevention is not None:
        options = {
            **arm.prevention,
            "input_text": [Grounding(prompt.passages, prompt.query) for prompt in group],
            "report": report,
        }
    torch.manual_seed(int(text_hash(f"{seed}\0{_ids(group)}"), 16) >> 1)
    began = time.perf_counter()
    with torch.inference_mode():
        out = generate(host.model, **inputs, **settings, tokenizer=host.tokenizer, **options)
        rows = out[:, width:].tolist()
    seconds = time.perf_counter() - began
    answers = [_to_end(row, host.ends) for row in rows]
    timings: dict[str, Any] = {
        "seconds": round(seconds / len(group), 6),
        "batch": len(group),
        "steps": max(map(len, answers)),
        "latency": None,
        "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    lines = []
    for at, (prompt, text) in enumerate(zip(group, texts, strict=True)):
        ids = answers[at]
        told, timings["latency"] = (None, None)
        if arm.prevention is not None:
            told, timings["latency"] = _report(report, at, len(group), int(settings.get("num_beams") or 1))
        lines.append(
            {
                "format": FORMAT,
                "prompt": {
                    "id": prompt.id,
                    "sha256": text_hash(text),
                    "batch": batch_hash(group),
                    "task": prompt.task,
                    "passages": list(prompt.passages),
                    "query": prompt.query,
                    "text": text,
                    "tokens": int(inputs["attention_mask"][at].sum()),
                },
                "arm": arm.name,
                "prevention": None if arm.prevention is None else jsonable(arm.prevention),
                "answer": {
                    "text": host.text(ids),
                    "ids": ids,
                    "pieces": host.pieces(ids),
                    "cut": not ids or ids[-1] not in host.ends,
                    **host.view(text, ids),
                },
                "report": told,
                "timings": dict(timings),
            }
        )
    return lines


def batch_hash(group: Sequence[Prompt]) -> str:
    """The field `prompt.batch` of a line: which prompts were answered together, in order."""
    return text_hash(str(_ids(group)))


def _ids(group: Sequence[Prompt]) -> list[str]:
    return [prompt.id for prompt in group]


def _to_end(ids: list[int], ends: frozenset[int]) -> list[int]:
    """A row without padding: up to its end token, that included."""
    end = next((at for at, token in enumerate(ids) if token in ends), len(ids) - 1)
    return ids[: end + 1]


def _report(
    report: PreventionReport, row: int, rows: int, beams: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row's share of the batch's report, and the latency."""
    told: dict[str, Any] = json.loads(report.to_json(indent=None))
    latency: dict[str, Any] = told.pop("latency")
    if rows > 1:
        told["batch_rows"] = rows
        told["interventions"] = [item for item in told["interventions"] if item["row"] // beams == row]
        told["retractions"] = [item for item in told["retractions"] if item["row"] // beams == row]
        told["sequences"] = [item for item in told["sequences"] if item["row"] == row]
    return told, latency


class _Progress:
    """How far it is, and how long the rest will take, said after each batch but at most once a second."""

    def __init__(self, before: int, todo: int, say: Callable[[str], None]) -> None:
        self.done, self.left, self._all = 0, todo, before + todo
        self._say, self._began, self._said = say, time.monotonic(), 0.0
        say(f"{self._all} answers, {before} are there, {todo} to come")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def add(self, answers: int, arm: str) -> None:
        """Count answers that are on the disk."""
        self.done += answers
        self.left -= answers
        now = self.seconds
        if self.left and now - self._said < 1:
            return
        self._said = now
        each = now / self.done
        self._say(
            f"{self._all - self.left}/{self._all} ({arm}), {each:.1f} s an answer, "
            f"{_duration(each * self.left)} left"
        )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def launched() -> tuple[int, int, int]:
    """(number, count, number on this machine) of the processes that `accelerate launch`, torchrun or mpirun
    started; (0, 1, 0) without any of them."""
    ours = (
        ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"),
        ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"),
        ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
    )
    number, count, local = (
        next((int(os.environ[name]) for name in names if name in os.environ), default)
        for names, default in zip(ours, (0, 1, 0), strict=True)
    )
    return number, count, local
