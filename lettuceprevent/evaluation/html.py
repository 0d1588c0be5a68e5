"""One page to look at: an answer, or a run, with its interventions, candidates, evidence and latency.

Contract: the page is one file, loads nothing, runs no script but its own (a content security policy says so),
and shows every text as text. Without scripts answer, interventions, evidence and latency can still be read.
Hovering over or focusing a token shows its candidates; arrow keys go from token to token (down and up: from
intervention to intervention), Enter highlights the evidence, Escape closes.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..report import finite
from .prompts import Prompts
from .runs import Line, Run

MOST_PROMPTS = 60  # of a run on one page
_AROUND = 60  # characters of context quoted on each side of an evidence span
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
_STAGES = ("state", "mask", "detector", "apply", "total")

Span = tuple[int, int]


@dataclass(frozen=True)
class Shown:
    """One answer of an item.

    tokens: texts that join to the answer. steps: per token None or what `_step` makes. found: interventions
    and retractions as a report has them. stages: per stage its figures in microseconds.
    """

    label: str
    tokens: Sequence[str]
    steps: Sequence[Mapping[str, Any] | None] = ()
    found: Sequence[Mapping[str, Any]] = ()
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Item:
    """One prompt with its answers. context: the passages, joined as evidence offsets count them."""

    title: str
    context: str
    query: str
    answers: Sequence[Shown]


# --- from a generation -------------------------------------------------------------------------------


def generation_page(
    report: Mapping[str, Any],
    passages: Sequence[str],
    query: str = "",
    *,
    plain: str | None = None,
    title: str = "A guarded answer",
    meta: Sequence[str] = (),
) -> str:
    """The page of one generation. report: `PreventionReport.to_dict()` of a report made with `trace`.

    plain: an answer without prevention, shown beside it. A report without a trace raises ValueError.
    """
    if "trace" not in report:
        raise ValueError("report: expected one made with PreventionReport(trace=...), got none of its steps")
    answers = []
    for at, traced in enumerate(report["trace"]["answers"]):
        several = len(report["trace"]["answers"]) > 1
        mine = [
            item
            for item in (*report["interventions"], *report["retractions"])
            if item["run"] == traced["run"] and (not several or item["row"] == traced["row"])
        ]
        answers.append(
            Shown(
                f"Answer {at + 1}" if several else "With prevention",
                [step["text"] for step in traced["steps"]],
                [_traced_step(step) for step in traced["steps"]],
                mine,
                report["latency"]["stages"],
                _counted(report["counters"]),
            )
        )
    if plain is not None:
        answers.append(Shown("Without prevention", [plain]))
    return page(title, [Item("", "\n\n".join(passages), query, answers)], meta)


def _traced_step(step: Mapping[str, Any]) -> dict[str, Any] | None:
    if "candidates" not in step:
        return None
    # a model detector was asked: then others than those it scored are left out, besides those a mask blocks
    asked = any(candidate["unsupported"] is not None for candidate in step["candidates"])
    unsaid = "blocked or not scored" if asked else "blocked"
    rows = []
    for candidate in step["candidates"]:
        chosen = candidate["token_id"] == step["token_id"]
        gone = candidate["after"] is None or candidate["after"] < candidate["score"]
        verdict = "chosen" if chosen else ""
        if gone and not chosen:
            verdict = unsaid if candidate["unsupported"] is None else "unsupported"
        rows.append(
            [
                candidate["text"],
                candidate["probability"],
                candidate["score"],
                candidate["unsupported"],
                verdict,
            ]
        )
    if not any(row[4] == "chosen" for row in rows):
        rows.append([step["text"], None, None, None, "chosen"])
    said = "first choice" if step["first_choice"] else "not the first choice"
    if step.get("risk") is not None:
        said += f", risk {step['risk']:.2f}"
    return {
        "say": said if step["checked"] else f"{said}, not checked",
        "us": step["latency_us"]["total"],
        "skip": not step["checked"],
        "c": rows,
    }


def _counted(count: Mapping[str, int]) -> str:
    return (
        f"{count['steps']} steps, {count['checked']} checked, {count['skipped']} skipped; "
        f"first choice penalised at {count['penalised']}, of these forced {count['forced']}"
    )


# --- from a run --------------------------------------------------------------------------------------


def run_page(
    prompts: Iterable[Sequence[Mapping[str, Any]]], *, title: str = "A run", limit: int = MOST_PROMPTS
) -> str:
    """The page of a run: the prompts with most interventions first, `limit` of them, the others counted.

    prompts: for each the lines of its answers (`runs.py`), see `run_lines`; only what is shown stays in memory.
    """
    total, meta = 0, [""]

    def items() -> Iterator[Item]:
        nonlocal total
        for lines in prompts:
            if not total:
                decoding = ", ".join(f"{key} {value}" for key, value in lines[0]["decoding"].items())
                meta.extend([f"host {lines[0]['host'].get('id')}", decoding])
            total += 1
            yield _run_item(lines)

    shown = heapq.nlargest(limit, items(), key=lambda item: sum(len(_listed(each)) for each in item.answers))
    meta[0] = f"{total} prompts" + (f", the {limit} with most interventions shown" if total > limit else "")
    return page(title, shown, meta)


def run_lines(path: str | Path, prompts: Prompts | None = None) -> Iterator[list[Line]]:
    """The lines of a run, prompt by prompt. prompts: those of the run, where it was packed without contexts."""
    known = {prompt.id: prompt for prompt in prompts.prompts} if prompts is not None else {}
    with Run(path) as run:
        for name in run.prompts:
            lines = list(run.answers(name).values())
            for line in lines:
                if name in known:
                    line["prompt"] |= {"passages": known[name].passages, "query": known[name].query}
            yield lines


def _run_item(lines: Sequence[Mapping[str, Any]]) -> Item:
    prompt = lines[0]["prompt"]
    name = str(prompt["id"])
    return Item(
        name,
        "\n\n".join(prompt["passages"]),
        prompt.get("query") or "",
        [_run_answer(line) for line in lines],
    )


def _run_answer(line: Mapping[str, Any]) -> Shown:
    answer, told = line["answer"], line.get("report") or {}
    tokens = aligned(answer.get("pieces") or [answer["text"]], answer["text"])
    tops = answer.get("top") or []
    steps = [
        _told_step(token, tops[at], (answer.get("log_probs") or [None] * len(tops))[at])
        for at, token in enumerate((answer.get("ids") or [])[: len(tops)])
    ]
    latency = (line.get("timings") or {}).get("latency") or {}
    seconds = (line.get("timings") or {}).get("seconds")
    note = f"{len(tokens)} tokens" + (f", {seconds:.2f} s" if seconds is not None else "")
    return Shown(
        line["arm"],
        tokens,
        steps,
        [*told.get("interventions", ()), *told.get("retractions", ())],
        latency.get("stages") or {},
        note + (", cut by the length limit" if answer.get("cut") else ""),
    )


def _told_step(token: int, top: Sequence[Sequence[Any]], log_prob: float | None) -> dict[str, Any]:
    rows: list[list[Any]] = [
        [text, p, math.log(p) if p > 0 else None, None, "chosen" if candidate == token else ""]
        for candidate, text, p in top
    ]
    if not any(row[4] for row in rows):
        rows.append(
            ["(this token)", None if log_prob is None else math.exp(log_prob), log_prob, None, "chosen"]
        )
    first = bool(top) and top[0][0] == token
    return {"say": "first choice" if first else "not the first choice", "us": None, "skip": False, "c": rows}


def aligned(pieces: Sequence[str], text: str) -> list[str]:
    """Pieces that join to `text`: a character cut between tokens goes to the token that completes it."""
    if "".join(pieces) == text:
        return list(pieces)
    found, at = [""] * len(pieces), 0
    for index, piece in enumerate(pieces):
        if piece and "�" not in piece:
            place = text.find(piece, at, at + len(piece) + 16)
            if place >= 0:
                if index and place > at:
                    found[index - 1] += text[at:place]
                    at = place
                found[index], at = text[at : place + len(piece)], place + len(piece)
    if pieces:
        found[-1] += text[at:]
    return found


# --- the page ----------------------------------------------------------------------------------------


def page(title: str, items: Sequence[Item], meta: Sequence[str] = ()) -> str:
    """The whole page as one HTML document."""
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    script = files(__package__).joinpath("page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    described = "".join(f"<p>{text(line)}</p>" for line in meta)
    body = "".join(_item(item, at, len(items)) for at, item in enumerate(items))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<header><h1>{text(title)}</h1><div class="soft">{described}'
        "<p>Point at a word, or move through an answer with the arrow keys, to see what else the host could have "
        "said; up and down go from intervention to intervention, Enter shows the evidence.</p></div></header>\n"
        f'<main>\n{body or "<p>There is nothing to show.</p>"}</main>\n<div id="tip" role="tooltip" hidden></div>\n'
        f'<p id="say" class="hide" role="status"></p>\n<script>{script}</script>\n</body>\n</html>\n'
    )


def _item(item: Item, at: int, of: int) -> str:
    spans = sorted(
        {span for answer in item.answers for found in answer.found if (span := _span(found, item))}
    )
    answers = "".join(_answer(answer, item, spans, f"{at}-{n}") for n, answer in enumerate(item.answers))
    query = f'<h2>Question</h2><p class="text query">{text(item.query)}</p>' if item.query else ""
    inner = (
        f'<div class="sides"><div class="answers card">{answers}</div>'
        f'<div class="context card" role="region" aria-label="Question and context" tabindex="0">{query}'
        f'<h2>Context</h2><p class="text">{_context(item.context, spans)}</p></div></div>'
    )
    if of == 1 and not item.title:
        return f'<div class="item">{inner}</div>\n'
    count = sum(len(_listed(answer)) for answer in item.answers)
    head = f"{text(item.title)} <small>{count} {'intervention' if count == 1 else 'interventions'}</small>"
    return f'<details class="item"{" open" if at == 0 else ""}><summary>{head}</summary>{inner}</details>\n'


def _answer(answer: Shown, item: Item, spans: Sequence[Span], key: str) -> str:
    listed = _listed(answer)
    at: dict[int, list[int]] = {}
    for number, found in enumerate(listed, 1):
        at.setdefault(found["history_length"], []).append(number)
    written = max((n for n, piece in enumerate(answer.tokens) if piece), default=-1)
    marks = "".join(
        _token(piece, index, index > written, [(n, _action(listed[n - 1])) for n in at.get(index, ())])
        for index, piece in enumerate(answer.tokens)
    )
    parts = [
        f'<section aria-labelledby="h{key}"><h2 id="h{key}">{text(answer.label)}</h2>',
        f'<p class="text answer" role="group" aria-labelledby="h{key}">{marks}</p>',
    ]
    if answer.note:
        parts.append(f'<p class="soft">{text(answer.note)}</p>')
    if listed:
        rows = "".join(
            f"<li>{_found(found, n, item, spans, answer)}</li>" for n, found in enumerate(listed, 1)
        )
        parts.append(f'<h2>Interventions</h2><ol class="found">{rows}</ol>')
    parts.append(_latency(answer, set(at)))
    if answer.steps:
        parts.append(f'<script type="application/json">{_data(answer)}</script>')
    return "".join((*parts, "</section>"))


def _listed(answer: Shown) -> list[Mapping[str, Any]]:
    """What is marked: penalised first choices that lie on the answer, and what was taken back."""
    kept = [
        found
        for found in answer.found
        if "taken_back" in found or (found["first_choice"] and found["returned"] is not False)
    ]
    return sorted(kept, key=lambda found: int(found["history_length"]))


def _action(found: Mapping[str, Any]) -> str:
    action = "retracted" if "taken_back" in found else str(found["action"])
    return action if action in ("blocked", "avoided", "forced", "retracted") else "blocked"


def _token(piece: str, index: int, silent: bool, numbers: Sequence[tuple[int, str]]) -> str:
    kinds = ["t"]
    if silent:  # an end token; other tokens without text are parts of a character
        kinds.append("mute")
    elif piece.startswith("\n"):
        kinds.append("nl")
    order = ' tabindex="0"' if index == 0 else ' tabindex="-1"'
    if not numbers:
        return f'<span class="{" ".join(kinds)}" data-i="{index}"{order}>{text(piece)}</span>'
    kinds += ["iv", numbers[0][1]]
    listed = " ".join(str(n) for n, _ in numbers)
    return f'<mark class="{" ".join(kinds)}" data-i="{index}" data-n="{listed}"{order}>{text(piece)}</mark>'


def _found(found: Mapping[str, Any], number: int, item: Item, spans: Sequence[Span], answer: Shown) -> str:
    """One intervention as a button that highlights its evidence."""
    span = _span(found, item)
    action = _action(found)
    if action == "retracted":
        what = f"took back “{found['taken_back']}”, meant “{found['meant']}”"
        if found.get("instead"):
            what += f"; says “{found['instead'].strip()}”"
        why = "unsupported"
    else:
        what = f"{action}: “{found['text']}”"
        if found.get("literal"):
            what += f", which would have made “{found['literal'].strip()}”"
        why = f"{found['label']}, says {found['detector']}"
        if found.get("score") is not None:
            why += f" ({100 * found['score']:.0f} %, limit {100 * found['threshold']:.0f} %)"
    if found.get("nearest"):
        why += f"; the context has “{found['nearest']}”"
    quote = ""
    if span is not None:
        begin, end = span
        before, after = item.context[max(0, begin - _AROUND) : begin], item.context[end : end + _AROUND]
        quote = (
            f'<span class="quote">{"…" if begin > _AROUND else ""}{text(before)}'
            f"<mark>{text(item.context[begin:end])}</mark>{text(after)}"
            f"{'…' if end + _AROUND < len(item.context) else ''}</span>"
        )
    evidence = f' data-e="{spans.index(span)}"' if span is not None else ""
    return (
        f'<button type="button" class="{action}" data-n="{number}"{evidence} aria-pressed="false">'
        f'{number}. <span class="what">{text(what)}</span> <small>token {found["history_length"]}; '
        f"{text(why)}</small>{quote}</button>"
    )


def _span(found: Mapping[str, Any], item: Item) -> Span | None:
    span = found.get("span")
    if span is None or not 0 <= span[0] < span[1] <= len(item.context):
        return None
    return int(span[0]), int(span[1])


def _context(context: str, spans: Sequence[Span]) -> str:
    """The context, each stretch that is evidence in an element that names whose (`data-e`)."""
    cuts = sorted({0, len(context), *(edge for span in spans for edge in span)})
    parts = []
    for begin, end in pairwise(cuts):
        of = " ".join(str(n) for n, (a, b) in enumerate(spans) if a <= begin and end <= b)
        piece = text(context[begin:end])
        parts.append(f'<span class="e" data-e="{of}">{piece}</span>' if of else piece)
    return "".join(parts)


def _latency(answer: Shown, marked: set[int]) -> str:
    bars = [(at, step) for at, step in enumerate(answer.steps) if step and step["us"] is not None]
    chart = _chart(bars, len(answer.steps), marked) if bars else ""
    stages = [(name, answer.stages[name]) for name in _STAGES if name in answer.stages]
    if not stages and not chart:
        return ""
    rows = "".join(_stage(name, row) for name, row in stages)
    table = (
        '<div class="scroll"><table><thead><tr><th scope="col">stage</th><th scope="col">median</th>'
        '<th scope="col">p95</th><th scope="col">max</th><th scope="col">of the time</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
        if rows
        else ""
    )
    return f"<h2>Cost of prevention</h2>{chart}{table}"


def _stage(name: str, row: Mapping[str, Any]) -> str:
    share = "" if row.get("share") is None else f"{100 * row['share']:.1f} %"
    cells = [*(_micro(row[key]) for key in ("p50_us", "p95_us", "max_us")), share]
    return f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _chart(bars: Sequence[tuple[int, Mapping[str, Any]]], count: int, marked: set[int]) -> str:
    """Microseconds per step, on a logarithmic axis from 1 µs; drawn in a box of `count` × 100."""
    most = max(step["us"] for _, step in bars)
    decades = max(1, math.ceil(math.log10(max(most, 10.0))))
    lines = "".join(
        f'<span style="top:{100 - 100 * n / decades:.1f}%">{_micro(10.0**n)}</span>'
        for n in range(1, decades + 1)
    )
    drawn = []
    for at, step in bars:
        height = 100 * min(1.0, max(0.01, math.log10(max(step["us"], 1.0)) / decades))
        kind = "iv" if at in marked else "skip" if step["skip"] else ""
        named = f' class="{kind}"' if kind else ""
        drawn.append(
            f'<rect x="{at + 0.1:.1f}" y="{100 - height:.1f}" width="0.8" height="{height:.1f}" data-i="{at}"{named}>'
            f"<title>token {at}: {_micro(step['us'])}</title></rect>"
        )
    said = f"Time of {len(bars)} steps, at most {_micro(most)}; the table below has the figures"
    return (
        f'<figure><div class="chart">{lines}<svg viewBox="0 0 {count} 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(said)}">{"".join(drawn)}</svg></div><figcaption>Time per step, token by token '
        "(logarithmic); red: an intervention, pale: not checked.</figcaption></figure>"
    )


def _micro(us: float) -> str:
    return f"{us / 1e6:.3g} s" if us >= 1e6 else f"{us / 1e3:.3g} ms" if us >= 1e3 else f"{us:.0f} µs"


def _data(answer: Shown) -> str:
    """The steps as JSON that cannot end its script element."""
    steps = [
        None
        if step is None
        else {"say": step["say"], "us": step["us"], "c": [list(map(_short, row)) for row in step["c"]]}
        for step in answer.steps
    ]
    return (
        json.dumps(finite(steps), allow_nan=False, separators=(",", ":"))
        .replace("<", "\\u003c")
        .replace("&", "\\u0026")
    )


def _short(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def text(value: str) -> str:
    """`value` as HTML text or attribute; what HTML cannot hold becomes U+FFFD."""
    clean = _CONTROLS.sub("�", str(value).replace("\r\n", "\n").replace("\r", "\n"))
    return escape(clean.encode("utf-8", "replace").decode("utf-8"), quote=True)


def write_page(path: str | Path, content: str) -> None:
    """Write a page as UTF-8."""
    Path(path).write_text(content, encoding="utf-8")
