"""Training data by hand-worked examples: rows, labels on tokens, corruption, splits."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from fakes import make_tokenizer

from lettuceprevent.training.corruption import KINDS, corrupt, corruptions
from lettuceprevent.training.data import Example, example_of, load_examples, merged, read_rows
from lettuceprevent.training.labels import drawn, label_tokens, labels_of
from lettuceprevent.training.splits import check_disjoint, context_key, split_by_context, unseen

ANSWER = "On March 5 the mayor met Anna Brown in Paris. She was 31 years old, and 24 dogs came."
EXAMPLE = Example("a", "Nothing of note.", "", ANSWER)


def test_rows_of_each_form(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "1", "context": "c", "answer": "abcdef", "spans": [[4, 6], [0, 2], [1, 3]]},
        {"id": "2", "context": "c", "answer": "abcdef", "labels": [{"start": 0, "end": 1, "type": None}]},
        {"context": "c", "answer": "ab", "consistent": True, "diff_spans": [{"start": 0, "end": 1}]},
        {"context": "c", "answer": "ab", "consistent": False, "diff_spans": [{"start": 0, "end": 1}]},
    ]
    path = tmp_path / "rows.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as out:
        out.write("\n".join(map(json.dumps, rows)))
    found = load_examples(path)
    assert [example.spans for example in found] == [((0, 3), (4, 6)), ((0, 1),), (), ((0, 1),)]
    assert [example.id for example in found] == ["1", "2", "rows.jsonl.gz:3", "rows.jsonl.gz:4"]


def test_inconsistent_answers_without_a_span_are_left_out(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"context": "c", "answer": "ab", "consistent": False, "diff_spans": []},
        {"context": "c", "answer": "ab", "consistent": False},
        {"context": "c", "answer": "ab", "consistent": True, "diff_spans": []},
        {"context": "c", "answer": "ab", "consistent": False, "spans": []},  # somebody's own form goes first
        {"context": "c", "answer": "ab", "consistent": False, "diff_spans": [[0, 1]]},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    said: list[str] = []
    found = load_examples([path, path], say=said.append)
    assert [(each.id, each.spans) for each in found[:3]] == [
        ("rows.jsonl:3", ()),
        ("rows.jsonl:4", ()),
        ("rows.jsonl:5", ((0, 1),)),
    ]
    assert len(found) == 6 and said == [f"{path}: 2 inconsistent answers without a span left out"] * 2
    said.clear()
    path.write_text(json.dumps(rows[2]), encoding="utf-8")
    assert len(load_examples(path, say=said.append)) == 1 and not said


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": "a", "spans": []}, "'context'"),
        ({"context": "c", "answer": "a"}, "'spans', 'labels' or 'consistent'"),
        ({"context": "c", "answer": "a", "mentions": []}, "for measuring only"),
        ({"context": "c", "answer": "a", "spans": [[0, 2]]}, r"within 0..1, got \(0, 2\)"),
        ({"context": "c", "answer": "a", "spans": [[0]]}, "expected a span"),
        ({"context": "c", "answer": "a", "consistent": False, "diff_spans": []}, "expected 'diff_spans'"),
    ],
)
def test_rows_that_are_refused(row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        example_of(row)


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n{"a"', encoding="utf-8")
    with pytest.raises(ValueError, match=r"rows.jsonl:3: expected a JSON object"):
        list(read_rows(path))
    path.write_text('\n{"answer": "a"}', encoding="utf-8")  # blank lines count
    with pytest.raises(ValueError, match=r"rows.jsonl:2: expected 'context' to be text"):
        load_examples(path)


def test_labels_by_overlap_of_characters() -> None:
    # "12, 17": the span is the "2," of "12," -- both tokens that hold a part of it are labelled.
    example = Example("x", "", "", "12, 17", ((1, 3),))
    assert labels_of([(0, 2), (2, 3), (3, 4), (4, 6), (2, 2)], example).tolist() == [True, True] + [False] * 3


def test_labels_on_a_real_kind_of_tokenizer() -> None:
    tokenizer = make_tokenizer()
    answer = "There were 24 cats — 31 dogs."
    start = answer.index("31")
    found = label_tokens(Example("x", "", "", answer, ((start, start + 2),)), tokenizer)
    assert tokenizer.decode(list(found.ids)) == answer
    marked = [answer[a:b] for (a, b), label in zip(found.offsets, found.labels, strict=True) if label]
    assert "".join(marked).strip() == "31"
    with pytest.raises(TypeError, match="expected a fast tokenizer"):
        label_tokens(EXAMPLE, object())


def test_merged_spans() -> None:
    assert merged([(5, 7), (0, 2), (2, 3), (6, 9)]) == ((0, 3), (5, 9))


@pytest.mark.parametrize(
    ("kind", "old"),
    [
        ("number", {"24", "31"}),
        ("date", {"March"}),
        ("unit", {"years"}),
        ("name", {"Anna Brown"}),
        ("negation", {"was"}),
        ("role", {"mayor"}),
        ("place", {"Paris"}),
    ],
)
def test_one_change_of_each_kind(kind: str, old: set[str]) -> None:
    for seed in range(8):
        made = corrupt(EXAMPLE, kind, seed)
        assert made is not None and made == corrupt(EXAMPLE, kind, seed)
        assert made.kinds == (kind,) and len(made.spans) == 1
        start, end = made.spans[0]
        new = made.answer[start:end]
        kept = len(made.answer) - end
        assert ANSWER[:start] == made.answer[:start] and ANSWER[len(ANSWER) - kept :] == made.answer[end:]
        assert ANSWER[start : len(ANSWER) - kept] in old
        assert new == "was not" if kind == "negation" else new not in ANSWER


def test_changes_leave_labelled_spans_alone_and_move_them() -> None:
    first, last = ANSWER.index("31"), ANSWER.index("dogs")
    example = Example("a", "", "", ANSWER, ((first, first + 2), (last, last + 4)))
    for seed in range(8):
        made = corrupt(example, "number", seed)
        assert made is not None
        assert made.answer[made.spans[0][0] : made.spans[0][1]] == "31"
        assert "dogs" in [made.answer[a:b] for a, b in made.spans]
        longer = corrupt(example, "name", seed)
        assert longer is not None
        assert [longer.answer[a:b] for a, b in longer.spans][1:] == ["31", "dogs"]


def test_what_the_context_has_is_not_put_in() -> None:
    context = "10 21 41 51 61 71 81 91, 14 34 44 54 64 74 84 94"  # every other first digit but one is taken
    assert corrupt(Example("a", context, "", "There were 31."), "number") is not None  # 11 is left
    assert corrupt(Example("a", context + " 11", "", "There were 31."), "number") is None


@pytest.mark.parametrize(
    "answer",
    [
        "They can't swim.",
        "They can’t swim.",
        "They cannot swim.",
        "She has never been there.",
        "She has also never been there.",
        "It is no use; it was NOT so.",
        "It was n't so.",
        "Dogs were hardly seen, and there is nothing left.",
        "He never was rich, nor will he be.",
        "A can-do mayor.",
    ],
)
def test_a_negation_is_not_negated(answer: str) -> None:
    assert corrupt(Example("a", "", "", answer), "negation") is None
    both = {corrupt(Example("a", "", "", f"{answer} Cats were here."), "negation", n) for n in range(8)}
    assert {made.answer for made in both if made} == {f"{answer} Cats were not here."}


@pytest.mark.parametrize(
    "answer",
    [
        "1. Mix {} eggs.\n2. Bake.\n 10. Eat.",
        "1) Mix {} eggs.\n2) Bake.",
        "**1.** Mix {} eggs.\n- 2. Bake.\n### 3.) Eat.",
        "Do this: 1. Mix {} eggs. 2. Bake! 3. Eat.",
        "Either 1) mix {} eggs or 2) bake.",
        "(1) Mix {} eggs. (2) Bake [3].",
    ],
)
def test_a_list_marker_is_no_number(answer: str) -> None:
    assert corrupt(Example("a", "", "", answer.replace("{} ", "")), "number") is None
    example = Example("a", "", "", answer.format(24))
    for seed in range(8):
        made = corrupt(example, "number", seed)
        assert made is not None and made.spans[0][0] == answer.index("{")


@pytest.mark.parametrize(
    "answer", ["There were 24. Dogs came.", "31", "Anna (aged 31) came.", "- 24 dogs", "24."]
)
def test_numbers_at_the_ends_of_sentences_are_numbers(answer: str) -> None:
    assert corrupt(Example("a", "", "", answer), "number") is not None


def test_nothing_to_change() -> None:
    assert corruptions(Example("a", "", "", "Dogs bark.")) == []
    assert [each.kinds[0] for each in corruptions(EXAMPLE)] == list(KINDS)
    with pytest.raises(ValueError, match="expected one of number, date"):
        corrupt(EXAMPLE, "colour")


def test_splits_keep_contexts_together() -> None:
    examples = [Example(f"{n}-{at}", f"Context  {n}", "", "x") for n in range(200) for at in range(2)]
    train, validation = split_by_context(examples, validation=0.25, seed=1)
    assert len(train) + len(validation) == 400
    assert not {e.context for e in train} & {e.context for e in validation}
    assert 25 <= len({e.context for e in validation}) <= 75  # 50 expected, four standard deviations
    assert split_by_context(examples[:100], validation=0.25, seed=1)[1] == [
        e for e in validation if e in examples[:100]
    ]
    with pytest.raises(ValueError, match="from 0 to 1, got 2"):
        split_by_context(examples, validation=2)


def test_shared_contexts_are_found() -> None:
    assert context_key("A  b\nC") == context_key("a b c") != context_key("ab c")
    with pytest.raises(ValueError, match="no context of test among the examples, got 1"):
        check_disjoint([Example("e", "A b", "", "x")], ["a  B"])
    rows = [
        {"context": "a  b"},
        {"context": "c", "context_in_train": True},
        {"context": "d", "context_in_train": False},
    ]
    assert unseen(rows, [Example("e", "A b", "", "x")]) == [rows[2]]


def test_one_host_is_drawn_per_example() -> None:
    examples = [Example(str(n), "", "", "x") for n in range(60)]
    picks = [drawn(example, "abc", seed=3) for example in examples]
    assert picks == [drawn(example, "abc", seed=3) for example in examples]
    assert set(picks) == set("abc")
    with pytest.raises(ValueError, match="at least one host"):
        drawn(examples[0], ())


def test_the_shared_files() -> None:
    from conftest import SHARED_DATA

    if not (SHARED_DATA / "ragtruth_train.jsonl.gz").exists():
        pytest.skip(f"no data in {SHARED_DATA}")
    train = load_examples(SHARED_DATA / "ragtruth_train.jsonl.gz")
    assert len(train) == 784 and any(example.spans for example in train)
    said: list[str] = []
    edits = load_examples(SHARED_DATA / "summedits.jsonl.gz", say=said.append)
    assert len(edits) == 4663 and ": 18 inconsistent answers" in said[0]
    rows = list(read_rows(SHARED_DATA / "number_mentions.jsonl.gz"))
    left = unseen(rows, train)
    assert 0 < len(left) < len(rows)
    check_disjoint(train, (str(row["context"]) for row in left), "number_mentions")
    test = read_rows(SHARED_DATA / "ragtruth_test.jsonl.gz")
    check_disjoint(train, (str(row["context"]) for row in test), "ragtruth_test")
