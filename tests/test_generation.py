"""generate() on tiny random models, through the function itself. The routes by way of custom_generate:
test_export."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from fakes import CORPUS, digit_runs, make_llama, make_tokenizer
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    LogitsProcessorList,
    TextIteratorStreamer,
)

from lettuceprevent.check import check_text
from lettuceprevent.generation import generate
from lettuceprevent.report import PreventionReport

CONTEXT = "Revenue was 2400 million in 2021 and 3100 million in 2022."
pytestmark = pytest.mark.filterwarnings("ignore:the prompt of row")


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    return make_llama(len(tokenizer) + 16)


class MoreDigits:
    """A processor of the caller's own, which makes digits likely."""

    def __init__(self, tokenizer, width, bonus=8.0):
        self.bias = torch.zeros(width)
        for token in range(len(tokenizer)):
            if digit_runs(tokenizer.decode([token])):
                self.bias[token] = bonus

    def __call__(self, input_ids, scores):
        return scores + self.bias


def run(model, tokenizer, prompts=(CONTEXT + " So ",), **options):
    inputs = tokenizer(list(prompts), return_tensors="pt", padding=True)
    report = options.pop("report", None) or PreventionReport()
    if "generation_config" not in options:
        options.setdefault("max_new_tokens", 24)
    options = {"do_sample": False, "pad_token_id": 0, **options}
    width = model.config.vocab_size
    out = generate(
        model,
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        tokenizer=tokenizer,
        input_text=options.pop("input_text", CONTEXT),
        logits_processor=LogitsProcessorList([MoreDigits(tokenizer, width)]),
        report=report,
        number_words=False,
        **options,
    )
    sequences = out if isinstance(out, torch.Tensor) else out.sequences
    new = sequences[:, inputs["input_ids"].shape[1] :]
    return out, [tokenizer.decode(row, skip_special_tokens=True) for row in new], report


def wrong(text, context=CONTEXT):
    """The unsupported numbers of a text, apart from one at its end, which may have been cut."""
    verdicts = check_text(context, text, number_words=False)
    whole = len(re.sub(r"[^ a-zA-Z]*$", "", text))
    return [v.text for v in verdicts if v.status == "unsupported" and v.end <= whole]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_sample": True, "top_k": 40},
        {"num_beams": 4},
        {"num_return_sequences": 3, "do_sample": True},
        {"num_beams": 3, "num_return_sequences": 3},
        {"prompt_lookup_num_tokens": 3},
        {"return_dict_in_generate": True, "output_scores": True},
        {"cache_implementation": "static"},
        {"on_unsupported": "substitute"},
        {"bad_words_ids": [[40], [41, 42]]},
        {"no_repeat_ngram_size": 4},
    ],
    ids=str,
)
def test_answers_are_supported(model, tokenizer, options):
    torch.manual_seed(0)
    _, texts, report = run(model, tokenizer, **options)
    assert len(report.sequences) == len(texts)
    if not report.counters["returned_dead"]:
        for text in texts:
            assert not wrong(text), text
    assert report.counters["penalised"] > 0
    assert report.options["detector"] == "number"
    assert report.to_dict()["latency"]["stages"]["total"]["share"] < 1


def test_rows_with_their_own_contexts(model, tokenizer):
    prompts = ["In 17 of 24 ", "A longer prompt: there were 31 dogs and 100 birds, that is "]
    _, texts, _ = run(
        model, tokenizer, prompts, input_text=["In 17 of 24 cases.", "There were 31 dogs, 100 birds."]
    )
    assert not wrong(texts[0], "In 17 of 24 cases.")
    assert not wrong(texts[1], "There were 31 dogs, 100 birds.")


def test_positional_ids_and_nones(model, tokenizer):
    ids = tokenizer(CONTEXT, return_tensors="pt")["input_ids"]
    want = generate(model, input_ids=ids, tokenizer=tokenizer, input_text=CONTEXT, max_new_tokens=5)
    nones = dict.fromkeys(
        [
            "generation_config",
            "logits_processor",
            "stopping_criteria",
            "streamer",
            "synced_gpus",
            "assistant_model",
        ]
    )
    options = {"skip_threshold": None, "candidates": None, "penalty": None, "units": None, "query": None}
    got = generate(
        model, inputs=ids, tokenizer=tokenizer, input_text=CONTEXT, max_new_tokens=5, **nones, **options
    )
    positional = generate(model, ids, tokenizer=tokenizer, input_text=CONTEXT, max_new_tokens=5)
    assert got.tolist() == want.tolist() == positional.tolist()
    with pytest.raises(TypeError, match="expected inputs once"):
        generate(model, ids, inputs=ids, tokenizer=tokenizer, input_text=CONTEXT)


def test_plain_generation(model, tokenizer):
    ids = tokenizer(CONTEXT, return_tensors="pt")["input_ids"]
    plain = model.generate(input_ids=ids, max_new_tokens=8, do_sample=False)
    assert (
        generate(model, ids, detector_type=None, max_new_tokens=8, do_sample=False).tolist() == plain.tolist()
    )


def test_report_as_dict(model, tokenizer):
    report = {}
    ids = tokenizer(CONTEXT, return_tensors="pt")["input_ids"]
    generate(model, ids, tokenizer=tokenizer, input_text=CONTEXT, max_new_tokens=5, report=report)
    assert report["schema_version"] == 1
    assert report["counters"]["steps"] > 0


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({}, "retract"),
        ({"do_sample": True}, "retract"),
        ({"on_unsupported": None}, "retract"),
        ({"on_unsupported": "substitute"}, "substitute"),
        ({"num_beams": 2}, "avoid"),
        ({"prompt_lookup_num_tokens": 3}, "avoid"),
    ],
)
def test_the_default_goes_back_where_generate_can(model, tokenizer, options, policy):
    _, _, report = run(model, tokenizer, **options)
    assert report.options["on_unsupported"] == policy
    assert report.counters["retract_unavailable"] == 0


def test_assisted(model, tokenizer):
    draft = make_llama(model.config.vocab_size, seed=7)
    _, plain, plain_report = run(model, tokenizer, on_unsupported="avoid")  # drafts cannot go back
    _, texts, report = run(model, tokenizer, assistant_model=draft)
    assert texts == plain
    # The draft's own steps are not the host's; rejected positions are visited again, so there may be more.
    assert "_get_candidate_generator" not in model.__dict__
    on_path = [i for i in report.interventions if i.returned]
    assert {(i.history_length, i.token_id) for i in on_path} == {
        (i.history_length, i.token_id) for i in plain_report.interventions
    }


def test_streamer(model, tokenizer):
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    _, texts, _ = run(model, tokenizer, streamer=streamer)
    assert "".join(streamer) == texts[0]


def test_stop_strings_and_generation_config(model, tokenizer):
    config = GenerationConfig(max_new_tokens=6, pad_token_id=0, eos_token_id=[2, 5])
    out, _, _ = run(model, tokenizer, generation_config=config, stop_strings=["zzz"])
    assert out.shape[1] <= len(tokenizer(CONTEXT + " So ")["input_ids"]) + 6


def test_inputs_embeds(model, tokenizer):
    ids = tokenizer(CONTEXT, return_tensors="pt")["input_ids"]
    report = PreventionReport()
    out = generate(
        model,
        inputs_embeds=model.get_input_embeddings()(ids),
        attention_mask=torch.ones_like(ids),
        tokenizer=tokenizer,
        input_text=CONTEXT,
        max_new_tokens=16,
        do_sample=False,
        logits_processor=[MoreDigits(tokenizer, model.config.vocab_size)],
        report=report,
    )
    assert not wrong(tokenizer.decode(out[0], skip_special_tokens=True))
    assert report.sequences[0].tokens == out.shape[1]


def test_encoder_decoder(tokenizer):
    torch.manual_seed(0)
    width = len(tokenizer)
    config = BartConfig(
        vocab_size=width, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=256,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2,
    )  # fmt: skip
    model = BartForConditionalGeneration(config).eval()
    ids = tokenizer(CONTEXT, return_tensors="pt")["input_ids"]
    for options in ({}, {"num_beams": 3}):
        report = PreventionReport()
        out = generate(
            model,
            ids,
            tokenizer=tokenizer,
            input_text=CONTEXT,
            max_new_tokens=20,
            logits_processor=[MoreDigits(tokenizer, width)],
            report=report,
            **options,
        )
        assert not wrong(tokenizer.decode(out[0], skip_special_tokens=True))
        assert report.counters["steps"] > 0
        assert report.sequences[0].tokens <= 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": None}, "tokenizer: expected"),
        ({"input_text": None}, "detector_type=None"),
        ({"input_text": "  "}, "expected a context"),
        ({"detector_type": "numbers"}, "expected one of .*number"),
        ({"detector_type": "number+number"}, "each detector once"),
        ({"cache_implementation": "paged"}, "continuous batching"),
        ({"num_beam_groups": 2, "num_beams": 4}, "group beam search"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive search"),
        ({"force_words_ids": [[5]]}, "constrained beam search"),
        ({"dola_layers": "low"}, "DoLa"),
        ({"custom_generate": lambda: None}, "expected none, got a callable"),
        ({"on_unsupported": "never"}, "on_unsupported: expected"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_refusals(model, tokenizer, options, message):
    ids = tokenizer(CONTEXT, return_tensors="pt")["input_ids"]
    options = {"tokenizer": tokenizer, "input_text": CONTEXT, "max_new_tokens": 2, **options}
    with pytest.raises(ValueError, match=message):
        generate(model, ids, **options)


def test_unknown_detector_option(model, tokenizer):
    ids = tokenizer(CONTEXT, return_tensors="pt")["input_ids"]
    with pytest.raises(TypeError, match="has no option alignment"):
        generate(model, ids, tokenizer=tokenizer, input_text=CONTEXT, alignment="direct")


def test_context_that_is_not_in_the_prompt_warns(model, tokenizer):
    ids = tokenizer("What now?", return_tensors="pt")["input_ids"]
    with pytest.warns(UserWarning, match="does not contain the beginning of any passage"):
        generate(model, ids, tokenizer=tokenizer, input_text=CONTEXT, max_new_tokens=2)
    ids = tokenizer(CONTEXT + " What now?", return_tensors="pt")["input_ids"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("default", message="(?!the prompt of row)")
        generate(model, ids, tokenizer=tokenizer, input_text=CONTEXT, max_new_tokens=2)


def test_model_whose_own_generate_is_ours_does_not_recurse(model, tokenizer):
    import functools

    own = make_llama(model.config.vocab_size)
    own.generate = functools.partial(
        lambda *args, model, **kwargs: generate(model, *args, **kwargs), model=own
    )
    ids = tokenizer(CONTEXT, return_tensors="pt")["input_ids"]
    out = own.generate(ids, tokenizer=tokenizer, input_text=CONTEXT, max_new_tokens=4)
    assert out.shape[1] <= ids.shape[1] + 4


def test_no_new_tokens_and_no_numbers(model, tokenizer):
    text = CORPUS[2]
    _, texts, report = run(model, tokenizer, [text], input_text=text, max_new_tokens=12)
    assert not wrong(texts[0], text)
    assert report.sequences[0].dead == 0
