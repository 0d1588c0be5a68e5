"""Hosts that insist on real answers, under each policy on unsupported numbers: how often is a number held to another?

    python scripts/replay_retract.py --lines replay_retract.jsonl --out results/replay_retract.json

number_mentions: answers of real models with the numbers they got wrong. A host here puts the next token of the stored
answer first, and otherwise follows SmolLM2: all its other scores are SmolLM2's logits after the same context, question
and text (by bytes, for the tokenizers that are not its own). The rule where the answer's token is refused:

    1. Whatever comes instead, the host has left the answer; it now follows SmolLM2 greedily, and insists on nothing.
    2. It does so until AWAY tokens have come since it left, or one that ends a sentence.
    3. Then it insists again, on the answer from where the refused number ends, so that one answer tells about all its
       numbers. A lone blank before a number goes with it. Until the answer is over SmolLM2 may not end it (`would_end`
       counts how often it wanted to).

A number that SmolLM2 itself wants on such a way counts like any other. SmolLM2 is asked only where its logits can
matter: off the answer, where the answer's token is blocked, and where one that could begin a number comes so soon
after going back that it may have to stay away.

    forced       numbers in which the host was held to a supported form (for "retract": what was refused a way back)
    retractions  numbers that were taken back; `retractions_refused`: those that were not, for there were too many
    c1           digit-form numbers of the governed answers that the detector's rules, and the independent checker,
                 find unsupported; the second is stricter, and each is named
    c2           first choices refused while the host copies its context
    left         places where a host left its answer: before numbers of it that the checker finds unsupported, before
                 others (over-blocking), and where no number stands
    off          tokens written off the answer, of `tokens`; `early`: answers ended before the stored one was over;
                 `cut`: answers that reached their limit, SPARE tokens more than the stored one has

"substitute" and "avoid" drive the processor step by step; "retract" runs through generate(), on all answers: where
"avoid" refused nothing it must write the same ids (`differs`). Answers to one prompt follow each other, each with all
tokenizers, so that SmolLM2 reads a context once. Lines are written as answers are done; a run that was stopped, or was
out of --minutes, goes on with the same --lines, and the document is about all lines there are.
"""

from __future__ import annotations

import json
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from _common import finish, parser, provenance, rows
from _insisting import AWAY, Script, ScriptedHost
from _smollm2 import SmolLM2
from replay_numbers import Replay, spans

from lettuceprevent.check import check_text
from lettuceprevent.evaluation.number_metrics import REFUSED
from lettuceprevent.evaluation.numbers import check_answer
from lettuceprevent.generation import generate
from lettuceprevent.grounding import Grounding
from lettuceprevent.processor import PreventionLogitsProcessor
from lettuceprevent.report import PreventionReport

FILES = ("number_mentions",)
TOKENIZERS = ("smollm2", "llama31", "mistral")
POLICIES = ("substitute", "avoid", "retract")
SPARE = 96  # tokens that an answer may be longer than the stored one


class Arm:
    """One tokenizer: its host, and what the policies come to in an answer."""

    def __init__(self, replay: Replay, name: str, speaker: SmolLM2) -> None:
        self.replay, self.name = replay, name
        self.encoder, self.vocabulary = replay.host(name)
        self.eos = int(self.encoder.eos_token_id)
        self.host = ScriptedHost(self.vocabulary, self.eos, speaker).eval()
        marks = (b".", b"!", b"?", b"\n")
        self.ends = frozenset(
            t for t in range(len(self.vocabulary)) if self.vocabulary[t].rstrip(b" ").endswith(marks)
        )

    def answer(self, row: dict[str, Any]) -> dict[str, Any]:
        """One stored answer under all policies: counts, what is named, and what was taken back."""
        self.counts: Counter[str] = Counter()
        self.named: list[dict[str, Any]] = []
        retracted: list[dict[str, Any]] = []
        try:
            script = Script(self.encoder, self.vocabulary, row["answer"], self.eos, self.ends)
        except ValueError:
            return {"counts": {"skipped": 1}, "named": [], "retracted": []}
        self.counts["answers"] += 1
        written = {}
        for policy in POLICIES:
            self.host.begin(
                script, self.replay.detector(row, self.name), f"{row['query']}\n\n{row['context']}"
            )
            if policy == "retract":
                ids, report = self._generated(row, script)
                self.counts["retractions"] += report.counters["retractions"]
                self.counts["retractions_refused"] += report.counters["retractions_refused"]
                retracted += [
                    {"meant": item.meant, "nearest": item.nearest, "taken_back": item.taken_back, "instead": item.instead}
                    for item in report.retractions
                ]  # fmt: skip
            else:
                ids, report = self._driven(row, policy, script)
            written[policy] = ids
            self._judge(row, policy, ids, report)
        if not self.counts["penalised_avoid"]:
            self.counts["nothing_refused"] += 1
            self.counts["differs"] += written["avoid"] != written["retract"]
        self._copy(row)
        return {"counts": dict(sorted(self.counts.items())), "named": self.named, "retracted": retracted}

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
        script = self.host.script
        place = script.place(written)
        numbers = self.replay.numbers(row)
        verdicts = [
            v for v in check_text(row["context"], text, query=row["query"]) if any(map(str.isdigit, v.text))
        ]
        if cut and verdicts and verdicts[-1].end > len(text) - 12:
            verdicts = verdicts[:-1]
        checked = [c for c in check_answer(text, numbers, cut=cut) if c.kind != "word"]
        found = {
            "forced": _literals_held(report),
            "forced_steps": report.counters["forced"],
            "penalised": report.counters["penalised"],
            "returned_dead": report.counters["returned_dead"],
            "cut": cut,
            "early": not cut and place.at < len(script.tokens),
            "numbers": len(checked),
            "tokens": len(written),
            "off": place.off,
            "would_end": self.host.would_end,
        }
        stored = {c.start: c.status in REFUSED for c in check_answer(row["answer"], numbers)}
        for at in place.left:
            start = script.literal[at] if at < len(script.tokens) else None
            kind = "elsewhere" if start is None else "unsupported" if stored.get(start) else "other"
            found[f"left_{kind}"] = found.get(f"left_{kind}", 0) + 1
        for judge, wrong in (
            ("detector", [(v.start, v.end, v.text) for v in verdicts if v.status == "unsupported"]),
            ("checker", [(c.start, c.end, c.text) for c in checked if c.status in REFUSED]),
        ):
            found[f"c1_{judge}"] = len(wrong)
            for start, end, literal in wrong:
                where = text[max(0, start - 40) : end + 20]
                self.named.append({"policy": policy, "judge": judge, "literal": literal, "where": where})
        self.counts.update({f"{name}_{policy}": int(value) for name, value in found.items()})

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
                self.named.append({"policy": "retract", "judge": "copy", "where": where})
        self.counts["c2_tokens"] += len(ids)
        self.counts["c2_retractions"] += len(asked)


def _literals_held(report: PreventionReport) -> int:
    """Numbers in which the host was held: interventions at consecutive tokens are about one number."""
    steps = sorted(i.history_length for i in report.interventions if i.action == "forced" and i.returned)
    return sum(1 for at, step in enumerate(steps) if not at or step != steps[at - 1] + 1)


def ordered(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers to one prompt together, prompts with a wrong number first: a run short of time leaves out the others."""
    wrong: dict[tuple[str, str], bool] = {}  # in the order in which the prompts come
    for row in data:
        key = row["context"], row["query"]
        wrong[key] = wrong.get(key, False) or any(m["label"] == "unsupported" for m in row["mentions"])
    order = {key: at for at, key in enumerate(sorted(wrong, key=lambda key: not wrong[key]))}
    return sorted(data, key=lambda row: order[row["context"], row["query"]])


def earlier(path: Path | None, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """The whole lines of an earlier run with the same settings."""
    if path is None or not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:  # the run was stopped while it wrote this one
            continue
        if lines[-1]["settings"] != settings:
            got = lines[-1]["settings"]
            raise SystemExit(f"{path}: expected lines of a run with {settings}, got {got}")
    return lines


def run(options: Any, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of all answers that were done, now or earlier."""
    settings = {"dtype": options.dtype, "away": AWAY, "tokenizers": options.tokenizers}
    commit = provenance(options.data, FILES)["commit"]
    wanted = {row["id"] for row in data}
    lines = earlier(options.lines, settings)
    if options.lines is not None:
        options.lines.write_text("".join(_line(line) for line in lines), encoding="utf-8")
    lines = [line for line in lines if line["id"] in wanted]
    done = {line["id"] for line in lines}
    began = time.perf_counter()
    replay, speaker = Replay(), SmolLM2(options.dtype)
    arms = {name: Arm(replay, name, speaker) for name in options.tokenizers}
    for row in data:
        if row["id"] in done:
            continue
        if time.perf_counter() - began > 60 * options.minutes:
            break
        started, speaker.asked, speaker.worked_out, speaker.read = time.perf_counter(), 0, 0, 0
        found = {name: arm.answer(row) for name, arm in arms.items()}
        asked = {"asked": speaker.asked, "worked_out": speaker.worked_out, "read": speaker.read}
        lines.append(
            {"id": row["id"], "settings": settings, "commit": commit, "seconds": time.perf_counter() - started,
             "smollm2": asked, "tokenizers": found}
        )  # fmt: skip
        if options.lines is not None:
            with options.lines.open("a", encoding="utf-8") as file:
                file.write(_line(lines[-1]))
        if len(lines) % 10 == 0:
            print(f"{len(lines)} of {len(data)} answers, {time.perf_counter() - began:.0f} s", flush=True)
    return lines


def _line(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False) + "\n"


def summarised(lines: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """Sums over the lines, and everything that is named."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    named: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    retracted: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    asked: Counter[str] = Counter()
    for line in lines:
        asked.update(line["smollm2"])
        for name in names:
            found = line["tokenizers"][name]
            counts[name].update(found["counts"])
            named[name] += [{"id": line["id"], **entry} for entry in found["named"]]
            retracted[name] += [{"id": line["id"], **entry} for entry in found["retracted"]]

    def total(*keys: str) -> int:
        return sum(count[key] for count in counts.values() for key in keys)

    alone = ("forced_substitute", "forced_avoid", "forced_retract", "retractions", "retractions_refused")
    return {
        **{key: total(key) for key in alone},
        "c1_violations": total(*(f"c1_detector_{policy}" for policy in POLICIES)),
        "c1_checker": total(*(f"c1_checker_{policy}" for policy in POLICIES)),
        "c2_blocked": total("c2_blocked"),
        "differs": total("differs"),
        "answers": len(lines),
        "smollm2": dict(asked),
        "tokenizers": {name: dict(sorted(count.items())) for name, count in counts.items()},
        "named": named,
        "retracted": retracted,
        "seconds": sum(line["seconds"] for line in lines),
        "commits": sorted({line["commit"] for line in lines}),
    }


def show(document: dict[str, Any]) -> None:
    """Figures and names for people."""
    for name, values in document["tokenizers"].items():
        count = Counter(values)

        def each(key: str, count: Counter[str] = count) -> str:
            return " / ".join(str(count[f"{key}_{policy}"]) for policy in POLICIES)

        print(f"\n{name}, {count['answers']} answers ({' / '.join(POLICIES)}):")
        print(
            f"  forced {each('forced')}; {count['retractions']} retractions, {count['retractions_refused']} refused"
        )
        print(f"  c1 by the detector {each('c1_detector')}, by the checker {each('c1_checker')}; "
              f"c2 {count['c2_blocked']} of {count['c2_tokens']}")  # fmt: skip
        print(f"  left at an unsupported number {each('left_unsupported')}, at another {each('left_other')}, "
              f"elsewhere {each('left_elsewhere')}")  # fmt: skip
        print(
            f"  tokens {each('tokens')}, off the answer {each('off')}, SmolLM2 would end {each('would_end')}"
        )
        print(f"  ended early {each('early')}, cut {each('cut')}; nothing refused in {count['nothing_refused']} answers, "
              f"different there {count['differs']}")  # fmt: skip
        for entry in document["named"][name]:
            print("  ", entry)
        for entry in document["retracted"][name][:12]:
            print("   took back", entry)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--limit", type=int, default=None, help="only so many answers")
    arguments.add_argument("--tokenizers", nargs="+", default=list(TOKENIZERS))
    arguments.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="SmolLM2's")
    arguments.add_argument(
        "--minutes", type=float, default=60.0, help="begin no further answer after so long"
    )
    arguments.add_argument("--lines", type=Path, help="answers, one a line, to go on from")
    options = arguments.parse_args()
    data = ordered(rows(options.data, "number_mentions"))[: options.limit]
    document = summarised(run(options, data), options.tokenizers)
    document["left_out"] = len(data) - document["answers"]
    document["dtype"] = options.dtype
    show(document)
    finish({**document, "provenance": provenance(options.data, FILES)}, options.out)


if __name__ == "__main__":
    main()
