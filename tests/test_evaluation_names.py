"""Names and identifiers without support: what is judged, and what capitals do not say."""

from __future__ import annotations

import pytest

from lettuceprevent.evaluation.auditors import MissingContext, NameAuditor, Sample
from lettuceprevent.evaluation.names import unsupported_names
from lettuceprevent.grounding import Grounding

CONTEXT = (
    "Reese Moore of Tishomingo County signed with Freed-Hardeman. The NATO summit was in Vilnius. "
    "Room B12 is user_id 7."
)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("She signed with Freed-Hardeman in Tishomingo.", []),
        ("She signed with Harvard University.", ["Harvard University"]),
        ("He met Reese Moore's coach Ann Smith there.", ["Ann Smith"]),
        ("It was a NATO summit, not an OPEC one.", ["OPEC"]),
        ("Moore's team. Smith won.", []),  # capitals at the beginning of a sentence say nothing
        ('She said "Yes" and left.', []),
        ("- Coach of the year\n- Player of the week", []),
        ("**Cleaning Wine Glasses by Hand**\nRinse it.", []),  # a heading
        ("the room is B12, not B13", ["B13"]),
        ("the field user_id, not user_name", ["user_name"]),
        ("the 1980s, the 21st and 7am", []),  # numbers are the checker's
        ("I think I'm right", []),
        ("reese moore and VILNIUS", []),
        ("", []),
    ],
)
def test_what_is_found(answer: str, expected: list[str]) -> None:
    found = unsupported_names(answer, [CONTEXT])
    assert [answer[start:end] for start, end in found] == expected


def test_the_question_is_evidence_and_an_empty_context_is_not() -> None:
    auditor = NameAuditor()
    sample = Sample(Grounding((CONTEXT,), "What of Harvard?"), "She left for Harvard and for Yale.")
    assert [sample.answer[span.start : span.end] for span in auditor.audit(sample)] == ["Yale"]
    with pytest.raises(MissingContext):
        auditor.audit(Sample(Grounding(("",), "What of Harvard?"), "Yale"))
