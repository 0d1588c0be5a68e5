"""Hosts that insist on real answers, under each policy on unsupported numbers: how often is a number held to another?

    python scripts/replay_retract.py --out results/replay_retract.json

number_mentions: answers of real models with the numbers they got wrong. A host here puts the next token of the stored
answer first. Where that is refused it would say what comes after the number instead, and goes on with the answer from
there, so that one answer tells about all its numbers; a host that is held inside a number wants out of it at every
token. This stand-in is used for all three tokenizers: a real model as the second choice costs a pass over the context
for every answer and says little here, because what is counted is the answer's own wish; `e2e_retract.py` has the real
model throughout.

    forced       numbers in which the host was held to a supported form (for "retract": what was refused a way back)
    retractions  numbers that were taken back
    c1           digit-form numbers of the governed answers that the detector's rules, and the independent checker,
                 find unsupported; the second is stricter, and each is named
    c2           first choices refused while the host copies its context

"substitute" and "avoid" drive the processor step by step; "retract" runs through generate() wherever "avoid" had to hold
a number, and is "avoid" by construction everywhere else.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from typing import Any

import torch
from _common import finish, parser, provenance, rows
from _hosts import Host, HostConfig
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
SPARE = 48  # tokens that an answer may be longer than the stored one
STUCK = 16  # tokens that are not the answer's, after which the host goes on with its next token


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

    def wishes(self, history: list[int]) -> tuple[int, int]:
        """First and second choice."""
        at = strange = 0
        for token in history:
            if token == self._token(at):
                at, strange = at + 1, 0
                continue
            aside = self.resume[at] if at < len(self.tokens) else at
            if token == self._token(aside):
                at, strange = aside + 1, 0
                continue
            at, strange = aside, strange + 1
            if strange % STUCK == 0:
                at += 1
        aside = self.resume[at] if at < len(self.tokens) else at
        return self._token(at), self._token(aside)

    def _token(self, at: int) -> int:
        return self.tokens[at] if at < len(self.tokens) else self.eos


class ScriptedHost(Host):
    """A host whose logits are a script's wishes; no keys and values are worth keeping."""

    def __init__(self, width: int, eos: int) -> None:
        config = HostConfig(width)
        config.eos_token_id = config.pad_token_id = eos
        super().__init__(config)
        self.generation_config.eos_token_id = self.generation_config.pad_token_id = eos
        self.script: Script | None = None
        self.base = 0
        self.words: list[int] = []

    def logits(self, history: list[int]) -> torch.Tensor:
        """Logits (1, width) after `history`."""
        assert self.script is not None
        scores = torch.zeros(1, self.config.vocab_size)
        first, second = self.script.wishes(history)
        scores[0, self.words] = 20.0
        scores[0, second] = 60.0
        scores[0, first] = 100.0
        return scores

    def following(self, ids: list[list[int]], keep: int) -> torch.Tensor:
        """Logits (1, 1, vocabulary) after the one row's answer so far."""
        return self.logits(ids[0][self.base :])[:, None]


class Arm:
    """One tokenizer: its host, and what the policies came to."""

    def __init__(self, replay: Replay, name: str) -> None:
        self.replay, self.name = replay, name
        self.encoder, self.vocabulary = replay.host(name)
        self.eos = int(self.encoder.eos_token_id)
        self.host = ScriptedHost(64 * (-(-len(self.vocabulary) // 64)), self.eos).eval()
        words = (" the", " some", " and", " it")
        self.host.words = [self.encoder.encode("so" + word, add_special_tokens=False)[-1] for word in words]
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
        self.counts["answers"] += 1
        held = 0
        for policy in POLICIES[:2]:
            ids, report = self._driven(row, policy, script)
            held = _literals_held(report)
            self.counts[f"forced_{policy}"] += held
            self.counts[f"forced_steps_{policy}"] += report.counters["forced"]
            self._judge(row, policy, ids, report)
        if held:
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
    arguments.add_argument(
        "--minutes", type=float, default=60.0, help="shared by the tokenizers; the rest is left out"
    )
    options = arguments.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    data = rows(options.data, "number_mentions")[: options.limit]
    # those with a wrong number first: a run that is short of time leaves out the others
    data.sort(key=lambda row: not any(mention["label"] == "unsupported" for mention in row["mentions"]))
    replay = Replay()
    arms = {}
    for number, name in enumerate(options.tokenizers):
        arms[name] = arm = Arm(replay, name)
        until = began + 60 * options.minutes * (number + 1) / len(options.tokenizers)
        for row in data:
            if time.perf_counter() > until:
                arm.counts["left_out"] += 1
                continue
            arm.answer(row)
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
        "fallback": "the stored answer after the number, for every tokenizer; no model",
        "tokenizers": {name: dict(sorted(arm.counts.items())) for name, arm in arms.items()},
        "named": {name: arm.named for name, arm in arms.items()},
        "retracted": {name: arm.retracted for name, arm in arms.items()},
        "seconds": time.perf_counter() - began,
        "provenance": provenance(options.data, FILES),
    }
    finish(document, options.out)


if __name__ == "__main__":
    main()
