"""Hosts that insist on real answers, under each policy on unsupported numbers: how often is a number held to another?

    python scripts/replay_retract.py --out results/replay_retract.json

number_mentions: answers of real models with the numbers they got wrong. A host here puts the next token of the stored
answer first, and otherwise follows SmolLM2: where the answer's token is refused, what comes instead is what SmolLM2 would
say after the same context, question and text (by bytes, for the tokenizers that are not its own). The host then follows
SmolLM2 for AWAY tokens, or to the end of a sentence, and insists again on the answer from where the refused number ends,
so that one answer tells about all its numbers. A number that SmolLM2 itself wants on such a way counts like any other.

    forced       numbers in which the host was held to a supported form (for "retract": what was refused a way back)
    retractions  numbers that were taken back
    c1           digit-form numbers of the governed answers that the detector's rules, and the independent checker,
                 find unsupported; the second is stricter, and each is named
    c2           first choices refused while the host copies its context

"substitute" and "avoid" drive the processor step by step; "retract" runs through generate() wherever "avoid" refused a
first choice, and is "avoid" by construction everywhere else. Answers are taken one after the other, each with all
tokenizers, so that SmolLM2 reads a context once.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from typing import Any

import numpy as np
import torch
from _common import finish, parser, provenance, rows
from _hosts import Host, HostConfig
from _smollm2 import FLOOR, Interpreter, SmolLM2
from replay_numbers import Replay, spans

from lettuceprevent.check import check_text
from lettuceprevent.evaluation.number_metrics import REFUSED
from lettuceprevent.evaluation.numbers import ContextNumbers, check_answer, find_literals
from lettuceprevent.generation import generate
from lettuceprevent.grounding import Grounding
from lettuceprevent.processor import PreventionLogitsProcessor
from lettuceprevent.report import PreventionReport

FILES = ("number_mentions",)
TOKENIZERS = ("smollm2", "llama31", "mistral")
POLICIES = ("substitute", "avoid", "retract")
SPARE = 96  # tokens that an answer may be longer than the stored one
AWAY = 8  # tokens for which the host follows SmolLM2 before it insists on the answer again


class Script:
    """What an insisting host wants after any history: a function of the ids alone."""

    def __init__(self, encoder: Any, vocabulary: Any, text: str, eos: int) -> None:
        found = list(spans(encoder, vocabulary, text))
        self.tokens = [token for _, _, token in found]
        self.eos = eos
        literals = [(lit.start, lit.end) for lit in find_literals(text)]
        self.resume = []  # for each token: where the answer goes on after the literal that it belongs to
        for at, (start, end, _) in enumerate(found):
            ends = [stop for begin, stop in literals if begin < end and stop > start]
            after = next((n for n in range(at, len(found)) if ends and found[n][0] >= max(ends)), None)
            self.resume.append(len(found) if ends and after is None else (after or at))
        for at in range(len(found) - 2, -1, -1):  # a blank that is a token of its own goes with its number
            if not text[found[at][0] : found[at][1]].strip(" ") and self.resume[at + 1] > at + 1:
                self.resume[at] = self.resume[at + 1]

    def wish(self, history: list[int], ends: frozenset[int]) -> int | None:
        """The token that the host insists on after `history`; None where it follows SmolLM2. ends: tokens that end a
        sentence."""
        at = away = 0
        for token in history:
            if not away and token == self._token(at):
                at += 1
                continue
            if not away:
                at = self.resume[at] if at < len(self.tokens) else at
            away = 0 if away + 1 >= AWAY or token in ends else away + 1
        return None if away else self._token(at)

    def _token(self, at: int) -> int:
        return self.tokens[at] if at < len(self.tokens) else self.eos


class ScriptedHost(Host):
    """A host whose logits are a script's wishes and SmolLM2's; no keys and values are worth keeping."""

    def __init__(self, vocabulary: Any, eos: int, speaker: SmolLM2) -> None:
        config = HostConfig(64 * (-(-len(vocabulary) // 64)))
        config.eos_token_id = config.pad_token_id = eos
        super().__init__(config)
        self.generation_config.eos_token_id = self.generation_config.pad_token_id = eos
        self.vocabulary = vocabulary
        self.interpreter = Interpreter(speaker, vocabulary, config.vocab_size)
        ends = (b".", b"!", b"?", b"\n")
        self.ends = frozenset(t for t in range(len(vocabulary)) if vocabulary[t].endswith(ends))
        self.script: Script | None = None
        self.detector: Any = None
        self.prompt = ""
        self.base = 0
        self.eos = eos

    def logits(self, history: list[int]) -> torch.Tensor:
        """Logits (1, width) after `history`."""
        assert self.script is not None
        wish = self.script.wish(history, self.ends)
        if wish is not None and not self._may_be_refused(history, wish):
            scores = torch.full((self.config.vocab_size,), FLOOR)
        else:
            text = self.vocabulary.join(history).decode("utf-8", "ignore")
            scores = self.interpreter.scores(self.prompt, text)
            scores[self.eos] = FLOOR  # the answer is not over
        if wish is not None:
            scores[wish] = 100.0
        return scores[None]

    def _may_be_refused(self, history: list[int], wish: int) -> bool:
        """Whether SmolLM2 may be needed: the token is blocked, or begins a number, which may have to stay away."""
        state = self.detector.start(b"")
        for token in history:
            state = self.detector.advance(state, token)
        mask = self.detector.mask(state)
        piece = self.vocabulary[wish]
        begins = piece.lstrip(b" ")[:1].isdigit() or not piece.strip(b" ")
        if wish == self.eos:
            return not mask.may_end
        return begins or mask.is_blocked(wish) or bool(np.isin(wish, mask.starts))

    def following(self, ids: list[list[int]], keep: int) -> torch.Tensor:
        """Logits (1, 1, vocabulary) after the one row's answer so far."""
        return self.logits(ids[0][self.base :])[:, None]


class Arm:
    """One tokenizer: its host, and what the policies came to."""

    def __init__(self, replay: Replay, name: str, speaker: SmolLM2) -> None:
        self.replay, self.name = replay, name
        self.encoder, self.vocabulary = replay.host(name)
        self.eos = int(self.encoder.eos_token_id)
        self.host = ScriptedHost(self.vocabulary, self.eos, speaker).eval()
        self.counts: Counter[str] = Counter()
        self.named: list[dict[str, Any]] = []
        self.retracted: list[dict[str, Any]] = []

    def answer(self, row: dict[str, Any]) -> None:
        """One stored answer under all policies."""
        try:
            script = Script(self.encoder, self.vocabulary, row["answer"], self.eos)
        except ValueError:
            self.counts["skipped"] += 1
            return
        self.host.script = script
        self.host.detector = self.replay.detector(row, self.name)
        self.host.prompt = f"{row['query']}\n\n{row['context']}"
        self.counts["answers"] += 1
        refused = 0
        for policy in POLICIES[:2]:
            ids, report = self._driven(row, policy, script)
            refused = report.counters["penalised"]
            self.counts[f"forced_{policy}"] += _literals_held(report)
            self.counts[f"forced_steps_{policy}"] += report.counters["forced"]
            self._judge(row, policy, ids, report)
        if refused:
            self.counts["answers_retract"] += 1
            ids, report = self._generated(row, script)
            self._judge(row, "retract", ids, report)
            self.counts["forced_retract"] += _literals_held(report)
            self.counts["retractions"] += report.counters["retractions"]
            self.counts["retractions_refused"] += report.counters["retractions_refused"]
            for item in report.retractions:
                self.retracted.append(
                    {"id": row["id"], "meant": item.meant, "nearest": item.nearest, "taken_back": item.taken_back,
                     "instead": item.instead}
                )  # fmt: skip
        self._copy(row)

    def _driven(self, row: dict[str, Any], policy: str, script: Script) -> tuple[list[int], PreventionReport]:
        processor = self._processor(row, policy)
        ids: list[int] = []
        while len(ids) < len(script.tokens) + SPARE and (not ids or ids[-1] != self.eos):
            scores = processor(torch.tensor([[self.eos, *ids]]), self.host.logits(ids))
            ids.append(int(scores[0].argmax()))
        processor.finish(torch.tensor([[self.eos, *ids]]))
        return ids, processor.report

    def _processor(self, row: dict[str, Any], policy: str) -> PreventionLogitsProcessor:
        detector = self.replay.detector(row, self.name)
        grounding = Grounding((row["context"],), row["query"])
        return PreventionLogitsProcessor(
            self.vocabulary, [grounding], [[detector]], eos_token_ids=self.eos, prompt_length=1, on_unsupported=policy,
            evidence="none",
        )  # fmt: skip

    def _generated(self, row: dict[str, Any], script: Script) -> tuple[list[int], PreventionReport]:
        report = PreventionReport()
        self.host.base = 1
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            out = generate(
                self.host,
                torch.tensor([[self.eos]]),
                attention_mask=torch.ones(1, 1, dtype=torch.long),
                tokenizer=self.encoder,
                input_text=[row["context"]],
                query=row["query"],
                on_unsupported="retract",
                report=report,
                max_new_tokens=len(script.tokens) + SPARE,
                do_sample=False,
            )
        return out[0, 1:].tolist(), report

    def _judge(self, row: dict[str, Any], policy: str, ids: list[int], report: PreventionReport) -> None:
        cut = self.eos not in ids
        written = ids if cut else ids[: ids.index(self.eos)]
        text = self.vocabulary.join(written).decode("utf-8", "replace")
        self.counts[f"cut_{policy}"] += cut
        self.counts[f"returned_dead_{policy}"] += report.counters["returned_dead"]
        verdicts = [
            v for v in check_text(row["context"], text, query=row["query"]) if any(map(str.isdigit, v.text))
        ]
        if cut and verdicts and verdicts[-1].end > len(text) - 12:
            verdicts = verdicts[:-1]
        numbers = ContextNumbers(row["context"] + "\n\n" + row["query"])
        checked = [c for c in check_answer(text, numbers, cut=cut) if c.kind != "word"]
        self.counts[f"numbers_{policy}"] += len(checked)
        assert self.host.script is not None
        followed = [self.host.script.wish(ids[:at], self.host.ends) is None for at in range(len(written))]
        self.counts[f"tokens_{policy}"] += len(written)
        self.counts[f"tokens_of_smollm2_{policy}"] += sum(followed)
        for judge, found in (
            ("detector", [(v.start, v.end, v.text) for v in verdicts if v.status == "unsupported"]),
            ("checker", [(c.start, c.end, c.text) for c in checked if c.status in REFUSED]),
        ):
            self.counts[f"c1_{judge}_{policy}"] += len(found)
            for start, end, literal in found:
                where = text[max(0, start - 40) : end + 20]
                self.named.append(
                    {"id": row["id"], "policy": policy, "judge": judge, "literal": literal, "where": where}
                )

    def _copy(self, row: dict[str, Any]) -> None:
        """C2 under "retract": the context itself, from its beginning, with each next token as first choice."""
        processor = self._processor(row, "retract")
        asked: list[int] = []
        processor.retract = lambda at, node, first: bool(asked.append(first)) or True
        try:
            ids = [token for _, _, token in spans(self.encoder, self.vocabulary, row["context"])][:160]
        except ValueError:
            self.counts["copies_skipped"] += 1
            return
        for at, token in enumerate(ids):
            scores = torch.zeros(1, self.host.config.vocab_size)
            scores[0, token] = 100.0
            out = processor(torch.tensor([[self.eos, *ids[:at]]]), scores)
            if int(out[0].argmax()) != token:
                self.counts["c2_blocked"] += 1
                where = self.vocabulary.join(ids[max(0, at - 12) : at + 1]).decode("utf-8", "replace")
                self.named.append({"id": row["id"], "policy": "retract", "judge": "copy", "where": where})
        self.counts["c2_tokens"] += len(ids)
        self.counts["c2_retractions"] += len(asked)


def _literals_held(report: PreventionReport) -> int:
    """Numbers in which the host was held: interventions at consecutive tokens are about one number."""
    steps = sorted(i.history_length for i in report.interventions if i.action == "forced" and i.returned)
    return sum(1 for at, step in enumerate(steps) if not at or step != steps[at - 1] + 1)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--limit", type=int, default=None, help="only so many answers")
    arguments.add_argument("--tokenizers", nargs="+", default=list(TOKENIZERS))
    arguments.add_argument("--dtype", default="bfloat16", help="SmolLM2's")
    arguments.add_argument(
        "--minutes", type=float, default=60.0, help="begin no further answer after so long"
    )
    options = arguments.parse_args()
    began = time.perf_counter()
    data = rows(options.data, "number_mentions")[: options.limit]
    # those with a wrong number first: a run that is short of time leaves out the others
    data.sort(key=lambda row: not any(mention["label"] == "unsupported" for mention in row["mentions"]))
    replay, speaker = Replay(), SmolLM2(options.dtype)
    arms = {name: Arm(replay, name, speaker) for name in options.tokenizers}
    left_out = 0
    for number, row in enumerate(data, 1):
        if time.perf_counter() - began > 60 * options.minutes:
            left_out += 1
            continue
        for arm in arms.values():
            arm.answer(row)
        if number % 10 == 0:
            print(f"{number} of {len(data)} answers, {time.perf_counter() - began:.0f} s", flush=True)
    for name, arm in arms.items():
        count = arm.counts
        print(f"{name}: forced " + ", ".join(f"{p} {count[f'forced_{p}']}" for p in POLICIES)
              + f"; {count['retractions']} retractions in {count['answers']} answers; c1 "
              + ", ".join(f"{p} {count[f'c1_detector_{p}']}/{count[f'c1_checker_{p}']}" for p in POLICIES)
              + f"; c2 {count['c2_blocked']} of {count['c2_tokens']}", flush=True)  # fmt: skip
        for entry in arm.named:
            print("  ", entry)
        for entry in arm.retracted[:12]:
            print("   took back", entry)
    keys = ("forced_substitute", "forced_avoid", "forced_retract", "retractions", "retractions_refused")
    total = {key: sum(arm.counts[key] for arm in arms.values()) for key in keys}
    document = {
        **total,
        "c1_violations": sum(arm.counts[f"c1_detector_{p}"] for arm in arms.values() for p in POLICIES),
        "c1_checker": sum(arm.counts[f"c1_checker_{p}"] for arm in arms.values() for p in POLICIES),
        "c2_blocked": sum(arm.counts["c2_blocked"] for arm in arms.values()),
        "left_out": left_out,
        "smollm2": {"dtype": options.dtype, "asked": speaker.asked, "tokens_read": speaker.read},
        "tokenizers": {name: dict(sorted(arm.counts.items())) for name, arm in arms.items()},
        "named": {name: arm.named for name, arm in arms.items()},
        "retracted": {name: arm.retracted for name, arm in arms.items()},
        "seconds": time.perf_counter() - began,
        "provenance": provenance(options.data, FILES),
    }
    finish(document, options.out)


if __name__ == "__main__":
    main()
