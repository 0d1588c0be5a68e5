from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from fakes import DigitDetector, ScriptedDetector, digit_runs, make_llama, make_tokenizer
from transformers import LogitsProcessorList

from lettuceprevent.grounding import Grounding
from lettuceprevent.processor import SHUT, PreventionLogitsProcessor
from lettuceprevent.rows import prompt_tail
from lettuceprevent.vocabulary import Vocabulary

ALLOWED = ("2021", "2400", "12")


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="module")
def vocabulary(tokenizer):
    return Vocabulary.for_tokenizer(tokenizer)


@pytest.fixture(scope="module")
def model(vocabulary):
    return make_llama(len(vocabulary) + 24)  # logits wider than the tokenizer


def make(vocabulary, allowed=ALLOWED, **options):
    rows = allowed if isinstance(allowed, list) else [allowed]
    options.setdefault("eos_token_ids", 2)
    return PreventionLogitsProcessor(
        vocabulary,
        [Grounding((" ".join(row),)) for row in rows],
        [[DigitDetector(vocabulary, row) for row in rows]],
        **options,
    )


def ids_of(tokenizer, *texts):
    encoded = tokenizer(list(texts), return_tensors="pt", padding=True)
    return encoded["input_ids"], encoded["attention_mask"]


def biased(vocabulary, width, bonus=8.0):
    """A processor before ours that makes digits likely."""
    table = [vocabulary[i] for i in range(len(vocabulary))]
    bias = torch.zeros(width)
    bias[[i for i, piece in enumerate(table) if digit_runs(piece.decode("latin-1"))]] = bonus
    return lambda ids, scores: scores + bias


def generate(model, vocabulary, processor, ids, mask, **options):
    processors = LogitsProcessorList([biased(vocabulary, model.config.vocab_size), processor])
    options = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0, **options}
    return model.generate(input_ids=ids, attention_mask=mask, logits_processor=processors, **options)


def assert_sound(tokenizer, out, width, allowed):
    """Every digit run that ended is allowed; one at the end is the beginning of an allowed one."""
    for row in out[:, width:].tolist():
        ended = 2 in row
        text = tokenizer.decode(row, skip_special_tokens=True)
        runs = digit_runs(text)
        if runs and not ended and text.endswith(runs[-1]):
            assert any(a.startswith(runs[-1]) for a in allowed), text
            runs.pop()
        assert all(run in allowed for run in runs), text


def some_id(vocabulary, text):
    return next(i for i in range(len(vocabulary)) if vocabulary[i] == text.encode())


# -- soundness under every way of decoding -----------------------------------------------------------


@pytest.mark.parametrize("policy", ["avoid", "substitute"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_sample": True, "top_k": 50, "top_p": 0.9},
        {"num_beams": 4},
        {"num_beams": 3, "do_sample": True},
        {"do_sample": True, "num_return_sequences": 3},
        {"num_beams": 4, "num_return_sequences": 2},
        {"no_repeat_ngram_size": 3},
        {"repetition_penalty": 1.3},
        {"prompt_lookup_num_tokens": 3},
    ],
    ids=str,
)
def test_soundness(model, tokenizer, vocabulary, options, policy):
    ids, mask = ids_of(tokenizer, "Revenue was 2400 million in 2021. Tell me 2021 2021 2021: ")
    processor = make(vocabulary, on_unsupported=policy, num_beams=options.get("num_beams", 1))
    torch.manual_seed(1)
    out = generate(model, vocabulary, processor, ids, mask, **options)
    summaries = processor.finish(out)
    # Prompt lookup also asks about what comes after drafts that are rejected: `dead` counts those, too.
    if not sum(summary.dead for summary in summaries):
        assert_sound(tokenizer, out, ids.shape[1], ALLOWED)
    else:
        assert options.get("no_repeat_ngram_size")
        assert processor.report.counters["dead_no_way_out"]
    assert len(summaries) == len(out)
    assert processor.report.counters["penalised"] > 0


def test_batch_of_contexts_equals_solo_runs(model, tokenizer, vocabulary):
    texts = ["Say it: 12 ", "A considerably longer prompt that goes on until it says 2400 million "]
    rows = [("12", "100"), ("2400", "3100", "2021")]
    ids, mask = ids_of(tokenizer, *texts)
    out = generate(model, vocabulary, make(vocabulary, rows), ids, mask)
    for row, text in enumerate(texts):
        solo_ids, solo_mask = ids_of(tokenizer, text)
        solo = generate(model, vocabulary, make(vocabulary, rows[row]), solo_ids, solo_mask)
        got, want = out[row, ids.shape[1] :].tolist(), solo[0, solo_ids.shape[1] :].tolist()
        assert got[: len(want)] == want
        assert_sound(tokenizer, out[row : row + 1], ids.shape[1], rows[row])


def test_rows_map_to_groundings_in_blocks(model, tokenizer, vocabulary):
    ids, mask = ids_of(tokenizer, "One says 1 ", "Two says ")
    rows = [("12",), ("2400", "31")]
    out = generate(model, vocabulary, make(vocabulary, rows), ids, mask, num_beams=3, num_return_sequences=3)
    assert_sound(tokenizer, out[:3], ids.shape[1], rows[0])
    assert_sound(tokenizer, out[3:], ids.shape[1], rows[1])


def test_row_count_that_does_not_divide_raises(vocabulary):
    with pytest.raises(ValueError, match="multiple of 2 rows"):
        make(vocabulary, [("1",), ("2",)])(torch.zeros(3, 4, dtype=torch.long), torch.zeros(3, 500))


def test_assisted_decoding(model, tokenizer, vocabulary):
    ids, mask = ids_of(tokenizer, "Revenue was 2400 million in ")
    draft = make_llama(model.config.vocab_size, seed=5)
    plain = generate(model, vocabulary, make(vocabulary), ids, mask, max_new_tokens=16)
    out = generate(model, vocabulary, make(vocabulary), ids, mask, max_new_tokens=16, assistant_model=draft)
    assert out.tolist() == plain.tolist()


def test_second_generate_on_the_same_processor(model, tokenizer, vocabulary):
    processor = make(vocabulary)
    first = ids_of(tokenizer, "Revenue was 2400 ")
    second = ids_of(tokenizer, "A rather different question, is it not? ")
    alone = generate(model, vocabulary, make(vocabulary), *second)
    a = generate(model, vocabulary, processor, *first)
    b = generate(model, vocabulary, processor, *second)
    c = generate(model, vocabulary, processor, *first)
    assert b.tolist() == alone.tolist()
    assert c.tolist() == a.tolist()
    assert processor.report.runs == 3


def test_one_row_finishes_early(model, tokenizer, vocabulary):
    ids, mask = ids_of(tokenizer, "One ", "Two ")

    def end_first_row(ids_so_far, scores):
        if ids_so_far.shape[1] == ids.shape[1] + 3:
            scores = scores.clone()
            scores[0] = -math.inf
            scores[0, 2] = 0.0
        return scores

    processor = make(vocabulary, prompt_length=ids.shape[1])
    processors = LogitsProcessorList([end_first_row, processor])
    out = model.generate(
        input_ids=ids, attention_mask=mask, logits_processor=processors, max_new_tokens=10, do_sample=False
    )
    assert out[0, -1] == 0
    assert processor.report.counters["steps"] == 4 + 10
    assert next(s.tokens for s in processor.finish(out)) == 4


def test_literal_cut_by_the_length_limit(vocabulary):
    processor = make(vocabulary, prompt_length=1)
    two, zero = some_id(vocabulary, "2"), some_id(vocabulary, "0")
    summary = processor.finish([[5, two, zero]])
    assert summary[0].unfinished
    assert not processor.finish([[5]])[0].unfinished
    assert processor.report.counters["unfinished"] == 1


def test_prompt_that_ends_inside_a_number(tokenizer, vocabulary):
    # The prompt's own number is never judged, and what it goes on to is not either.
    assert prompt_tail(vocabulary, tokenizer("In the year 202")["input_ids"]) == b"202"
    assert prompt_tail(vocabulary, tokenizer("In the year ")["input_ids"]) == b""
    assert prompt_tail(vocabulary, [*tokenizer("was 17")["input_ids"], 2, 1]) == b""
    processor = make(vocabulary)
    ids = torch.tensor([tokenizer("In the year 202")["input_ids"]])
    scores = torch.zeros(1, len(vocabulary))
    nine = some_id(vocabulary, "9")
    assert torch.isfinite(processor(ids, scores)[0, nine])
    assert torch.isinf(processor(torch.tensor([tokenizer("In the year ")["input_ids"]]), scores)[0, nine])


# -- scores ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [-math.inf, 5.0, -5.0])
@pytest.mark.parametrize("history", ["", "20", " 12"])
def test_c3_unpenalised_scores_are_exact_and_input_untouched(tokenizer, vocabulary, penalty, history):
    processor = make(vocabulary, prompt_length=3, on_unsupported="substitute", penalty=penalty)
    ids = torch.tensor([[1, 5, 6, *tokenizer(history)["input_ids"]]])
    torch.manual_seed(0)
    scores = torch.randn(1, len(vocabulary) + 9)
    before = scores.clone()
    out = processor(ids, scores)
    assert torch.equal(scores, before)
    assert out.data_ptr() != scores.data_ptr()
    detector = processor._literals[0][0]
    state = detector.start(b"")
    for token in ids[0, 3:].tolist():
        state = detector.advance(state, token)
    mask = detector.mask(state)
    for token in range(scores.shape[1]):
        text = vocabulary[token]
        blocked = mask.is_blocked(token) if text else token in vocabulary.special_ids and not mask.may_end
        if blocked:
            assert out[0, token] == (scores[0, token] - abs(penalty))
        else:
            assert out[0, token] == scores[0, token]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("penalty", [-math.inf, 3.0])
def test_dtypes(vocabulary, dtype, penalty):
    processor = make(vocabulary, penalty=penalty, skip_threshold=0.9)
    scores = torch.randn(2, len(vocabulary)).to(dtype)
    out = processor(torch.full((2, 3), 40), scores)
    assert out.dtype == dtype
    assert out.shape == scores.shape


@pytest.mark.parametrize("history", [[], ["2"], ["2", "0"]])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_nan_and_infinite_scores(vocabulary, value, share, history):
    processor = make(vocabulary, prompt_length=2, skip_threshold=0.99)
    ids = torch.tensor([[40, 41, *(some_id(vocabulary, text) for text in history)]])
    torch.manual_seed(0)
    scores = torch.randn(1, len(vocabulary) + 5)
    scores[torch.rand(scores.shape) < share] = value
    out = processor(ids, scores)
    text = torch.tensor([bool(vocabulary[i]) for i in range(scores.shape[1])])
    if torch.isfinite(scores[:, text]).any():
        assert torch.isfinite(out[:, text]).any()
    elif value != math.inf:
        assert torch.equal(out.nan_to_num(nan=7.0), scores.nan_to_num(nan=7.0))
    if share == 1.0 and value != math.inf:
        assert processor.report.counters["no_finite_scores"] == 1


def test_end_tokens_are_blocked_inside_an_unfinished_literal(vocabulary):
    processor = make(vocabulary, prompt_length=1)
    scores = torch.zeros(1, len(vocabulary))
    scores[0, 2] = 9.0
    out = processor(torch.tensor([[40, some_id(vocabulary, "2")]]), scores)
    assert out[0, 2] == -math.inf
    assert [i.action for i in processor.report.interventions] == ["forced"]
    out = make(vocabulary, prompt_length=1)(torch.tensor([[40]]), scores)
    assert out[0, 2] == 9.0


def test_end_token_with_text(vocabulary):
    dot = some_id(vocabulary, ".")
    processor = make(vocabulary, prompt_length=1, eos_token_ids=[2, dot])
    scores = torch.zeros(1, len(vocabulary))
    assert processor(torch.tensor([[40, some_id(vocabulary, "2")]]), scores)[0, dot] == -math.inf
    assert processor(torch.tensor([[40, some_id(vocabulary, "a")]]), scores)[0, dot] == 0


# -- policies, dead literals, skipping -----------------------------------------------------------------


def first_choice(vocabulary, text, width=None):
    scores = torch.zeros(1, width or len(vocabulary))
    scores[0, some_id(vocabulary, text)] = 20.0
    return scores


def test_avoid_blocks_every_start_and_substitute_does_not(vocabulary):
    ids = torch.tensor([[40, 41]])
    scores = first_choice(vocabulary, "9")
    two, letter = some_id(vocabulary, "2"), some_id(vocabulary, "a")
    for policy, action in (("avoid", "avoided"), ("substitute", "blocked")):
        processor = make(vocabulary, on_unsupported=policy)
        out = processor(ids, scores)
        assert (out[0, two] == -math.inf) == (policy == "avoid")
        assert out[0, letter] == 0
        assert [i.action for i in processor.report.interventions] == [action]
    # A first choice that is no unsupported start leaves the other starts alone.
    assert make(vocabulary)(ids, first_choice(vocabulary, "a"))[0, two] == 0


def test_forced_inside_a_literal(vocabulary):
    processor = make(vocabulary, prompt_length=1)
    node_ids = torch.tensor([[40, some_id(vocabulary, "2"), some_id(vocabulary, "0")]])
    processor(node_ids, first_choice(vocabulary, "9"))
    item = processor.report.interventions[0]
    assert (item.action, item.history_length, item.literal, item.first_choice) == ("forced", 2, "209", True)
    assert processor.report.counters["forced"] == 1
    assert processor.place_of(processor.node_of(0, []), 0) == 0


def test_beams_that_diverge_are_closed_off_unless_all_do(vocabulary):
    letter, two = some_id(vocabulary, "a"), some_id(vocabulary, "2")
    nine = some_id(vocabulary, "9")
    scores = torch.log_softmax(torch.randn(4, len(vocabulary)), dim=-1)
    scores[:, nine] = 0.0
    ids = torch.tensor([[40, two], [40, letter], [40, two], [40, two]])

    def masked(policy, ids, scores):
        processor = make(vocabulary, on_unsupported=policy, num_beams=2, prompt_length=1)
        return processor, processor(ids, scores)

    scores[1, letter] = 1.0  # the second beam of the first answer says something else
    processor, out = masked("retract", ids, scores)
    held = masked("avoid", ids, scores)[1]
    finite = torch.isfinite(held[0])
    torch.testing.assert_close(out[0][finite], held[0][finite] - SHUT)
    assert torch.equal(torch.isfinite(out[0]), finite)
    assert torch.equal(out[1:], held[1:])  # the beams of the second answer all diverge: they are held
    assert processor.report.counters["beams_closed"] == 1
    assert processor.report.counters["beams_held"] == processor.report.counters["forced"] == 2
    assert [item.action for item in processor.report.interventions] == ["closed", "forced", "forced"]


def test_a_closed_beam_is_no_way_out_for_the_others(vocabulary):
    """Once all other beams diverge as well, none of them is closed because of one that was closed before."""
    letter, two, four = (some_id(vocabulary, text) for text in "a24")
    nine = some_id(vocabulary, "9")
    processor = make(vocabulary, on_unsupported="retract", num_beams=2, prompt_length=1)
    scores = torch.zeros(2, len(vocabulary))
    scores[0, nine] = scores[1, letter] = 9.0
    processor(torch.tensor([[40, two], [40, letter]]), scores)
    scores = torch.zeros(2, len(vocabulary))
    scores[0, four] = 9.0
    processor(torch.tensor([[40, letter, two], [40, two, four]]), scores)
    scores = torch.zeros(2, len(vocabulary))
    scores[0, nine] = 9.0
    out = processor(torch.tensor([[40, letter, two, four], [40, two, four, letter]]), scores)
    assert processor.report.counters["beams_closed"] == 1
    assert processor.report.counters["beams_held"] == 1
    assert out.max() == 0


def test_closed_place(vocabulary):
    processor = make(vocabulary, prompt_length=1)
    letter, two = some_id(vocabulary, "a"), some_id(vocabulary, "2")
    processor.closed[0, 1] = False
    assert processor(torch.tensor([[40, letter]]), first_choice(vocabulary, "a"))[0, two] == -math.inf
    assert processor(torch.tensor([[40, letter, letter]]), first_choice(vocabulary, "a"))[0, two] == 0


def test_closed_place_without_blanks(tokenizer):
    """Several tokens may be the same blank (a piece and a byte, say); none of them may lead to the number again."""
    spoken = Vocabulary.for_tokenizer(tokenizer)
    table = [spoken[token] for token in range(len(spoken))]
    letter, double = table.index(b"a"), table.index(b"z")
    table[double] = b" "
    blanks = [token for token, text in enumerate(table) if text and not text.strip(b" ")]
    assert len(blanks) >= 2
    vocabulary = Vocabulary(tuple(table), special_ids=spoken.special_ids)
    processor = make(vocabulary, prompt_length=1)
    processor.closed[0, 1] = True
    closed = processor(torch.tensor([[40, letter]]), torch.zeros(1, len(vocabulary)))
    assert (closed[0, blanks] == -math.inf).all() and closed[0, letter] == 0
    later = processor(torch.tensor([[40, letter, letter]]), torch.zeros(1, len(vocabulary)))
    assert (later[0, blanks] == 0).all()


def run_history(processor, vocabulary, history, scores=None):
    """Feed a history token by token, whatever the processor says."""
    ids = [40]
    for text in ["", *history]:
        if text:
            ids.append(some_id(vocabulary, text))
        given = torch.zeros(1, len(vocabulary)) if scores is None else scores
        out = processor(torch.tensor([ids]), given)
    return out


def test_dead_literal_from_outside(vocabulary):
    processor = make(vocabulary)
    out = run_history(processor, vocabulary, ["2", "9"])
    assert torch.isfinite(out).all()
    run_history(processor, vocabulary, ["2", "9", "9", "a"])
    count = processor.report.counters
    assert count["dead"] == count["dead_external"] == 2
    assert torch.isinf(run_history(processor, vocabulary, ["2", "9", "a"])).any()  # checking resumes
    assert processor.finish([[40, *(some_id(vocabulary, t) for t in ("2", "9", "a", "2"))]], 1)[0].dead == 1


def test_dead_literal_from_a_skip(vocabulary):
    processor = make(vocabulary, skip_threshold=0.9)
    run_history(processor, vocabulary, ["2"], first_choice(vocabulary, "9"))
    processor(
        torch.tensor([[40, some_id(vocabulary, "2"), some_id(vocabulary, "9")]]),
        torch.zeros(1, len(vocabulary)),
    )
    count = processor.report.counters
    assert (count["skipped"], count["skipped_blocked"], count["dead_skipped"]) == (2, 2, 1)
    assert count["checked"] == 1


def test_skip_is_strict_and_over_the_full_vocabulary(vocabulary):
    scores = torch.full((1, 4), -math.inf)
    scores[0, :2] = 0.0  # two choices of one half each
    wide = torch.cat([scores, torch.full((1, len(vocabulary)), -math.inf)], dim=1)
    for threshold, skipped in ((0.5, 0), (0.49, 1)):
        processor = make(vocabulary, skip_threshold=threshold)
        processor(torch.tensor([[40]]), wide)
        assert processor.report.counters["skipped"] == skipped


def test_no_way_out(vocabulary):
    processor = make(vocabulary, ("17",), prompt_length=1)
    scores = torch.full((1, len(vocabulary)), -math.inf)
    letter, one = some_id(vocabulary, "a"), some_id(vocabulary, "1")
    scores[0, letter] = 1.0  # an earlier processor has banned the only completion
    scores[0, 2] = 0.5
    out = processor(torch.tensor([[40, one]]), scores)
    assert torch.equal(out, scores)
    assert processor.report.counters["no_way_out"] == 1
    processor(torch.tensor([[40, one, letter]]), torch.zeros(1, len(vocabulary)))
    assert processor.report.counters["dead_no_way_out"] == 1
    assert not processor.report.interventions


def test_avoid_gives_way_to_mask_where_nothing_else_is_left(vocabulary):
    processor = make(vocabulary)
    scores = torch.full((1, len(vocabulary)), -math.inf)
    scores[0, some_id(vocabulary, "9")] = 2.0
    scores[0, some_id(vocabulary, "2")] = 1.0
    out = processor(torch.tensor([[40]]), scores)
    assert out[0, some_id(vocabulary, "2")] == 1.0
    assert out[0, some_id(vocabulary, "9")] == -math.inf
    assert processor.report.counters["no_way_out"] == 0


def test_forced_end_token_passes(vocabulary):
    scores = torch.full((1, len(vocabulary)), -math.inf)
    scores[0, 2] = 0.0
    processor = make(vocabulary, prompt_length=1)
    assert torch.equal(processor(torch.tensor([[40, some_id(vocabulary, "a")]]), scores), scores)
    assert processor.report.counters["no_way_out"] == 0
    assert torch.equal(processor(torch.tensor([[40, some_id(vocabulary, "2")]]), scores), scores)
    assert processor.report.counters["no_way_out"] == 1


def test_specials_and_padded_ids_leave_the_state_alone(vocabulary):
    processor = make(vocabulary, prompt_length=1)
    wide = torch.zeros(1, len(vocabulary) + 7)
    two = some_id(vocabulary, "2")
    plain = processor(torch.tensor([[40, two]]), wide)
    with_holes = make(vocabulary, prompt_length=1)(torch.tensor([[40, two, len(vocabulary) + 3, 1]]), wide)
    assert torch.equal(plain, with_holes)
    assert torch.isfinite(plain[0, len(vocabulary) :]).all()


def test_positions_may_be_visited_in_any_order(tokenizer, vocabulary):
    ids = tokenizer("In 2021 it was 12, or 2400 in 20")["input_ids"]
    scores = torch.randn(len(ids), len(vocabulary))
    order = np.random.default_rng(0).integers(1, len(ids), 60)
    shared = make(vocabulary, prompt_length=1)
    for width in order.tolist():
        given = scores[width - 1 : width]
        want = make(vocabulary, prompt_length=1)(torch.tensor([ids[:width]]), given)
        assert torch.equal(shared(torch.tensor([ids[:width]]), given), want)


def test_reordered_rows_find_their_parents(tokenizer, vocabulary):
    rng = np.random.default_rng(0)
    allowed = [ALLOWED, ("31",)]
    shared = make(vocabulary, allowed, prompt_length=2)
    tokens = [some_id(vocabulary, text) for text in "123 a"]
    rows = torch.tensor([[40, 41]] * 6)
    scores = torch.randn(6, len(vocabulary))
    for _ in range(12):
        want = make(vocabulary, allowed, prompt_length=2)(rows, scores)
        assert torch.equal(shared(rows, scores), want)
        parents = torch.tensor([*rng.integers(0, 3, 3), *rng.integers(3, 6, 3)])
        rows = torch.cat([rows[parents], torch.tensor(rng.choice(tokens, (6, 1)))], dim=1)


def test_empty_history_of_width_zero(vocabulary):
    processor = make(vocabulary, prompt_length=0)  # inputs_embeds: ids hold new tokens only
    assert processor(torch.zeros((1, 0), dtype=torch.long), torch.zeros(1, len(vocabulary))).shape[1]


def test_shorter_than_the_prompt_raises(vocabulary):
    with pytest.raises(ValueError, match="prompt_length"):
        make(vocabulary, prompt_length=9)(torch.zeros((1, 3), dtype=torch.long), torch.zeros(1, 500))


@pytest.mark.parametrize(
    "options",
    [
        {"penalty": 0.0},
        {"penalty": math.nan},
        {"skip_threshold": 1.5},
        {"on_unsupported": "shrug"},
        {"on_error": "shrug"},
        {"candidates": 0},
    ],
    ids=str,
)
def test_bad_options_raise(vocabulary, options):
    with pytest.raises(ValueError, match="expected"):
        make(vocabulary, **options)


# -- failing detectors ---------------------------------------------------------------------------------


def failing(vocabulary, on_error):
    def broken(state, token):
        if token == some_id(vocabulary, "b"):
            raise RuntimeError("broken")

    detector = DigitDetector(vocabulary, ALLOWED, broken)
    return PreventionLogitsProcessor(
        vocabulary, [Grounding(("x",))], [[detector]], eos_token_ids=2, on_error=on_error, prompt_length=1
    )


def test_literal_detector_failure(vocabulary):
    ids = torch.tensor([[40, some_id(vocabulary, "b")]])
    scores = torch.randn(1, len(vocabulary))
    with pytest.raises(RuntimeError, match="broken"):
        failing(vocabulary, "raise")(ids, scores)
    allow = failing(vocabulary, "allow")
    assert torch.equal(allow(ids, scores), scores)
    assert allow.report.counters["errors"] == 1
    block = failing(vocabulary, "block")
    out = block(ids, scores)
    assert int(out.argmax()) == 2  # the answer ends
    assert torch.isfinite(out).sum() == 2  # and C5 holds


# -- model detectors -----------------------------------------------------------------------------------


def model_processor(vocabulary, judge, literal=False, **options):
    detectors = [ScriptedDetector(judge)]
    if literal:
        detectors.insert(0, DigitDetector(vocabulary, ALLOWED))
    return PreventionLogitsProcessor(
        vocabulary, [Grounding(("x",))], detectors, eos_token_ids=2, prompt_length=1, **options
    )


def ranked(vocabulary, tokens):
    """Scores with `tokens` on top, in that order."""
    scores = torch.randn(1, len(vocabulary)) - 10
    for rank, token in enumerate(tokens):
        scores[0, token] = 50.0 - rank
    return scores


def test_model_detector_drops_flagged_and_unscored(vocabulary):
    top = list(range(50, 60))
    scores = ranked(vocabulary, [*top, 70])
    processor = model_processor(vocabulary, lambda history, token: 0.9 if token < 53 else 0.1)
    out = processor(torch.tensor([[40, 45]]), scores)
    assert torch.isfinite(out)[0].nonzero().flatten().tolist() == list(range(53, 60))
    assert torch.equal(out[0, 53:60], scores[0, 53:60])
    assert processor._candidates.detectors[0].requests[0].history == (45,)
    items = processor.report.interventions
    assert [(i.token_id, i.first_choice, i.action) for i in items] == [
        (50, True, "blocked"),
        (51, False, "blocked"),
        (52, False, "blocked"),
    ]
    assert items[0].score == pytest.approx(0.9)
    assert processor.report.to_dict()["notes"]["scripted"] == {"requests": 1}


def test_keep_unscored(vocabulary):
    scores = ranked(vocabulary, range(50, 60))
    processor = model_processor(
        vocabulary, lambda history, token: 0.9 if token == 50 else 0.1, unscored="keep"
    )
    out = processor(torch.tensor([[40]]), scores)
    want = scores.clone()
    want[0, 50] = -math.inf
    assert torch.equal(out, want)


def test_all_flagged_scores_the_next_and_at_last_keeps_the_least(vocabulary):
    scores = ranked(vocabulary, range(50, 90))
    processor = model_processor(vocabulary, lambda history, token: 0.9 if token < 65 else 0.1, candidates=10)
    out = processor(torch.tensor([[40]]), scores)
    assert torch.isfinite(out)[0].nonzero().flatten().tolist() == list(range(65, 70))
    assert processor.report.counters["forced"] == 0
    processor = model_processor(
        vocabulary, lambda history, token: 0.85 if token == 77 else 0.9, candidates=10
    )
    out = processor(torch.tensor([[40]]), scores)
    assert torch.isfinite(out)[0].nonzero().flatten().tolist() == [77]
    assert processor.report.counters["forced"] == 1
    assert len(processor._candidates.detectors[0].requests) == 3


def test_end_token_is_never_scored_and_never_the_only_way(vocabulary):
    scores = ranked(vocabulary, [2, *range(50, 80)])
    processor = model_processor(vocabulary, lambda history, token: 0.9)
    out = processor(torch.tensor([[40]]), scores)
    assert int(out.argmax()) == 2
    assert torch.isfinite(out).sum() == 2
    assert all(2 not in request.candidates for request in processor._candidates.detectors[0].requests)
    assert processor.report.counters["forced"] == 0


def test_literal_first_then_model(vocabulary):
    nine = some_id(vocabulary, "9")
    scores = ranked(vocabulary, [nine, *range(50, 60)])
    processor = model_processor(vocabulary, lambda history, token: 0.1, literal=True)
    out = processor(torch.tensor([[40]]), scores)
    assert out[0, nine] == -math.inf
    assert nine not in processor._candidates.detectors[0].requests[0].candidates
    assert processor.report.counters["penalised"] == 1


def test_candidates_grow_with_beams(vocabulary):
    assert model_processor(vocabulary, lambda h, t: 0.0, candidates=3, num_beams=4)._candidates.count == 8


@pytest.mark.parametrize("answer", [[math.nan] * 10, [0.5], [2.0] * 10])
def test_wrong_answers_are_failures(vocabulary, answer):
    processor = model_processor(vocabulary, lambda h, t: 0.0)
    processor._candidates.detectors[0].score = lambda requests: [np.array(answer, dtype=np.float32)]
    with pytest.raises(ValueError, match="scripted: expected"):
        processor(torch.tensor([[40]]), torch.randn(1, len(vocabulary)))


def test_model_detector_failure(vocabulary):
    def judge(history, token):
        raise RuntimeError("out of order")

    scores = ranked(vocabulary, range(50, 60))
    with pytest.raises(RuntimeError, match="out of order"):
        model_processor(vocabulary, judge)(torch.tensor([[40]]), scores)
    allow = model_processor(vocabulary, judge, on_error="allow")
    assert torch.equal(allow(torch.tensor([[40]]), scores), scores)
    assert allow.report.counters["errors"] == 1
    assert allow.report.counters["unchecked"] == 1
    block = model_processor(vocabulary, judge, on_error="block")
    out = block(torch.tensor([[40]]), scores)
    assert int(out.argmax()) == 2
    assert torch.isfinite(out)[0].nonzero().flatten().tolist() == [2, 50]


def test_model_detector_under_beams_and_batches(model, tokenizer, vocabulary):
    ids, mask = ids_of(tokenizer, "Where to? ", "And why? ")
    processor = PreventionLogitsProcessor(
        vocabulary,
        [Grounding(("a",)), Grounding(("b",))],
        [ScriptedDetector(lambda history, token: 0.9 if token % 3 == 0 else 0.1)],
        eos_token_ids=2,
        num_beams=3,
    )
    out = generate(model, vocabulary, processor, ids, mask, num_beams=3, max_new_tokens=8)
    body = out[:, ids.shape[1] :]
    assert not ((body % 3 == 0) & (body != 0)).any()
