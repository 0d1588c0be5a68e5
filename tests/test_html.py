from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser

import pytest
from fakes import make_llama, make_tokenizer

from lettuceprevent.cli import main
from lettuceprevent.evaluation.html import (
    MOST_PROMPTS,
    Item,
    Shown,
    aligned,
    generation_page,
    page,
    run_lines,
    run_page,
)
from lettuceprevent.evaluation.prompts import Prompt, Prompts
from lettuceprevent.evaluation.runs import pack

CONTEXT = 'Revenue was 2400 <b>million</b> in 2021 & "3100" million in 2022.'
HOSTILE = "<script>document.title='owned'</script>"
SPAN = (CONTEXT.index("2021"), CONTEXT.index("2021") + 4)


def intervention(at, action="forced", **more):
    return {
        "run": 1,
        "step": at,
        "row": 0,
        "history_length": at,
        "token_id": 9,
        "text": "9",
        "detector": "number",
        "version": "1",
        "score": None,
        "threshold": None,
        "label": "unsupported",
        "first_choice": True,
        "action": action,
        "literal": "209",
        "nearest": "2021",
        "span": list(SPAN),
        "evidence": None,
        "returned": True,
        **more,
    }


def candidate(token, text, p, score, after, unsupported=None):
    return {
        "token_id": token,
        "text": text,
        "probability": p,
        "score": score,
        "after": after,
        "unsupported": unsupported,
    }


def report(pieces):
    steps = [
        {
            "token_id": at,
            "text": piece,
            "checked": at != 1,
            "first_choice": at != 2,
            "candidates": [
                candidate(90, "9", 0.6, 5.0, None if at == 2 else 5.0, 0.93 if at == 2 else None),
                candidate(at, piece, 0.3, 4.5, 4.5, 0.02 if at == 2 else None),
                candidate(91, HOSTILE, 0.05, 1.0, 1.0),
            ],
            "latency_us": {"state": 5.0, "mask": 30.0, "detector": 0.0, "apply": 9.0, "total": 50.0 * 9**at},
        }
        for at, piece in enumerate(pieces)
    ]
    stage = {"steps": 4, "p50_us": 44.0, "p95_us": 90.0, "max_us": 4400.0, "total_ms": 4.0, "share": 0.01}
    return {
        "counters": {"steps": 4, "checked": 3, "skipped": 1, "penalised": 1, "forced": 1},
        "latency": {"stages": {"mask": stage, "total": stage}},
        "interventions": [
            intervention(2),
            intervention(3, "retracted", returned=False),
            intervention(2, first_choice=False, text="second"),
        ],
        "retractions": [
            {
                "run": 1,
                "row": 0,
                "history_length": 3,
                "meant": "27",
                "nearest": None,
                "span": None,
                "taken_back": "2",
                "instead": " many",
            }
        ],
        "trace": {"width": 3, "answers": [{"run": 1, "row": 0, "steps": steps}]},
    }


PIECES = ["In ", HOSTILE, " 2", "021.\nIt & <i>more</i>"]


@pytest.fixture(scope="module")
def shown():
    return generation_page(report(PIECES), [CONTEXT], "And?", plain="In 209.", meta=["a & b"])


class Read(HTMLParser):
    """Texts per element, and what elements there are."""

    def __init__(self):
        super().__init__()
        self.stack, self.tags, self.texts = [], [], {}

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "img", "br"):
            self.stack.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.stack.pop()[0] == tag

    def handle_data(self, data):
        for tag, attributes in self.stack:
            for key in (tag, *(attributes.get("class") or "").split()):
                self.texts[key] = self.texts.get(key, "") + data


def read(content):
    parser = Read()
    parser.feed(content)
    parser.close()
    assert not parser.stack  # every element is closed, in order
    return parser


def test_every_text_is_text(shown):
    found = read(shown)
    assert found.texts["answer"] == "".join(PIECES) + "In 209."
    assert CONTEXT in found.texts["context"]
    assert [tag for tag, _ in found.tags].count("script") == 2  # ours, and the data
    assert not [tag for tag, _ in found.tags if tag in ("b", "i", "link", "img", "iframe")]
    assert HOSTILE not in shown
    assert "\ufffd" in page("\x00 \udcff", [])


def test_nothing_is_loaded(shown):
    assert not re.search(r"(?:src|href)\s*=|url\(|@import|https?:", shown)
    assert "default-src 'none'" in shown


def test_what_is_marked_and_listed(shown):
    found = read(shown)
    marks = [attributes for tag, attributes in found.tags if tag == "mark" and "data-n" in attributes]
    assert [(mark["data-i"], mark["data-n"]) for mark in marks] == [("2", "1"), ("3", "2")]
    assert "forced" in marks[0]["class"] and "retracted" in marks[1]["class"]
    assert "took back “2”, meant “27”" in found.texts["found"]
    assert "second" not in found.texts["found"]  # a candidate that was not the first choice
    assert found.texts["e"] == "2021"
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', shown)[1])
    assert data[2]["c"][0] == ["9", 0.6, 5.0, 0.93, "unsupported"]
    assert data[2]["c"][1][4] == "chosen"
    assert data[1]["c"][2][0] == HOSTILE and "not checked" in data[1]["say"]


def test_a_report_without_trace_is_refused():
    with pytest.raises(ValueError, match="expected one made with"):
        generation_page({"interventions": []}, [CONTEXT])


def test_pieces_join_to_the_text():
    assert aligned(["caf", "\ufffd", "\ufffd", "!"], "café!") == ["caf", "", "é", "!"]
    assert aligned(["a", "b"], "ab") == ["a", "b"]
    assert "".join(aligned(["x", "\ufffd", "y"], "something else")) == "something else"


def line(prompt, arm, found=(), text="In 2021."):
    return {
        "format": 1,
        "prompt": {"id": prompt, "passages": ["One.", CONTEXT], "query": "When?"},
        "arm": arm,
        "prevention": None,
        "decoding": {"max_new_tokens": 8},
        "host": {"id": "tiny"},
        "answer": {
            "text": text,
            "ids": [5, 6],
            "pieces": [text[:3], text[3:]],
            "top": [[[5, text[:3], 0.9]], [[7, HOSTILE, 0.8], [8, "x", 0.1]]],
            "log_probs": [-0.1, -4.0],
            "cut": True,
        },
        "report": {"interventions": list(found), "retractions": []} if arm != "plain" else None,
        "timings": {"seconds": 1.5, "latency": None},
    }


def test_a_run(tmp_path):
    lines = [line(f"p{n}", arm) for n in range(MOST_PROMPTS + 2) for arm in ("plain", "avoid")]
    lines[-1] = line(f"p{MOST_PROMPTS + 1}", "avoid", [intervention(1, span=[6 + SPAN[0], 6 + SPAN[1]])])
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    content = run_page(run_lines(path))
    found = read(content)
    titles = re.findall(r"<summary>(\S+)", content)
    assert titles[:2] == [f"p{MOST_PROMPTS + 1}", "p0"] and len(titles) == MOST_PROMPTS
    assert f"{MOST_PROMPTS + 2} prompts, the {MOST_PROMPTS} with most interventions shown" in content
    assert found.texts["e"] == "2021"
    assert HOSTILE not in content
    assert "There is nothing to show" in run_page([])
    packed = tmp_path / "packed.jsonl.gz"
    pack(path, packed, contexts=False)
    assert CONTEXT not in read(run_page(run_lines(packed))).texts["context"]
    prompts = Prompts((Prompt("p1", ("One.", CONTEXT), "When?"),), "x", "y", {})
    assert CONTEXT in read(run_page(run_lines(packed, prompts))).texts["context"]


def test_command_line(tmp_path, capsys):
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(tmp_path / "host")
    make_llama(len(tokenizer)).save_pretrained(tmp_path / "host")
    (tmp_path / "context.txt").write_text(CONTEXT, encoding="utf-8")
    target = tmp_path / "page.html"
    options = ["--context", str(tmp_path / "context.txt"), "--question", "And?", "--max-new-tokens", "12"]
    assert main(["generate", "--model", str(tmp_path / "host"), *options, "--html", str(target)]) == 0
    answer = capsys.readouterr().out.strip()
    found = read(target.read_text(encoding="utf-8"))
    assert found.texts["answer"].strip() == answer
    assert len([1 for tag, _ in found.tags if tag == "rect"]) == 12


# --- in a browser --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = next((path for path in map(shutil.which, names) if path), None)
    with api.sync_playwright() as playwright:
        try:
            opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except api.Error as error:
            pytest.skip(f"no Chromium that starts: {str(error).splitlines()[0]}")
        yield opened
        opened.close()


def opened(browser, tmp_path, content, **options):
    path = tmp_path / "page.html"
    path.write_text(content, encoding="utf-8")
    view = browser.new_context(**options).new_page()
    view.complaints = []
    view.requested = []
    view.on("console", lambda message: view.complaints.append(message.text))
    view.on("pageerror", lambda error: view.complaints.append(str(error)))
    view.on("request", lambda request: view.requested.append(request.url))
    view.goto(path.as_uri())
    return view


def test_keyboard(browser, tmp_path, shown):
    view = opened(browser, tmp_path, shown)
    assert view.title() == "A guarded answer"  # not what the answer's script says
    assert view.locator(".answer").first.inner_text().replace("\n", "") == "".join(PIECES).replace("\n", "")
    view.keyboard.press("Tab")
    assert view.locator(".t").first.evaluate("node => node === document.activeElement")
    tip = view.locator("#tip")
    assert tip.is_visible() and "60.0 %" in tip.inner_text() and "5.00" in tip.inner_text()
    view.keyboard.press("ArrowDown")
    assert view.evaluate("document.activeElement.dataset.i") == "2"
    assert "unsupported" in tip.inner_text() and "93.0 %" in tip.inner_text()
    assert view.evaluate("document.activeElement.getAttribute('aria-describedby')") == "tip"
    view.keyboard.press("Enter")
    assert view.locator(".e.on").inner_text() == "2021"
    assert view.locator("#say").text_content() == "highlighted in the context: 2021"
    view.keyboard.press("Escape")
    assert tip.is_hidden()
    view.keyboard.press("Tab")  # the first intervention of the list
    assert view.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    view.keyboard.press("Enter")
    assert view.locator(".e.on").count() == 0
    assert view.complaints == [] and len(view.requested) == 1


def test_pointer(browser, tmp_path, shown):
    view = opened(browser, tmp_path, shown)
    view.locator(".t").nth(1).hover()
    assert HOSTILE in view.locator("#tip").inner_text().replace("␣", " ")
    view.mouse.move(0, 0)
    assert view.locator("#tip").is_hidden()
    view.locator("button[data-n='1']").click()
    assert view.locator(".e.on").inner_text() == "2021"
    assert view.locator(".iv.on").count() == 1
    assert view.complaints == []


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_width_and_colours(browser, tmp_path, width, scheme):
    long = Item(
        "x" * 200,
        CONTEXT * 20,
        "And?" * 40,
        [Shown("a", ["y" * 300, "z"], [None, None], [intervention(1)])] * 2,
    )
    contents = (page("t" * 100, [long, long]), generation_page(report(PIECES), [CONTEXT], "And?"))
    for content in contents:
        size = {"width": width, "height": 700}
        view = opened(browser, tmp_path, content, viewport=size, color_scheme=scheme)
        view.locator(".iv").first.click()
        assert view.evaluate("document.documentElement.scrollWidth") <= width
        assert contrast(view, "body") >= 7
        for kind in (".iv", ".soft", "mark"):
            assert contrast(view, kind) >= 4.5, kind


def contrast(view, selector):
    """The WCAG contrast of an element's text against the nearest background that is not transparent."""
    inks = view.locator(selector).first.evaluate(
        """node => {
            let back = node;
            while (back && getComputedStyle(back).backgroundColor.endsWith(", 0)")) back = back.parentElement;
            return [getComputedStyle(node).color, getComputedStyle(back || document.body).backgroundColor];
        }"""
    )

    def light(ink):
        values = [int(part) / 255 for part in re.findall(r"\d+", ink)[:3]]
        red, green, blue = (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted(map(light, inks))
    return (high + 0.05) / (low + 0.05)
