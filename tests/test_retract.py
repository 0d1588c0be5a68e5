"""`on_unsupported="retract"` on tiny random hosts that like digits: every decoding mode that can go back, limits,
streams, keys and values."""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from pathlib import Path

import pytest
import torch
from fakes import make_llama, make_tokenizer
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    LogitsProcessorList,
    MistralConfig,
    MistralForCausalLM,
    StoppingCriteria,
    StoppingCriteriaList,
    TextIteratorStreamer,
)

from lettuceprevent import retract
from lettuceprevent.check import check_text
from lettuceprevent.cli import main
from lettuceprevent.generation import generate
from lettuceprevent.report import PreventionReport

CONTEXT = "Revenue was 2400 million in 2021 and 3100 million in 2022. It rose by 17 percent."
PROMPTS = [CONTEXT + " So ", "A much longer prompt, for padding: " + CONTEXT + " In short, ", CONTEXT + "\n"]
REPOSITORY = Path(__file__).resolve().parents[1]
EOS, PAD = 2, 0
pytestmark = pytest.mark.filterwarnings("ignore:the prompt of row")


@functools.cache
def tokenizer():
    return make_tokenizer(310)  # few merges: digits come one by one, and literals diverge inside


@functools.cache
def llama(seed=0, peak=2.0):
    return make_llama(len(tokenizer()) + 16, seed=seed, peak=peak)


class Raise:
    """A processor of the caller's own: digits, and end tokens, become likely."""

    def __init__(self, width, digits=5.0, eos=0.0):
        self.bias = torch.zeros(width)
        for token in range(len(tokenizer())):
            if re.search(r"\d", tokenizer().decode([token])):
                self.bias[token] = digits
        self.bias[EOS] = eos
        self.bias[PAD] = -30.0

    def __call__(self, input_ids, scores):
        return scores + self.bias


class Insist:
    """A processor that makes a host write `texts` in turn, whatever it has written."""

    def __init__(self, *texts):
        self.scripts = [[*tokenizer().encode(text), EOS] for text in texts]
        self.base = None

    def __call__(self, input_ids, scores):
        if self.base is None:
            self.base = input_ids.shape[1]
        out = scores.clone()
        for row, script in enumerate(self.scripts):
            written = input_ids[row, self.base :].tolist()
            follow = script[len(written)] if written == script[: len(written)] else EOS
            out[row, follow] += 200.0
        return out


class Run:
    """One generation: `ids` per row without padding, texts, the report, and what generate() returned."""

    def __init__(
        self, model, prompts=PROMPTS[:1], *, policy="retract", seed=0, digits=5.0, eos=0.0, **options
    ):
        inputs = tokenizer()(list(prompts), return_tensors="pt", padding=True)
        self.report = PreventionReport()
        self.prompt = inputs["input_ids"]
        processors = options.pop("logits_processor", None) or [Raise(model.config.vocab_size, digits, eos)]
        if "generation_config" not in options and "max_length" not in options:
            options.setdefault("max_new_tokens", 28)
        options = {"do_sample": False, "pad_token_id": PAD, **options}
        torch.manual_seed(seed)
        self.out = generate(
            model,
            input_ids=self.prompt,
            attention_mask=inputs["attention_mask"],
            tokenizer=tokenizer(),
            input_text=options.pop("input_text", CONTEXT),
            logits_processor=LogitsProcessorList(processors),
            on_unsupported=policy,
            report=self.report,
            number_words=False,
            **options,
        )
        self.sequences = self.out if isinstance(self.out, torch.Tensor) else self.out.sequences
        assert self.sequences[:, : self.prompt.shape[1]].tolist() == [
            row for row in self.prompt.tolist() for _ in range(len(self.sequences) // len(self.prompt))
        ]
        self.new = self.sequences[:, self.prompt.shape[1] :].tolist()
        ends = [row.index(EOS) + 1 if EOS in row else len(row) for row in self.new]
        self.ids = [
            [token for token in row[:end] if token != PAD] for row, end in zip(self.new, ends, strict=True)
        ]
        self.texts = [tokenizer().decode(row, skip_special_tokens=True) for row in self.ids]
        self.retractions = self.report.counters["retractions"]

    def assert_sound(self, limit=28):
        assert self.report.counters["returned_dead"] == 0
        for new, ids, text in zip(self.new, self.ids, self.texts, strict=True):
            assert len(ids) <= len(new) <= limit
            assert set(new[len(ids) :]) <= {PAD}
            verdicts = check_text(CONTEXT, text, number_words=False)
            if EOS not in ids:
                verdicts = verdicts[:-1]  # may have been cut
            assert not [v.text for v in verdicts if v.status == "unsupported"], text
        rows = len(self.ids)
        assert self.retractions == len(self.report.retractions) <= rows * retract.RETRACTIONS_PER_ANSWER
        places = [(item.row, item.history_length) for item in self.report.retractions]
        assert max((places.count(place) for place in places), default=0) <= retract.RETRACTIONS_PER_PLACE
        return self


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("rows", [1, 3])
def test_answers_are_supported_and_retractions_bounded(sampled, rows):
    retractions = 0
    for seed in range(5):
        run = Run(
            llama(seed), PROMPTS[:rows], seed=seed, do_sample=sampled, digits=7.0, eos=2.0
        ).assert_sound()
        assert len(run.report.sequences) == rows
        retractions += run.retractions
    assert retractions > 5


def test_returned_sequences():
    total = 0
    for seed in range(3):
        run = Run(llama(seed), PROMPTS[:2], seed=seed, do_sample=True, num_return_sequences=3).assert_sound()
        assert len(run.ids) == 6
        total += run.retractions
    assert total


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
def test_a_run_without_retractions_is_that_of_avoid(sampled):
    same = 0
    for seed in range(6):
        for rows in (1, 3):
            options = {"seed": seed, "do_sample": sampled, "digits": 0.5, "max_new_tokens": 12}
            run = Run(llama(seed), PROMPTS[:rows], **options)
            if not run.retractions:
                assert run.new == Run(llama(seed), PROMPTS[:rows], policy="avoid", **options).new
                same += 1
    assert same >= 2


@pytest.mark.parametrize("rows", [1, 3])
def test_cut_keys_and_values_are_those_of_a_recomputation(rows, monkeypatch):
    runs = [Run(llama(seed), PROMPTS[:rows], eos=1.0, digits=6.0) for seed in range(4)]
    assert sum(run.retractions > 1 for run in runs) >= 2
    monkeypatch.setattr(retract, "_cut", lambda *_: None)
    for seed, run in enumerate(runs):
        assert run.new == Run(llama(seed), PROMPTS[:rows], eos=1.0, digits=6.0).new
        no_cache = Run(llama(seed), PROMPTS[:rows], eos=1.0, digits=6.0, use_cache=False)
        assert run.new == no_cache.new


def test_cut_is_used(monkeypatch):
    """Else the comparison with a recomputation compares a recomputation with itself."""
    kept, original = [], retract._cut

    def spy(*arguments):
        kept.append(original(*arguments))
        return kept[-1]

    monkeypatch.setattr(retract, "_cut", spy)
    Run(llama(1), PROMPTS, digits=6.0)
    Run(llama(1), PROMPTS[:1], digits=6.0)
    assert kept
    assert all(cache is not None for cache in kept)


def test_rows_do_not_depend_on_each_other():
    retractions = 0
    for seed in range(4, 8):
        options = {"digits": 6.0, "eos": 2.0, "min_new_tokens": 9}
        together = Run(llama(seed), PROMPTS, **options)
        retractions += together.retractions
        for row, prompt in enumerate(PROMPTS):
            alone = Run(llama(seed), [prompt], **options)
            assert together.ids[row] == alone.ids[0]
            assert [i.taken_back for i in together.report.retractions if i.row == row] == [
                i.taken_back for i in alone.report.retractions
            ]
    assert retractions > 3


@pytest.mark.parametrize("kind", ["sliding window", "static cache"])
def test_caches_that_cannot_be_cut(kind, monkeypatch):
    options = {"digits": 6.0}
    if kind == "static cache":
        models, options["cache_implementation"] = [llama(seed) for seed in range(3)], "static"
    else:
        models = [mistral(seed) for seed in range(3)]
    runs = [Run(model, PROMPTS[:rows], **options).assert_sound() for model in models for rows in (1, 3)]
    assert sum(run.retractions for run in runs) > 3
    options.pop("cache_implementation", None)
    monkeypatch.setattr(retract, "_cut", lambda *_: None)
    again = [Run(model, PROMPTS[:rows], **options) for model in models for rows in (1, 3)]
    assert [run.new for run in runs] == [run.new for run in again]


@functools.cache
def mistral(seed):
    torch.manual_seed(seed)
    config = MistralConfig(
        vocab_size=len(tokenizer()), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, sliding_window=12,
        pad_token_id=PAD, bos_token_id=1, eos_token_id=EOS,
    )  # fmt: skip
    model = MistralForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(16.0)
    return model


@pytest.mark.parametrize("rows", [1, 3])
def test_limits(rows):
    width = tokenizer()(PROMPTS[:rows], return_tensors="pt", padding=True)["input_ids"].shape[1]
    for most in (1, 2, 5, 13):
        run = Run(llama(1), PROMPTS[:rows], digits=7.0, eos=-30.0, max_new_tokens=most).assert_sound(most)
        assert [len(ids) for ids in run.ids] == [most] * rows
        by_length = Run(llama(1), PROMPTS[:rows], digits=7.0, eos=-30.0, max_length=width + most)
        assert by_length.new == run.new
        config = GenerationConfig(max_new_tokens=most, eos_token_id=EOS, pad_token_id=PAD)
        assert Run(llama(1), PROMPTS[:rows], digits=7.0, eos=-30.0, generation_config=config).new == run.new


def test_no_pad_token_of_its_own():
    for seed in range(4):
        want = Run(llama(seed), PROMPTS, digits=7.0, eos=1.0)
        got = Run(llama(seed), PROMPTS, digits=7.0, eos=1.0, pad_token_id=EOS)
        assert got.ids == want.ids
        assert max(map(len, got.new)) <= 28


@pytest.mark.parametrize("where", ["argument", "configuration", "model"])
def test_min_new_tokens(where, monkeypatch):
    ended = 0
    for seed in range(5):
        if where == "model":
            monkeypatch.setattr(llama(seed).generation_config, "min_new_tokens", 11)
            options = {}
        elif where == "argument":
            options = {"min_new_tokens": 11}
        else:
            config = GenerationConfig(
                min_new_tokens=11, max_new_tokens=28, eos_token_id=EOS, pad_token_id=PAD
            )
            options = {"generation_config": config}
        run = Run(llama(seed), PROMPTS, digits=7.0, eos=14.0, **options).assert_sound()
        assert all(len(ids) >= 12 for ids in run.ids if ids[-1] == EOS)
        assert all(EOS not in ids[:11] for ids in run.new)
        ended += sum(len(ids) < 28 for ids in run.ids)
        said = Run(llama(seed), PROMPTS, digits=7.0, eos=14.0, min_new_tokens=11)
        assert run.new == said.new  # wherever it was said
    assert ended


class StopAfter(StoppingCriteria):
    """Stops a row whose last id is `token`."""

    def __init__(self, token):
        self.token = token

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] == self.token


@pytest.mark.parametrize("rows", [1, 3])
def test_stop_strings_and_criteria(rows):
    plain = Run(llama(2), PROMPTS[:rows], digits=6.0)
    assert plain.retractions
    stopped = 0
    for index in (3, 8, 14):
        token = plain.ids[0][index]
        by_token = Run(
            llama(2), PROMPTS[:rows], digits=6.0, stopping_criteria=StoppingCriteriaList([StopAfter(token)])
        ).assert_sound()
        for ids in by_token.ids:
            assert token not in ids[:-1]
        assert token in by_token.ids[0]
        piece = tokenizer().decode([token])
        if piece.strip() and piece.isascii() and not piece.isdigit():
            by_text = Run(llama(2), PROMPTS[:rows], digits=6.0, stop_strings=[piece]).assert_sound()
            for text in by_text.texts:
                assert piece not in text[: -len(tokenizer().decode([by_text.ids[0][-1]]))] or rows > 1
            stopped += by_text.texts[0].endswith(piece) or piece in by_text.texts[0]
        stopped += 1
    assert stopped


@pytest.mark.parametrize("rows", [1, 3])
def test_returned_scores_belong_to_the_ids(rows):
    retractions = 0
    for seed in range(4):
        options = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
        run = Run(llama(seed), PROMPTS[:rows], digits=6.0, eos=2.0, **options).assert_sound()
        retractions += run.retractions
        longest = len(run.new[0])
        assert len(run.out.scores) == len(run.out.logits) == longest
        for row, ids in enumerate(run.ids):
            for at, token in enumerate(ids):
                assert int(run.out.scores[at][row].argmax()) == token
                assert torch.isfinite(run.out.logits[at][row, token])
        # the logits are those of an undisturbed pass over the kept ids
        for row, ids in enumerate(run.ids):
            prompt = tokenizer()(PROMPTS[row], return_tensors="pt")["input_ids"]
            whole = torch.cat([prompt, torch.tensor([ids])], dim=1)
            with torch.no_grad():
                want = llama(seed)(whole).logits[0, prompt.shape[1] - 1 : -1]
            got = torch.stack([run.out.logits[at][row] for at in range(len(ids))])
            torch.testing.assert_close(got, want.float(), atol=1e-3, rtol=1e-3)
        assert isinstance(Run(llama(seed), digits=6.0).out, torch.Tensor)
    assert retractions


class Recorder:
    """A streamer that notes what it was shown."""

    def __init__(self):
        self.shown = []
        self.ended = 0

    def put(self, value):
        self.shown.append(value.reshape(-1).tolist())

    def end(self):
        self.ended += 1


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
def test_nothing_shown_is_taken_back(sampled):
    retractions = 0
    for seed in range(4):
        for options in ({}, {"eos": 2.0}, {"max_new_tokens": 9}):
            recorder = Recorder()
            run = Run(llama(seed), seed=seed, do_sample=sampled, digits=6.0, streamer=recorder, **options)
            assert recorder.shown[0] == run.prompt[0].tolist()
            assert [token for ids in recorder.shown[1:] for token in ids] == run.ids[0]
            assert recorder.ended == 1
            retractions += run.retractions
            plain = Run(llama(seed), seed=seed, do_sample=sampled, digits=6.0, **options)
            assert plain.ids == run.ids
    assert retractions > 4


def test_streamed_text():
    for seed in range(4):
        streamer = TextIteratorStreamer(tokenizer(), skip_prompt=True, skip_special_tokens=True)
        run = Run(llama(seed), digits=6.0, streamer=streamer)
        assert "".join(streamer) == run.texts[0]


def test_tokens_of_an_open_literal_are_held():
    recorder, shown = Recorder(), {}

    class Watch:
        """Notes, before each token, what is written and how much of it has been shown."""

        def __call__(self, input_ids, scores):
            written = tokenizer().decode(input_ids[0, self.base :], skip_special_tokens=True)
            seen = [token for ids in recorder.shown[1:] for token in ids]
            shown[written] = tokenizer().decode(seen, skip_special_tokens=True)
            return scores

    text = "it was 2400 million then, I think"
    Watch.base = tokenizer()(PROMPTS[:1], return_tensors="pt")["input_ids"].shape[1]
    Run(llama(), logits_processor=[Insist(text), Watch()], streamer=recorder)
    assert shown["it was 24"] == shown["it was 2400"] == "it was"
    assert shown["it was 2400 million"] == "it was"
    assert shown[text] == text
    whole = [token for ids in recorder.shown[1:] for token in ids]
    assert tokenizer().decode(whole, skip_special_tokens=True) == text


@pytest.mark.parametrize(
    ("text", "place"),
    [("In 2023 it fell.", "In "), ("2023 was bad", ""), ("It rose by 12 percent", "It rose by ")],
)
def test_what_the_host_meant(text, place):
    run = Run(llama(), logits_processor=[Insist(text), Raise(llama().config.vocab_size, 0.0, -3.0)])
    run.assert_sound()
    first = run.report.retractions[0]
    assert first.taken_back
    assert run.report.to_dict()["retractions"][0]["taken_back"] == first.taken_back
    assert tokenizer().decode(run.ids[0][: first.history_length]) == place.rstrip() or place.startswith(
        tokenizer().decode(run.ids[0][: first.history_length])
    )
    assert "took back" in run.report.summary()
    after = tokenizer().decode(run.ids[0][first.history_length :][:1])
    assert not re.match(r"\s*\d", after)


def test_rows_retract_independently():
    texts = ("In 2023 it fell.", "In 2021 it rose.", "It rose by 12 percent.")
    run = Run(llama(), PROMPTS, logits_processor=[Insist(*texts)]).assert_sound()
    assert {item.row for item in run.report.retractions} == {0, 2}
    assert run.texts[1] == texts[1]


def test_a_literal_that_began_in_the_prompt_is_held():
    """There is nothing to go back to: it is held, and each time counted."""
    run = Run(llama(), [CONTEXT + " In 20"], logits_processor=[Insist("23 it fell")])
    assert not run.report.retractions
    assert run.report.counters["retractions_refused"] == run.report.counters["forced"] >= 1
    assert run.report.counters["returned_dead"] == 0
    digits = [unicodedata.decimal(char) for char in run.texts[0][:2]]  # of whatever script
    assert digits in ([2, 1], [2, 2])


def test_a_prompt_of_one_token():
    for seed in range(3):
        run = Run(llama(seed), ["a"], digits=7.0).assert_sound()
        assert len(run.ids[0]) == 28 or run.ids[0][-1] == EOS


def test_bounds_are_kept(monkeypatch):
    monkeypatch.setattr(retract, "RETRACTIONS_PER_ANSWER", 2)
    refused = 0
    for seed in range(4):
        run = Run(llama(seed), digits=9.0, eos=-30.0, max_new_tokens=60).assert_sound(60)
        assert run.retractions <= 2
        refused += run.report.counters["retractions_refused"]
        assert run.report.counters["forced"] >= run.report.counters["retractions_refused"]
    assert refused


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
def test_beams_are_closed_off_and_end_up_supported(sampled):
    closed = 0
    for seed in range(4):
        options = {"digits": 6.0, "num_beams": 4, "do_sample": sampled, "seed": seed}
        for prompts in (PROMPTS[:1], PROMPTS[:2]):
            run = Run(llama(seed), prompts, num_return_sequences=2, **options).assert_sound()
            assert not run.retractions
            assert not run.report.counters["retract_unavailable"]
            closed += run.report.counters["beams_closed"]
            returned = [item.action for item in run.report.interventions if item.returned]
            assert returned.count("forced") <= run.report.counters["beams_held"]
    assert closed > 4


def test_beams_that_say_something_else_win():
    """Those that hold a number are on fewer returned answers than with "avoid"."""
    held = dict.fromkeys(("avoid", "retract"), 0)
    for seed in range(6):
        for policy in held:
            run = Run(llama(seed), policy=policy, digits=4.0, num_beams=4)
            actions = [item.action for item in run.report.interventions if item.returned]
            held[policy] += actions.count("forced") + actions.count("closed")
    assert held["retract"] < held["avoid"]


@pytest.mark.parametrize("kind", ["assisted", "prompt lookup", "embeddings", "streamed batch", "attentions"])
def test_modes_that_cannot_go_back_hold_literals(kind):
    options = {
        "assisted": {"assistant_model": llama(7)},
        "prompt lookup": {"prompt_lookup_num_tokens": 3},
        "embeddings": {"inputs_embeds": None},
        "streamed batch": {"num_return_sequences": 2, "do_sample": True, "streamer": Recorder()},
        "attentions": {"output_attentions": True, "return_dict_in_generate": True},
    }[kind]
    if kind == "embeddings":
        report = PreventionReport()
        ids = tokenizer()(PROMPTS[0], return_tensors="pt")["input_ids"]
        generate(
            llama(),
            inputs_embeds=llama().get_input_embeddings()(ids),
            attention_mask=torch.ones_like(ids),
            tokenizer=tokenizer(),
            input_text=CONTEXT,
            on_unsupported="retract",
            max_new_tokens=8,
            report=report,
        )
    else:
        if kind == "attentions":
            llama().set_attn_implementation("eager")
        try:
            run = Run(llama(), digits=6.0, **options)
        finally:
            llama().set_attn_implementation("sdpa")
        report = run.assert_sound().report
    assert report.counters["retract_unavailable"] == 1
    assert not report.retractions


def test_encoder_decoder_holds_literals():
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=len(tokenizer()), d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=256,
        pad_token_id=PAD, bos_token_id=1, eos_token_id=EOS, decoder_start_token_id=EOS, forced_eos_token_id=None,
    )  # fmt: skip
    model = BartForConditionalGeneration(config).eval()
    report = PreventionReport()
    generate(
        model,
        tokenizer()(CONTEXT, return_tensors="pt")["input_ids"],
        tokenizer=tokenizer(),
        input_text=CONTEXT,
        on_unsupported="retract",
        max_new_tokens=12,
        report=report,
    )
    assert report.counters["retract_unavailable"] == 1
    assert report.counters["returned_dead"] == 0


def test_max_time_and_skipping():
    run = Run(llama(1), digits=7.0, max_time=60.0).assert_sound()
    assert run.new == Run(llama(1), digits=7.0).new
    assert Run(llama(1), digits=7.0, max_time=0.0).sequences.shape[1] <= run.prompt.shape[1] + 2


def test_evidence_and_a_second_generation_into_one_report():
    report = PreventionReport()
    ids = tokenizer()(PROMPTS[0], return_tensors="pt")["input_ids"]
    for _ in range(2):
        generate(
            llama(1), ids, tokenizer=tokenizer(), input_text=CONTEXT, on_unsupported="retract", report=report,
            logits_processor=[Raise(llama(1).config.vocab_size, 7.0)], max_new_tokens=20, do_sample=False,
        )  # fmt: skip
    assert report.runs == 2
    assert len(report.sequences) == 2
    by_run = [[i.taken_back for i in report.retractions if i.run == run] for run in (1, 2)]
    assert by_run[0] == by_run[1] != []
    for item in report.retractions:
        assert item.instead


def test_custom_generate(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path))
    ids = tokenizer()(PROMPTS[0], return_tensors="pt")["input_ids"]
    found, report = [], {}
    processors = LogitsProcessorList([Raise(llama(1).config.vocab_size, 7.0)])
    options = {
        "tokenizer": tokenizer(), "input_text": CONTEXT, "on_unsupported": "retract", "max_new_tokens": 20,
        "do_sample": False, "logits_processor": processors,
    }  # fmt: skip
    found.append(generate(llama(1), ids, **options).tolist())
    route = {"custom_generate": str(REPOSITORY), "trust_remote_code": True, "report": report}
    found.append(llama(1).generate(ids, **route, **options).tolist())
    assert found[0] == found[1]
    assert report["retractions"]
    assert report["options"]["on_unsupported"] == "retract"


def test_command_line(tmp_path, capsys):
    tokenizer().save_pretrained(tmp_path / "host")
    make_llama(len(tokenizer()), seed=1, peak=2.0).save_pretrained(tmp_path / "host")
    (tmp_path / "context.txt").write_text(CONTEXT, encoding="utf-8")
    files = {
        "--model": tmp_path / "host",
        "--context": tmp_path / "context.txt",
        "--report": tmp_path / "r.json",
    }
    arguments = [str(part) for item in files.items() for part in item]
    options = ["--question", "When?", "--max-new-tokens", "12", "--on-unsupported", "retract"]
    assert main(["generate", *arguments, *options]) == 0
    report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert report["options"]["on_unsupported"] == "retract"
    assert not report["counters"].get("retract_unavailable")
    capsys.readouterr()


@pytest.mark.parametrize(
    ("script", "kept", "taken_back"),
    [("It rose by 99 percent", "It rose by", " "), ("It was in 2023 again", "It was in", " 202")],
)
def test_a_blank_token_before_digits_is_taken_back_with_them(script, kept, taken_back):
    """Kept, it would leave the host nothing to say but a number, a line break or a bullet."""
    assert tokenizer().tokenize(" 99 2023")[:2] == ["Ġ", "9"]
    run = Run(llama(), logits_processor=[Insist(script)])
    run.assert_sound()
    first = run.report.retractions[0]
    assert (first.taken_back, first.history_length) == (taken_back, len(tokenizer().encode(kept)))
    assert run.texts[0].startswith(kept) and not run.texts[0].startswith(kept + " ")


def test_a_blank_that_may_be_taken_back_is_not_shown():
    class Collect(TextIteratorStreamer):
        def __init__(self):
            super().__init__(tokenizer(), skip_prompt=True)
            self.ids = []

        def put(self, value):
            self.ids.append(value.reshape(-1).tolist())

    streamer = Collect()
    run = Run(llama(), logits_processor=[Insist("It rose by 99 percent")], streamer=streamer)
    assert run.retractions
    assert [token for ids in streamer.ids[1:] for token in ids] == run.ids[0]


@pytest.mark.parametrize(
    ("context", "script", "kept", "taken_back"),
    [
        ("On March 5 and in 2021 it rained.", "It was March 5, 2022 again", "It was March 5,", " 202"),
        ("On March 5 it rained.", "It was March 5, 2022 again", "It was March 5,", None),
        ("He ran 5 miles, or 5,200 yards.", "It was 5,300 again", "It was", " 5,"),
        ("Some 5 men came; 7 million.", "It was 5 million again", "It was", " 5"),
    ],
)
def test_of_a_date_whose_year_is_wrong_the_day_stays(context, script, kept, taken_back):
    run = Run(llama(), logits_processor=[Insist(script)], input_text=context)
    found = [(r.taken_back, r.history_length) for r in run.report.retractions[:1]]
    # The year may come in one token with its blank; then there is nothing to take back.
    assert found == ([(taken_back, len(tokenizer().encode(kept)))] if taken_back else [])
    assert run.report.counters["forced"] == 0
    assert run.texts[0].startswith(kept)
    assert not [v for v in check_text(context, run.texts[0]) if v.status == "unsupported" and "20" in v.text]
