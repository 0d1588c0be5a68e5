"""What the processor means to do with one row at one step, and what it keeps of it for the report."""

from __future__ import annotations

from typing import Any

from .candidates import Scored
from .grounding import Grounding
from .masking import Prepared
from .report import Intervention
from .rows import Node


class Plan:
    """One row of one call.

    first: the host's first choice. prepared: the masks, one per literal detector. by: which of them blocks
    the first choice, -1 for none. action: as in `Intervention`. no_starts: the detector all of whose literal
    starts are blocked as well, -1 for none. closed: no literal at all may start here, and with `no_blanks` no token of
    blanks may come. shut: the row is a beam that is closed off. lost: a detector failed and the
    row must fail closed. sound: the first choice is a way out. gated: model detectors are not asked.
    """

    __slots__ = (
        "action", "by", "closed", "first", "gated", "lost", "no_blanks", "no_starts", "node", "prepared", "row", "shut",
        "sound",
    )  # fmt: skip

    def __init__(self, row: int, node: Node, first: int, prepared: list[Prepared], by: int) -> None:
        self.row = row
        self.node = node
        self.first = first
        self.prepared = prepared
        self.by = by
        self.action = "blocked"
        self.no_starts = -1
        self.closed = False
        self.no_blanks = False
        self.shut = False
        self.lost = False
        self.sound = False
        self.gated = False

    @property
    def masks_only(self) -> bool:
        """Whether one mask is all there is to apply."""
        return len(self.prepared) == 1 and self.no_starts < 0 and not self.closed and not self.lost


class InterventionRecord:
    """An intervention as it is kept: references only, nothing is looked up before somebody reads it.

    detector: the literal detector of the row, or None where `scored` says what a model detector found.
    """

    __slots__ = (
        "action",
        "detector",
        "evidence",
        "first_choice",
        "grounding",
        "node",
        "returned",
        "row",
        "run",
        "scored",
        "state",
        "step",
        "token",
        "vocabulary",
    )

    def __init__(self, where: tuple[int, int, int], plan: Plan, token: int, action: str) -> None:
        self.run, self.step, self.row = where
        self.node = plan.node
        self.token = token
        self.action = action
        self.first_choice = token == plan.first
        self.detector: Any = None
        self.state: Any = None
        self.scored: Scored | None = None
        self.grounding: Grounding | None = None
        self.vocabulary: Any = None
        self.evidence = "offsets"
        self.returned: bool | None = None

    def build(self) -> Intervention:
        """The Intervention, with its evidence looked up."""
        found = self.detector.explain(self.state, self.token) if self.detector is not None else None
        span = getattr(found, "span", None) if self.evidence != "none" else None
        text = None
        if span is not None and self.evidence == "text" and self.grounding is not None:
            text = self.grounding.text[span[0] : span[1]]
        source: Any = self.scored if self.scored is not None else self.detector
        return Intervention(
            run=self.run,
            step=self.step,
            row=self.row,
            history_length=self.node.depth,
            token_id=self.token,
            text=self.vocabulary[self.token].decode("utf-8", "replace"),
            detector=source.detector if self.scored is not None else source.name,
            version=source.version,
            score=self.scored.score if self.scored is not None else None,
            threshold=self.scored.threshold if self.scored is not None else None,
            label=str(getattr(found, "label", "unsupported")),
            first_choice=self.first_choice,
            action=self.action,
            literal=getattr(found, "literal", None),
            nearest=getattr(found, "nearest", None) if self.evidence != "none" else None,
            span=(int(span[0]), int(span[1])) if span is not None else None,
            evidence=text,
            returned=self.returned,
        )
