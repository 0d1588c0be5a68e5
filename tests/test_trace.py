from __future__ import annotations

import math

import pytest
import torch
from fakes import DigitDetector, ScriptedDetector, make_llama, make_tokenizer

from lettuceprevent.generation import generate
from lettuceprevent.grounding import Grounding
from lettuceprevent.processor import PreventionLogitsProcessor
from lettuceprevent.report import PreventionReport
from lettuceprevent.trace import texts
from lettuceprevent.vocabulary import Vocabulary

CONTEXT = "Revenue was 2400 million in 2021 and 3100 million in 2022."


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    return make_llama(len(tokenizer), seed=3)


def prompt(tokenizer):
    return tokenizer(CONTEXT, return_tensors="pt", return_token_type_ids=False)


@pytest.mark.parametrize("decoding", [{}, {"num_beams": 3}, {"do_sample": True}], ids=str)
@pytest.mark.parametrize("policy", ["avoid", "retract"])
def test_the_steps_of_what_was_returned(tokenizer, model, decoding, policy):
    report = PreventionReport(trace=4)
    torch.manual_seed(0)
    out = generate(
        model,
        **prompt(tokenizer),
        tokenizer=tokenizer,
        input_text=CONTEXT,
        report=report,
        max_new_tokens=24,
        on_unsupported=policy,
        **decoding,
    )
    width = prompt(tokenizer)["input_ids"].shape[1]
    (answer,) = report.to_dict()["trace"]["answers"]
    new = out[0, width:].tolist()
    assert [step["token_id"] for step in answer["steps"]] == new[: len(answer["steps"])]
    assert "".join(step["text"] for step in answer["steps"]) == tokenizer.decode(
        new, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    for step in answer["steps"]:
        chances = [candidate["probability"] for candidate in step["candidates"]]
        assert chances == sorted(chances, reverse=True)
        assert len(chances) == 4 and sum(chances) <= 1.001
        assert step["latency_us"]["total"] > 0
    (kept,) = report.trace.answers()
    if not decoding:
        assert [step.choice for step in kept.steps] == list(kept.ids)
        assert all(step.host > 0 for step in report.trace.steps[1:])


def test_nothing_is_kept_unless_asked(tokenizer, model):
    report = PreventionReport()
    generate(
        model, **prompt(tokenizer), tokenizer=tokenizer, input_text=CONTEXT, report=report, max_new_tokens=4
    )
    assert report.trace is None
    assert "trace" not in report.to_dict()
    with pytest.raises(ValueError, match="at least one"):
        PreventionReport(trace=-1)


def test_scores_of_both_kinds_of_detector(tokenizer):
    vocabulary = Vocabulary.for_tokenizer(tokenizer)
    one, word = (next(i for i in range(len(vocabulary)) if vocabulary[i] == t) for t in (b"1", b"a"))
    report = PreventionReport(trace=3)
    processor = PreventionLogitsProcessor(
        vocabulary,
        [Grounding((CONTEXT,))],
        [
            [DigitDetector(vocabulary, ("2400",))],
            ScriptedDetector(lambda _, token: 0.9 if token == word else 0.1),
        ],
        prompt_length=1,
        candidates=3,
        report=report,
    )
    scores = torch.zeros(1, len(vocabulary))
    scores[0, one], scores[0, word] = 9.0, 8.0
    out = processor(torch.tensor([[40]]), scores)
    (step,) = report.trace.steps
    assert step.first == one and step.tokens[:2] == (one, word)
    assert step.after[:2] == (-math.inf, -math.inf)
    assert step.found[word] == (pytest.approx(0.9), "scripted") and one not in step.found
    assert step.choice == int(out.argmax()) not in (one, word)
    assert step.chance == pytest.approx(float(scores.softmax(-1)[0, one]), abs=1e-5)
    report.reset()
    assert report.trace.steps == []


def test_a_character_belongs_to_the_token_that_completes_it():
    table = {0: b"a", 1: b"\xc3", 2: b"\xa9!", 3: b"\xe2\x82"}
    assert texts(table, [0, 1, 2]) == ["a", "", "é!"]
    assert texts(table, [0, 3]) == ["a", "�"]
    assert texts(table, []) == []
