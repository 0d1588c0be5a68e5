from __future__ import annotations

import json
import warnings
from dataclasses import replace

import pytest
from fakes import make_llama, make_tokenizer

import lettuceprevent
from lettuceprevent.generation import generate
from lettuceprevent.profiles import Profile, Unset, describe_host
from lettuceprevent.report import PreventionReport
from lettuceprevent.vocabulary import Vocabulary

CONTEXT = "Revenue was 2400 million in 2021 and 3100 million in 2022."


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    return make_llama(len(tokenizer))


@pytest.fixture
def profile(model, tokenizer):
    return Profile(
        detector={"type": "number", "versions": {"number": "1"}},
        options={"skip_threshold": 0.7, "on_unsupported": "substitute", "units": False},
        host=describe_host(model, Vocabulary.for_tokenizer(tokenizer)),
        versions={"lettuceprevent": lettuceprevent.__version__},
    )


def used(model, tokenizer, profile, **options):
    """The options of the report, and the warnings."""
    report = PreventionReport()
    inputs = tokenizer(CONTEXT, return_tensors="pt", return_token_type_ids=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        generate(
            model,
            **inputs,
            tokenizer=tokenizer,
            input_text=CONTEXT,
            report=report,
            profile=profile,
            max_new_tokens=2,
            **options,
        )
    return report.options, [str(item.message) for item in caught if "profile" in str(item.message)]


def test_a_profile_fills_in_what_the_call_leaves_open(model, tokenizer, profile, tmp_path):
    path = tmp_path / "profile.json"
    profile.save(path)
    assert (
        Profile.load(path) == Profile.load(str(path)) == Profile.load(json.loads(path.read_text())) == profile
    )
    options, complaints = used(model, tokenizer, str(path))
    assert (options["skip_threshold"], options["on_unsupported"], options["units"]) == (
        0.7,
        "substitute",
        False,
    )
    assert options["profile"] == str(path)
    assert complaints == []
    options, complaints = used(model, tokenizer, profile, skip_threshold=0.2, on_unsupported=None)
    assert (options["skip_threshold"], options["on_unsupported"]) == (0.2, "substitute")
    assert complaints == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"host": {"id": "other/Host", "shape": "x", "vocabulary": "y"}}, "host is .*made for 'other/Host'"),
        ({"detector": {"type": "number", "versions": {"number": "0"}}}, "number has version '1', not '0'"),
        ({"versions": {"lettuceprevent": "0.0.0"}}, "not 0.0.0"),
    ],
    ids=["host", "detector", "version"],
)
def test_another_host_detector_or_version_is_said(model, tokenizer, profile, change, said):
    import re

    _, (complaint,) = used(model, tokenizer, replace(profile, **change))
    assert re.search(said, complaint)


def test_another_detector_gets_no_detector_options(model, tokenizer, profile):
    other = replace(profile, detector={"type": "lettuceprevent", "versions": {}})
    options, (complaint,) = used(model, tokenizer, other, detector_type="number")
    assert options["skip_threshold"] == 0.7 and "units" not in options
    assert "the detector is 'number', it was made for 'lettuceprevent'" in complaint


def test_a_gate_goes_with_its_detector_alone(profile):
    gated = replace(
        profile,
        detector={"type": "number+lettuceprevent", "versions": {}},
        options={"skip_threshold": 0.7, "gate": "probe", "gate_threshold": 0.2},
    )
    arguments = {}
    assert gated.fill(arguments, Unset("number")) == "number+lettuceprevent"
    assert arguments == gated.options
    arguments = {}  # there would be nothing to gate
    assert gated.fill(arguments, "number") == "number" and arguments == {"skip_threshold": 0.7}


def test_detector_of_the_profile(profile):
    arguments = {}
    assert profile.fill(arguments, None) is None  # unchecked stays unchecked
    assert "units" not in arguments


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "expected format, detector"),
        ('{"format": 1}', "got none of detector"),
        ("{", "expected a JSON file"),
    ],
)
def test_what_is_no_profile(tmp_path, content, said):
    path = tmp_path / "p.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=said):
        Profile.load(path)
    with pytest.raises(ValueError, match="expected format 1"):
        Profile.load({"format": 2, "detector": {}, "options": {}, "host": {}})
    with pytest.raises(ValueError, match="expected a JSON file"):
        Profile.load(tmp_path / "absent.json")


def test_an_infinite_penalty_survives_the_file(model, tokenizer, profile, tmp_path):
    """Strict JSON has no -inf: tuning writes it as text."""
    replace(profile, options={**profile.options, "penalty": "-inf"}).save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json").options["penalty"] == float("-inf")
    assert used(model, tokenizer, str(tmp_path / "p.json"))[1] == []
