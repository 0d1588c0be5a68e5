"""SmolLM2 under the policies on unsupported numbers, arms matched: does going back avoid substitutions, and at what cost?

    python scripts/e2e_retract.py --lines retract.jsonl --out results/e2e_retract.json
    python scripts/e2e_retract.py --summarise retract.jsonl --out results/e2e_retract.json

Prompts of three tasks (summary, question, data to text), contexts cut to --longest tokens, in left-padded batches; each
batch is answered greedily and sampled, plainly and under each policy, in an order that turns, from one shared prefill.
What a governed answer differs in comes from the policy alone: prompt, batch, seed and length are the same.

    unsupported    digit-form numbers that the independent checker refuses; an answer cut at the limit may end in one
    substitution   a supported digit-form number that stands where the host's first choice was refused: it covers the
                   token written at an intervention, or the place a literal was taken back from (`at`), or begins
                   within the NEAR tokens after it (`near`, which also catches "about 2021" for a refused "2023")
    perplexity     of the answers under the host, from its own logits before any processor: over all tokens of an arm,
                   and answer by answer against `avoid` (`paired`: nats per token, of the answers that differ; an
                   answer that ends early has no easy tokens at its end, which the first figure holds against it)
    time           seconds per written token of the longest row; `time_ratio` is to plain, the median over batches, with
                   `_prepared` the building of the detectors counts as well, `_pooled` is the ratio of the sums (which
                   one stalled batch decides), `busy_ratio` is of processor time, prepared. The shared prefill is in
                   no arm: ratios are of decoding alone, and of a whole batch, in which one row's way back makes all wait.
                   `steps_ratio_of_one_row`: tokens written, those taken back (`lost`) included, to tokens kept

Lines are written as answers come, so that a run that is stopped (--minutes) can be summarised, and goes on with the
first batch that is not whole when it is started again with the same --lines.
"""

from __future__ import annotations

import copy
import json
import math
import statistics
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from _common import finish, parser, provenance, rows

from lettuceprevent import retract
from lettuceprevent.assets import host_id
from lettuceprevent.evaluation.number_metrics import REFUSED
from lettuceprevent.evaluation.numbers import ContextNumbers, check_answer, find_literals
from lettuceprevent.evaluation.statistics import paired
from lettuceprevent.generation import generate
from lettuceprevent.report import PreventionReport
from lettuceprevent.vocabulary import Vocabulary

FILES = ("host_answers",)
TASKS = ("Summary", "QA", "Data2txt")
ARMS = ("plain", "substitute", "avoid", "retract")
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "top_k": 0},
}
NEAR = 3


class Host:
    """SmolLM2, its tokenizer, and answers in batches."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(host_id(), padding_side="left")
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.model = AutoModelForCausalLM.from_pretrained(host_id(), dtype=torch.float32).eval()
        self.vocabulary = Vocabulary.for_tokenizer(self.tokenizer)
        eos = self.model.generation_config.eos_token_id
        self.ends = {eos} if isinstance(eos, int) else set(eos)

    def prompts(self, batch: list[dict[str, Any]]) -> Any:
        """Ids and mask (rows, width) of query and context in the chat template."""
        texts = [
            self.tokenizer.apply_chat_template(
                [{"role": "user", "content": f"{row['query']}\n\n{row['context']}"}],
                tokenize=False,
                add_generation_prompt=True,
            )
            for row in batch
        ]
        return self.tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)

    def prefill(self, inputs: Any) -> Any:
        """Keys and values of all prompt tokens but the last."""
        import torch

        mask = inputs["attention_mask"][:, :-1]
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        with torch.no_grad():
            out = self.model(
                input_ids=inputs["input_ids"][:, :-1], attention_mask=mask, position_ids=positions, use_cache=True,
                logits_to_keep=1,
            )  # fmt: skip
        return retract._cache_of(out)

    def answer(
        self,
        batch: list[dict[str, Any]],
        inputs: Any,
        cache: Any,
        mode: str,
        arm: str,
        tokens: int,
        seed: int,
    ) -> list[dict[str, Any]]:
        """One answer per row of the batch."""
        import torch

        report = PreventionReport()
        options: dict[str, Any] = {
            **MODES[mode], "max_new_tokens": tokens, "return_dict_in_generate": True, "output_logits": True,
            "pad_token_id": self.tokenizer.pad_token_id, retract._cache_name(self.model): copy.deepcopy(cache),
            "input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"],
        }  # fmt: skip
        torch.manual_seed(seed)
        began, busy = time.perf_counter(), time.process_time()
        with torch.no_grad():
            if arm == "plain":
                out = self.model.generate(**options)
            else:
                out = generate(
                    self.model,
                    tokenizer=self.tokenizer,
                    input_text=[[row["context"]] for row in batch],
                    query=[row["query"] for row in batch],
                    on_unsupported=arm,
                    report=report,
                    **options,
                )
        seconds, busy = time.perf_counter() - began, time.process_time() - busy
        width = inputs["input_ids"].shape[1]
        found = []
        for index, row in enumerate(batch):
            ids = out.sequences[index, width:].tolist()
            end = next((at + 1 for at, token in enumerate(ids) if token in self.ends), len(ids))
            chosen = torch.stack([out.logits[at][index] for at in range(end)]).log_softmax(-1)
            nll = -float(chosen.gather(1, torch.tensor(ids[:end])[:, None]).sum())
            found.append(self._judged(row, index, ids[:end], report))
            found[-1].update(
                id=row["id"], task=row["task_type"], mode=mode, arm=arm, nll=nll, batch_seconds=seconds, batch_busy=busy,
                batch_steps=len(ids), batch_rows=len(batch), prepare=report.timings.prepare_ns / 1e9, first_row=not index,
            )  # fmt: skip
        return found

    def _judged(
        self, row: dict[str, Any], index: int, ids: list[int], report: PreventionReport
    ) -> dict[str, Any]:
        cut = ids[-1] not in self.ends
        written = ids if cut else ids[:-1]
        pieces = [self.vocabulary[token] for token in written]
        text = b"".join(pieces).decode("utf-8", "replace")
        starts = [len(b"".join(pieces[:at]).decode("utf-8", "ignore")) for at in range(len(pieces) + 1)]
        numbers = ContextNumbers(row["context"] + "\n\n" + row["query"])
        checked = [c for c in check_answer(text, numbers, cut=cut) if c.kind != "word"]
        steps = {
            item.history_length
            for item in report.interventions
            if item.row == index and item.returned and item.action not in ("retracted", "avoided")
        }
        places = {item.history_length for item in report.retractions if item.row == index}
        avoided = {
            i.history_length
            for i in report.interventions
            if i.row == index and i.returned and i.action == "avoided"
        }
        at, near = [], []
        for number in checked:
            if number.status != "supported":
                continue
            covers = [
                step
                for step in steps | places
                if step < len(written) and number.start < starts[step + 1] and number.end > starts[step]
            ]
            behind = [
                step
                for step in steps | places | avoided
                if step < len(written)
                and starts[step] <= number.start < starts[min(step + NEAR, len(written))]
            ]
            where = text[max(0, number.start - 40) : number.end + 10]
            if covers:
                at.append({"number": number.text, "where": where})
            elif behind:
                near.append({"number": number.text, "where": where})
        context = f"{row['context']}\n\n{row['query']}"
        return {
            "text": text,
            "tokens": len(ids),
            "cut": cut,
            "numbers": len(checked),
            "unsupported": [c.text for c in checked if c.status in REFUSED],
            "substituted_at": at,
            "substituted_near": near,
            "actions": dict(Counter(i.action for i in report.interventions if i.row == index)),
            "refused": int(report.counters["retractions_refused"]) if not index else 0,
            "dead": int(report.counters["returned_dead"]) if not index else 0,
            "lost": sum(
                1 + len(self.tokenizer.encode(item.taken_back, add_special_tokens=False))
                for item in report.retractions
                if item.row == index
            ),
            "retractions": [
                {
                    "before": text[max(0, starts[item.history_length] - 80) : starts[item.history_length]]
                    if item.history_length < len(starts)
                    else text[-80:],
                    "meant": item.meant,
                    "nearest": item.nearest,
                    "context": context[max(0, item.span[0] - 40) : item.span[1] + 40] if item.span else None,
                    "taken_back": item.taken_back,
                    "instead": item.instead,
                }
                for item in report.retractions
                if item.row == index
            ],
        }


def chosen(folder: Path, host: Host, count: int, longest: int) -> list[dict[str, Any]]:
    """`count` prompts, the tasks in turn, whose cut context holds at least three numbers."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    seen = set()
    for row in rows(folder, "host_answers"):
        key = row["context"], row["query"]
        task = row["task_type"]
        if key in seen or len(found[task]) >= -(-count // len(TASKS)):
            continue
        seen.add(key)
        ids = host.tokenizer.encode(row["context"], add_special_tokens=False)
        context = host.tokenizer.decode(ids[:longest], clean_up_tokenization_spaces=False)
        if len(ids) > longest:
            context = context[: context.rfind(" ")]
        if sum(any(c.isdigit() for c in literal.text) for literal in find_literals(context)) >= 3:
            found[task].append({**row, "context": context, "id": f"{task}-{len(found[task])}"})
    turns = zip(*(found[task] for task in TASKS), strict=False)
    return [row for turn in turns for row in turn][:count]


def summarised(lines: list[dict[str, Any]], options: Any) -> dict[str, Any]:
    """The document of a run, whole or partial: only prompts that every arm of a mode has answered."""
    by: dict[tuple[str, str], dict[str, dict[str, Any]]] = defaultdict(dict)
    for line in lines:
        by[line["mode"], line["arm"]][line["id"]] = line
    results: dict[str, Any] = {}
    for mode in MODES:
        arms = {arm: by[mode, arm] for arm in ARMS if by[mode, arm]}
        if len(arms) < 2:
            continue
        shared = [key for key in arms["plain"] if all(key in answers for answers in arms.values())]
        results[mode] = {arm: figures([answers[key] for key in shared]) for arm, answers in arms.items()}
        for arm, answers in arms.items():
            found = results[mode][arm]
            found["changed"] = sum(answers[key]["text"] != arms["plain"][key]["text"] for key in shared)
            base = results[mode]["plain"]
            found["time_ratio"] = paired_time(answers, arms["plain"], shared, prepared=False)
            found["time_ratio_prepared"] = paired_time(answers, arms["plain"], shared, prepared=True)
            found["time_ratio_pooled"] = found["seconds_per_token"] / base["seconds_per_token"]
            found["busy_ratio"] = found["busy_per_token"] / base["busy_per_token"]
    total: dict[str, Any] = {}
    for arm in ARMS:
        parts = [mode[arm] for mode in results.values() if arm in mode]
        if parts:
            total[arm] = {
                name: sum(part[name] for part in parts)
                for name in (
                    "answers",
                    "substituted",
                    "substituted_near",
                    "unsupported",
                    "retractions",
                    "forced",
                    "lost",
                )
            }
            nll, tokens = sum(p["nll"] for p in parts), sum(p["tokens"] for p in parts)
            total[arm]["perplexity"] = math.exp(nll / tokens)
            total[arm]["steps_ratio_of_one_row"] = 1 + total[arm]["lost"] / tokens
            plain = [mode["plain"] for mode in results.values() if arm in mode]
            for name in ("time_ratio", "time_ratio_prepared", "time_ratio_pooled", "busy_ratio"):
                total[arm][name] = sum(p[name] for p in parts) / len(plain)
    if all(arm in total for arm in ARMS):
        total["retract"]["paired"] = paired_perplexity(by)
    return {"total": total, "results": results, "bars": bars(total)}


def paired_time(
    answers: dict[str, Any], plain: dict[str, Any], shared: list[str], *, prepared: bool
) -> float:
    """The median over batches of the time per step over that of the same batch in plain."""

    def per_step(line: dict[str, Any]) -> float:
        return float(line["batch_seconds"] - (0 if prepared else line["prepare"])) / line["batch_steps"]

    firsts = [key for key in shared if answers[key]["first_row"]]
    return statistics.median(per_step(answers[key]) / per_step(plain[key]) for key in firsts)


def paired_perplexity(by: dict[tuple[str, str], dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """retract less avoid, nats per token, over the answers in which the two differ."""

    def nats(line: dict[str, Any]) -> float:
        return float(line["nll"]) / max(1, line["tokens"])

    pairs = [
        (by[mode, "avoid"][key], by[mode, "retract"][key])
        for mode in MODES
        for key in by[mode, "retract"]
        if key in by[mode, "avoid"] and by[mode, "avoid"][key]["text"] != by[mode, "retract"][key]["text"]
    ]
    if not pairs:
        return {"answers": 0}
    found = paired([nats(avoid) for avoid, _ in pairs], [nats(back) for _, back in pairs])
    differences = sorted(nats(back) - nats(avoid) for avoid, back in pairs)
    return {
        "answers": len(pairs),
        "lower": sum(each < 0 for each in differences),
        "median": statistics.median(differences),
        "mean": found.mean_difference,
        "interval": found.interval,
        "p_value": found.p_value,
    }


def figures(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """What one arm of one mode came to."""
    batches = [a for a in answers if a["first_row"]]
    steps = sum(a["batch_steps"] for a in batches)
    seconds = sum(a["batch_seconds"] for a in batches)
    prepare = sum(a["prepare"] for a in batches)
    nll, tokens = sum(a["nll"] for a in answers), sum(a["tokens"] for a in answers)
    actions: Counter[str] = Counter()
    for answer in answers:
        actions.update(answer["actions"])
    return {
        "answers": len(answers),
        "numbers": sum(a["numbers"] for a in answers),
        "unsupported": sum(len(a["unsupported"]) for a in answers),
        "substituted": sum(len(a["substituted_at"]) for a in answers),
        "substituted_near": sum(len(a["substituted_near"]) for a in answers),
        "retractions": sum(len(a["retractions"]) for a in answers),
        "refused": sum(a["refused"] for a in answers),
        "forced": actions["forced"],
        "actions": dict(actions),
        "dead": sum(a["dead"] for a in answers),
        "lost": sum(a["lost"] for a in answers),
        "nll": nll,
        "tokens": tokens,
        "perplexity": math.exp(nll / max(1, tokens)),
        "busy_per_token": sum(a["batch_busy"] for a in batches) / max(1, steps),
        "seconds_per_token": (seconds - prepare) / max(1, steps),
        "seconds_per_token_prepared": seconds / max(1, steps),
    }


def bars(total: dict[str, Any]) -> dict[str, Any]:
    """Each bar with whether it is met."""
    if any(arm not in total for arm in ARMS):
        return {}
    back, mask, avoid = total["retract"], total["substitute"], total["avoid"]
    both = [arm["substituted"] + arm["substituted_near"] for arm in (back, mask)]
    return {
        "substituted_at_most_a_tenth": back["substituted"] <= mask["substituted"] / 10,
        "substituted_at_most_a_tenth_with_near": both[0] <= both[1] / 10,
        "unsupported_none": back["unsupported"] == 0,
        "perplexity_no_worse_than_avoid": back["perplexity"] <= avoid["perplexity"],
        "perplexity_no_worse_than_avoid_paired": back["paired"].get("median", 0.0) <= 0,
        "time_ratio_at_most_1.15": back["time_ratio"] <= 1.15,
        "time_ratio_at_most_1.15_prepared": back["time_ratio_prepared"] <= 1.15,
    }


def show(line: dict[str, Any]) -> None:
    """Retractions and refused numbers of an answer, for reading."""
    for item in line["retractions"]:
        print(f"[{line['mode']} {line['id']}] …{item['before'][-60:]!r} took back {item['taken_back']!r}, meant "
              f"{item['meant']!r}, context {item['context']!r}, says {item['instead']!r}")  # fmt: skip
    if line["arm"] == "retract":
        for kind in ("at", "near"):
            for item in line[f"substituted_{kind}"]:
                print(
                    f"[{line['mode']} {line['id']}] substituted ({kind}) {item['number']!r} in {item['where']!r}"
                )
    if line["unsupported"] and line["arm"] != "plain":
        print(
            f"[{line['mode']} {line['id']} {line['arm']}] unsupported {line['unsupported']}: {line['text'][-200:]!r}"
        )


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--prompts", type=int, default=60)
    arguments.add_argument("--modes", default="greedy,sampled")
    arguments.add_argument("--batch", type=int, default=6)
    arguments.add_argument("--tokens", type=int, default=96)
    arguments.add_argument("--longest", type=int, default=350, help="longest context, in tokens")
    arguments.add_argument("--minutes", type=float, default=25.0, help="begin no batch after so long")
    arguments.add_argument(
        "--lines", type=Path, default=Path("e2e_retract.jsonl"), help="answers, one a line"
    )
    arguments.add_argument("--summarise", type=Path, help="only summarise the answers in this file")
    options = arguments.parse_args()
    if options.summarise is None:
        run(options)
    path = options.summarise or options.lines
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if options.summarise is not None:
        for line in lines:
            show(line)
    document = summarised(lines, options)
    for mode, arms in document["results"].items():
        print(f"\n{mode}:")
        for arm, found in arms.items():
            shown = {k: round(v, 3) for k, v in found.items() if isinstance(v, int | float)}
            print(f"  {arm:11s}", shown)
    print("\nbars:", document["bars"])
    document["retractions"] = [
        {"mode": line["mode"], "id": line["id"], **item} for line in lines for item in line["retractions"]
    ]
    document["substituted"] = [
        {"mode": line["mode"], "arm": line["arm"], "id": line["id"], "kind": kind, **item}
        for line in lines
        for kind in ("at", "near")
        for item in line[f"substituted_{kind}"]
        if line["arm"] == "retract"
    ]
    document["provenance"] = provenance(options.data, FILES)
    finish(document, options.out)


def answered(path: Path, settings: dict[str, Any], arms: int) -> dict[int, list[dict[str, Any]]]:
    """The lines of an earlier run with the same settings, of batches that all of `arms` arms and modes answered."""
    if not path.exists():
        return {}
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if line.get("settings") != settings:
            raise SystemExit(f"{path}: expected lines of a run with {settings}, got {line.get('settings')}")
        found[line["number"]].append(line)
    return {number: lines for number, lines in found.items() if len(lines) == arms * lines[0]["batch_rows"]}


def run(options: Any) -> None:
    """Answer batch after batch until the prompts or the minutes are over; what is whole is not answered again."""
    modes = options.modes.split(",")
    settings = {key: getattr(options, key) for key in ("batch", "tokens", "longest")}
    whole = answered(options.lines, settings, len(modes) * len(ARMS))
    host = Host()
    data = chosen(options.data, host, options.prompts, options.longest)
    began = time.monotonic()
    with options.lines.open("w", encoding="utf-8") as file:
        file.writelines(
            json.dumps(line, ensure_ascii=False) + "\n" for lines in whole.values() for line in lines
        )
        file.flush()
        warm = False
        for number, first in enumerate(range(0, len(data), options.batch)):
            if time.monotonic() - began > 60 * options.minutes:
                print(f"time is over after {first} of {len(data)} prompts")
                break
            batch = data[first : first + options.batch]
            if number in whole and len(whole[number]) == len(batch) * len(modes) * len(ARMS):
                continue
            inputs = host.prompts(batch)
            cache = host.prefill(inputs)
            if not warm:
                warm = True
                host.answer(batch, inputs, cache, "greedy", "plain", 1, 0)  # what only a first run pays
            for mode in modes:
                order = [ARMS[(at + number) % len(ARMS)] for at in range(len(ARMS))]
                for arm in order:
                    for line in host.answer(batch, inputs, cache, mode, arm, options.tokens, number):
                        line.update(number=number, settings=settings)
                        file.write(json.dumps(line, ensure_ascii=False) + "\n")
                        show(line)
                    file.flush()
            print(
                f"{first + len(batch)} of {len(data)} prompts, {time.monotonic() - began:.0f} s", flush=True
            )


if __name__ == "__main__":
    main()
