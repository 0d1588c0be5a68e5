from __future__ import annotations

import math
import random

import pytest

from lettuceprevent.evaluation.degeneration import flags, gate, perplexity_ratio, repetition, rouge_l, shape

GOOD = (
    "The company said on Monday that its revenue rose in 2022, helped by strong demand for its new products."
)


def of(text, perplexity=2.0):
    tokens = len(text.split())
    return shape(text, tokens, [-math.log(perplexity)] * max(tokens, 1))


def test_shapes_by_hand():
    assert repetition("a b c d a b c d") == pytest.approx(1 - 4 / 5)
    assert repetition("a b c") == 0
    found = shape("12 ab", 2, [-1.0, -2.0])
    assert (found.characters, found.digits, found.digit_share) == (4, 2, 0.5)
    assert found.perplexity == pytest.approx(math.exp(1.5))
    assert shape("", 0).perplexity is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (GOOD, []),
        ("", ["empty"]),
        ("the cat sat on the mat. " * 5, ["repetition"]),
        (
            "It cost 1 000 1 000 1 000 1 000 1 000 1 000 and no more than that, as we know from it.",
            ["loop", "digits"],
        ),
        ("They grew by 222222222222222222 and more.", ["loop", "digits"]),
        ("no no no no no no no", ["loop"]),
        ("Call 555 1234 or 555 9876", ["digits"]),
    ],
)
def test_flags(text, wanted):
    assert set(wanted) <= set(flags(of(text)))
    assert bool(flags(of(text))) == bool(wanted)


def test_flags_beside_the_plain_answer():
    assert flags(of("Revenue rose."), of(GOOD)) == ["length"]
    assert flags(of(GOOD, 20.0), of(GOOD, 2.0)) == ["perplexity"]
    assert flags(of(GOOD, 5.0), of(GOOD, 2.0)) == []


def test_an_arm_that_collapsed_into_digits_fails():
    collapsed = [of("The revenue was 000000000000000000000000000 0000000000000")] * 10
    reasons = gate(collapsed, [of(GOOD)] * 10)
    assert "100% of its answers are degenerate" in reasons
    assert any("of its characters are digits" in reason for reason in reasons)


def test_arms_beside_plain():
    plain = [of(GOOD)] * 20
    loop = of("no no no no no no no " + GOOD)
    assert gate(plain, plain) == []
    assert gate([loop, *plain[1:]], plain) == []
    assert gate([loop, loop, *plain[2:]], plain) == [
        "10% of its answers are degenerate, of the plain ones 0%"
    ]
    assert gate([of(GOOD, 4.0)] * 20, plain) == ["its perplexity is 2.00 times that of the plain answers"]
    assert gate([of("Revenue rose a bit.")] * 20, plain)[0].startswith("its answers are 0.21 times as long")
    assert gate(plain, [loop] * 20) == ["the plain arm: 100% of its answers are degenerate"]
    with pytest.raises(ValueError, match="a plain answer for each of 20"):
        gate(plain, plain[:3])


def test_an_arm_that_gives_up_on_some_prompts_fails():
    # neither the median length nor the mean perplexity moves, and what is left of an answer is in good shape
    plain, short = [of(GOOD)] * 20, of("Revenue rose.")
    assert gate([short, short, *plain[2:]], plain) == []  # one in ten
    assert gate([short] * 3 + plain[3:], plain) == [
        "15% of its answers are flagged beside the plain ones, of those 0%"
    ]
    strange = of(GOOD, 7.0)  # 3.5 times the plain perplexity
    assert "15% of its answers are flagged" in gate([strange] * 3 + plain[3:], plain)[0]
    # what the plain answers have as well is not the arm's doing
    loop = of("no no no no no no no " + GOOD)
    assert gate([loop] * 3 + plain[3:], [loop] * 3 + plain[3:]) == []
    assert gate([loop] * 3 + [short] * 2 + plain[5:], [loop] * 3 + plain[3:]) == []


def test_perplexity_ratio_is_a_geometric_mean():
    assert perplexity_ratio([of(GOOD, 2), of(GOOD, 8)], [of(GOOD, 2), of(GOOD, 2)]) == pytest.approx(2)
    assert perplexity_ratio([shape("a", 1)], [shape("a", 1)]) is None


def slow_rouge(a, b):
    a, b = a.lower().split(), b.lower().split()
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    return 2 * table[-1][-1] / (len(a) + len(b)) if a or b else 1.0


def test_rouge_l():
    # the police killed the gunman / police ended the gunman: police, the, gunman are common: 2 * 3 / (5 + 4)
    assert rouge_l("the police killed the gunman", "police ended the gunman") == pytest.approx(6 / 9)
    assert rouge_l("", "") == 1
    assert rouge_l("a", "") == 0
    assert rouge_l("A, b!", "a b") == 1
    draw = random.Random(0)
    for _ in range(200):
        a, b = (" ".join(draw.choices("abcde", k=draw.randrange(12))) for _ in range(2))
        assert rouge_l(a, b) == pytest.approx(slow_rouge(a, b))
