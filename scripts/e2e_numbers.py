"""A real model end to end: SmolLM2 on summary prompts, plain and with the number detector, arms matched.

    python scripts/e2e_numbers.py --out results/e2e_numbers.json

Each prompt is answered plainly and under each setting of on_unsupported, in turn, with the same decoding; numbers are
judged by the independent checker. A substitution is an intervention after which a number stands where the host's own
choice was masked; `forced` are the interventions inside a number that had begun.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from statistics import mean
from typing import Any

from _common import finish, parser, provenance, rows

from lettuceprevent.assets import host_id
from lettuceprevent.evaluation.number_metrics import REFUSED
from lettuceprevent.evaluation.numbers import ContextNumbers, check_answer, find_literals
from lettuceprevent.generation import generate
from lettuceprevent.report import PreventionReport
from lettuceprevent.vocabulary import Vocabulary

FILES = ("summary_prompts",)


class Host:
    """SmolLM2 and its tokenizer."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(host_id())
        self.model = AutoModelForCausalLM.from_pretrained(host_id(), dtype=torch.float32).eval()
        self.tokenizer.padding_side = "left"
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.vocabulary = Vocabulary.for_tokenizer(self.tokenizer)

    def prompt(self, row: dict[str, Any]) -> str:
        """The query and the context in the chat template."""
        message = {"role": "user", "content": f"{row['query']}\n\n{row['context']}"}
        text = self.tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        return str(text)

    def answers(self, batch: list[dict[str, Any]], arm: str, tokens: int, beams: int) -> list[dict[str, Any]]:
        """One answer per row of a left-padded batch, with what its report says."""
        import torch

        prompts = [self.prompt(row) for row in batch]
        inputs = self.tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        report = PreventionReport()
        settings = {"max_new_tokens": tokens, "do_sample": False, "num_beams": beams}
        began = time.perf_counter()
        with torch.no_grad():
            if arm == "plain":
                out = self.model.generate(**inputs, **settings)
            else:
                out = generate(
                    self.model,
                    **inputs,
                    **settings,
                    tokenizer=self.tokenizer,
                    input_text=[[row["context"]] for row in batch],
                    query=[row["query"] for row in batch],
                    on_unsupported=arm,
                    report=report,
                )
        seconds = time.perf_counter() - began
        eos = self.model.generation_config.eos_token_id
        ends = {eos} if isinstance(eos, int) else set(eos)
        found = []
        for at, row in enumerate(batch):
            ids = out[at, inputs["input_ids"].shape[1] :].tolist()
            end = next((k for k, token in enumerate(ids) if token in ends), None)
            mine = [item for item in report.interventions if item.returned and item.row // beams == at]
            found.append(self._judged(row, arm, ids[:end], end is None, mine))
        steps = max(answer["tokens"] for answer in found)
        for answer in found:
            answer.update(seconds=seconds / len(batch), steps=steps / len(batch))
        found[0]["dead"] = int(report.counters["dead"])
        found[0]["word_leaks"] = int(report.counters["word_leaks"])
        found[0]["retracted"] = int(report.counters["retractions"])
        return found

    def _judged(
        self, row: dict[str, Any], arm: str, ids: list[int], cut: bool, interventions: list[Any]
    ) -> dict[str, Any]:
        text = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        numbers = ContextNumbers(row["context"] + "\n\n" + row["query"])
        checked = check_answer(text, numbers, cut=cut)
        digits = [c for c in checked if c.kind != "word"]
        starts = [0]
        for token in ids:
            starts.append(starts[-1] + len(self.vocabulary[token].decode("utf-8", "replace")))
        literals = find_literals(text)
        substituted = 0
        for item in interventions:
            if item.history_length < len(ids):
                span = starts[item.history_length], starts[item.history_length + 1]
                substituted += any(lit.start < span[1] and lit.end > span[0] for lit in literals)
        return {
            "arm": arm,
            "text": text,
            "tokens": len(ids),
            "cut": cut,
            "numbers": len(digits),
            "unsupported": [c.text for c in digits if c.status in REFUSED],
            "unsupported_words": [c.text for c in checked if c.kind == "word" and c.status in REFUSED],
            "interventions": len(interventions),
            "actions": dict(Counter(item.action for item in interventions)),
            "forced": sum(item.action == "forced" for item in interventions),
            "substituted": substituted,
            "dead": 0,
            "word_leaks": 0,
            "retracted": 0,
            "degenerate": degenerate(text),
        }


def degenerate(text: str) -> list[str]:
    """Reasons for which an answer is no answer: repetition, digits, length."""
    words = text.split()
    reasons = []
    grams = [tuple(words[at : at + 4]) for at in range(len(words) - 3)]
    if grams and 1 - len(set(grams)) / len(grams) > 0.3:
        reasons.append("repetition")
    if re.search(r"(\S{1,20}?)\1{5,}", re.sub(r"\s+", "", text)):
        reasons.append("loop")
    if text and sum(c.isdigit() for c in text) / len(text) > 0.25:
        reasons.append("digits")
    if len(words) < 12:
        reasons.append("short")
    return reasons


def compared(plain: list[dict[str, Any]], governed: list[dict[str, Any]]) -> dict[str, Any]:
    """What an arm came to, next to the plain answers to the same prompts."""
    from scipy.stats import binomtest

    before = [bool(a["degenerate"]) for a in plain]
    after = [bool(a["degenerate"]) for a in governed]
    worse = sum(b and not a for a, b in zip(before, after, strict=True))
    better = sum(a and not b for a, b in zip(before, after, strict=True))
    p_value = binomtest(worse, worse + better, alternative="greater").pvalue if worse + better else 1.0
    return {
        "answers": len(governed),
        "unsupported_per_answer": mean(len(a["unsupported"]) for a in governed),
        "unsupported_words": sum(len(a["unsupported_words"]) for a in governed),
        "numbers_per_answer": mean(a["numbers"] for a in governed),
        "changed": sum(a["text"] != b["text"] for a, b in zip(plain, governed, strict=True)),
        "interventions": sum(a["interventions"] for a in governed),
        "forced": sum(a["forced"] for a in governed),
        "substituted": sum(a["substituted"] for a in governed),
        "retracted": sum(a["retracted"] for a in governed),
        "dead": sum(a["dead"] for a in governed),
        "word_leaks": sum(a["word_leaks"] for a in governed),
        "degenerate": sum(after),
        "degenerate_before": sum(before),
        "degenerate_p": float(p_value),
        "tokens_per_answer": mean(a["tokens"] for a in governed),
        "time_ratio": per_step(governed) / per_step(plain),
    }


def per_step(answers: list[dict[str, Any]]) -> float:
    """Seconds per step of a batch, the reading of the prompts included."""
    return float(sum(a["seconds"] for a in answers) / sum(a["steps"] for a in answers))


def chosen(folder: Any, tokenizer: Any, count: int, longest: int) -> list[dict[str, Any]]:
    """The first prompts that fit and whose context holds at least six numbers."""
    found = []
    for row in rows(folder, "summary_prompts"):
        if len(find_literals(row["context"])) < 6 or len(row["context"]) > 5 * longest:
            continue
        if len(tokenizer.encode(row["context"])) <= longest:
            found.append(row)
        if len(found) == count:
            break
    return found


def picked(listed: list[dict[str, Any]], what: str, *more: str) -> list[dict[str, Any]]:
    """The listed answers that have `what`, without what is not needed."""
    return [
        {key: entry[key] for key in ("id", "mode", "arm", what, *more)} for entry in listed if entry[what]
    ]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--prompts", type=int, default=20)
    arguments.add_argument("--beam-prompts", type=int, default=8)
    arguments.add_argument("--tokens", type=int, default=128)
    arguments.add_argument("--batch", type=int, default=5)
    arguments.add_argument("--threads", type=int, default=0, help="of torch; 0 leaves its default")
    arguments.add_argument("--longest", type=int, default=500, help="longest context, in tokens")
    arguments.add_argument("--arms", nargs="+", default=["avoid", "substitute", "retract"])
    options = arguments.parse_args()
    import torch

    if options.threads:
        torch.set_num_threads(options.threads)
    host = Host()
    data = chosen(options.data, host.tokenizer, options.prompts, options.longest)
    for arm in ("plain", "avoid"):
        host.answers(data[:1], arm, 8, 1)  # not timed: memory, and what is compiled at first use
    results: dict[str, Any] = {}
    listed: list[dict[str, Any]] = []
    for mode, beams, prompts in (("greedy", 1, data), ("beam4", 4, data[: options.beam_prompts])):
        arms = options.arms if beams == 1 else [arm for arm in options.arms if arm != "retract"]
        answers: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ("plain", *arms)}
        size = options.batch if beams == 1 else max(1, options.batch // 2)
        for begin in range(0, len(prompts), size):
            batch = prompts[begin : begin + size]
            turn = begin // size % len(answers)  # no arm always comes first
            for arm in [*answers][turn:] + [*answers][:turn]:
                kept = answers[arm]
                found = host.answers(batch, arm, options.tokens, beams)
                kept += found
                for row, answer in zip(batch, found, strict=True):
                    if answer["degenerate"] or answer["unsupported"] or answer["forced"]:
                        listed.append({"id": row["id"], "mode": mode, **answer})
            for at in range(begin, begin + len(batch)):
                said = [
                    f"{arm} {kept[at]['unsupported']} of {kept[at]['numbers']}"
                    for arm, kept in answers.items()
                ]
                print(f"{mode} {at + 1}/{len(prompts)}, unsupported: {'; '.join(said)}", flush=True)
        results[mode] = {arm: compared(answers["plain"], answers[arm]) for arm in answers}
        if options.out is not None:  # what there is, in case the rest does not come
            options.out.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(document(results, listed, options), indent=1, ensure_ascii=False)
            options.out.write_text(text + "\n", encoding="utf-8")
    for mode, arms_ in results.items():
        print(f"\n{mode}:")
        for arm, figures in arms_.items():
            print(f"  {arm:11s}", {k: round(v, 3) for k, v in figures.items()})
    print("\nanswers with a wrong number, held numbers, or that are degenerate:")
    for entry in listed:
        what = {key: entry[key] for key in ("unsupported", "forced", "degenerate") if entry[key]}
        print(f"[{entry['mode']} {entry['arm']} {entry['id']}] {what}\n    {entry['text'][:600]!r}")
    finish(document(results, listed, options), options.out)


def document(results: dict[str, Any], listed: list[dict[str, Any]], options: Any) -> dict[str, Any]:
    """The JSON document; `modes` says which were finished."""
    greedy = results["greedy"]
    return {
        "before": greedy["plain"]["unsupported_per_answer"],
        "after": {arm: greedy[arm]["unsupported_per_answer"] for arm in options.arms},
        "modes": list(results),
        "results": results,
        "degenerate": picked(listed, "degenerate", "text"),
        "unsupported": picked(listed, "unsupported"),
        "forced": picked(listed, "forced", "text"),
        "provenance": provenance(options.data, FILES),
    }


if __name__ == "__main__":
    main()
