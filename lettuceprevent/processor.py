"""The logits processor: between the host's logits and the sampler.

Contract, by its names in the design: tokens that are not penalised keep their exact scores and the scores
that came in are never edited (C3); a row depends on nothing but its own grounding and history (C4); at every
step a token with text stays possible where one was (C5); a penalty lowers a score whatever its sign (C6);
failures and skipped checks are counted (C7). One transfer from the device a step, one more where the first
choice is masked; what a probe says of the host travels with it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from transformers import LogitsProcessor

from .candidates import CandidateCheck, Scored, own_threshold
from .detectors import (
    DETECTOR_OPTIONS,
    PROBE,
    Detector,
    Evidence,
    Ids,
    LiteralDetector,
    ModelDetector,
    ScoreRequest,
    TokenMask,
    build_detectors,
    contains,
    parse_detector_type,
)
from .grounding import Grounding, as_groundings
from .masking import MaskCache, Prepared, Row, host_chances, lower_, on_host, top_chances
from .plans import InterventionRecord, Plan
from .probe import HEADS, Watched
from .report import PreventionReport, SequenceSummary, TokenRisks
from .rows import Node, Rows, prompt_tail
from .vocabulary import Vocabulary

Tree: TypeAlias = dict[tuple[int, int], list[Node]]
ON_UNSUPPORTED = ("avoid", "substitute", "retract")
ON_ERROR = ("raise", "allow", "block")
_LOST = object()  # the state of a literal detector that failed, until the generation ends
_FREE = TokenMask(blocked=np.empty(0, dtype=np.int64), starts=np.empty(0, dtype=np.int64))
_NO_ENDS: frozenset[int] = frozenset()
# What a beam that is closed off loses, in nats: no other beam is so much worse, and e to the minus this is not 0 in
# float32. Minus infinity would have beam search fill up with forbidden tokens where it is short of others.
SHUT = 64.0


class PreventionLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """Penalises what the detectors do not find supported.

    detectors: what `build_detectors` returns: a list or tuple with one literal detector per grounding, a
        single literal detector, or a model detector. Row r of a call is held to grounding r // (rows /
    groundings). eos_token_ids: tokens that end an answer. end_token_ids: further tokens without text that may
        not come inside an unfinished literal; by default every special token of the vocabulary.
    prompt_length: width of the prompt in `input_ids`; None takes it from the first call, and anew whenever
        the ids do not go on from the last ones. Pass it wherever it is known.
    skip_threshold: no check where the host's top probability is strictly above it; 1.0 always checks.
    candidates, confidence_threshold, unscored: how many tokens model detectors score, the probability above
        which one is unsupported (None: the model detector's own, see `own_threshold`), and what becomes of the
        rest ("drop" or "keep").
    penalty: subtracted whatever its sign; infinite (the default) forbids.
    on_unsupported: "avoid" | "substitute" | "retract". A processor alone cannot go back: without generation.py
        the last is "avoid"; with `num_beams` it closes off the beams that "avoid" would hold.
    on_error: "raise" | "allow" | "block". evidence: "offsets" | "text" | "none".
    watched: of `probe.watch(model, probe)`, entered before generate() is called: what the probe says of each
        step and token goes into the report. gate: "probe" asks the model detectors only where its risk is above
        gate_threshold (by default that of its card; 0 always asks, 1 never); literal detectors always check.
    synchronize: wait for the device at each time stamp, for exact stage times.
    """

    supports_continuous_batching = False

    def __init__(
        self,
        vocabulary: Any,
        groundings: Sequence[Grounding],
        detectors: Sequence[Detector],
        *,
        eos_token_ids: Iterable[int] | int = (),
        end_token_ids: Iterable[int] | None = None,
        prompt_length: int | None = None,
        skip_threshold: float = 1.0,
        candidates: int = 10,
        confidence_threshold: float | None = None,
        penalty: float = -math.inf,
        unscored: str = "drop",
        on_unsupported: str = "avoid",
        on_error: str = "raise",
        num_beams: int = 1,
        evidence: str = "offsets",
        report: PreventionReport | None = None,
        synchronize: bool = False,
        watched: Watched | None = None,
        gate: str | None = None,
        gate_threshold: float | None = None,
    ) -> None:
        _one_of("unscored", unscored, ("drop", "keep"))
        _one_of("on_unsupported", on_unsupported, ON_UNSUPPORTED)
        _one_of("on_error", on_error, ON_ERROR)
        _one_of("evidence", evidence, ("offsets", "text", "none"))
        _between("skip_threshold", skip_threshold)
        if math.isnan(penalty) or penalty == 0:
            raise ValueError(f"penalty: expected a number other than 0, or -inf, got {penalty}")
        if candidates < 1 or num_beams < 1:
            raise ValueError(
                f"expected candidates and num_beams of at least 1, got {candidates} and {num_beams}"
            )
        self.vocabulary = vocabulary
        self.groundings = list(groundings)
        self.report = report if report is not None else PreventionReport()
        self.on_unsupported = on_unsupported
        self.on_error = on_error
        self.evidence = evidence
        self.skip_threshold = skip_threshold
        self.penalty = abs(penalty)
        self.synchronize = synchronize
        self.num_beams = num_beams
        # True while a draft model generates: its steps are masked, but they are not the host's and do not
        # count.
        self.drafting = False
        # (row, history length) at which no literal may start -> whether no token of blanks may come either.
        self.closed: dict[tuple[int, int], bool] = {}
        # Asked where a first choice is masked inside a literal: (row, node, first choice) -> whether the row
        # will go back to where the literal began. None: nobody can go back, the literal is held.
        self.retract: Callable[[int, Node, int], bool] | None = None
        eos = [eos_token_ids] if isinstance(eos_token_ids, int) else eos_token_ids
        self.eos = frozenset(int(token) for token in eos)
        others = vocabulary.special_ids if end_token_ids is None else end_token_ids
        ends = self.eos.union(int(token) for token in others)
        self._textual_ends = sorted(token for token in self.eos if vocabulary[token])
        self._silent_ends = frozenset(token for token in ends if not vocabulary[token])
        self._literals, self._models = _sorted_detectors(detectors, len(self.groundings))
        if confidence_threshold is None:
            confidence_threshold = own_threshold(self._models)
        _between("confidence_threshold", confidence_threshold)
        self._watched = watched
        self._visited: list[Node] = []  # the nodes of this generation that the probe spoke of
        self.gate_threshold = _gate(gate, gate_threshold, watched, bool(self._models))
        self._leaky = bool(self._literals) and all(hasattr(group[0], "leaked") for group in self._literals)
        self._masks = MaskCache(vocabulary)
        self._rows = Rows(self._start, self._step, prompt_length)
        self._candidates = CandidateCheck(
            self._models,
            count=max(candidates, max(2, 1 + len(self.eos)) * num_beams),
            threshold=confidence_threshold,
            keep_unscored=unscored == "keep",
            penalty=self.penalty,
            on_error=on_error,
            ends=self.eos,
            vocabulary=vocabulary,
        )
        self._scrap: Counter[str] = Counter()
        self._call = -1
        self._run_began = 0
        self._elapsed_before = 0
        self._describe_options(confidence_threshold, unscored, candidates)

    @classmethod
    def for_host(
        cls,
        tokenizer: Any,
        input_text: Any,
        *,
        detector: str | None = "number",
        query: str | Sequence[str] | None = None,
        rows: int | None = None,
        eos_token_ids: Iterable[int] | int | None = None,
        **options: Any,
    ) -> PreventionLogitsProcessor:
        """A processor for people who own their generate() call.

        `input_text` and `query` as for `as_groundings`; `eos_token_ids` defaults to the tokenizer's. Options
        of the detector (number_words, units, rounding, derived, ...) and of the processor are told apart by
        name.
        """
        began = time.perf_counter_ns()
        own = {key: value for key, value in options.items() if key in DETECTOR_OPTIONS}
        rest = {key: value for key, value in options.items() if key not in DETECTOR_OPTIONS}
        vocabulary = Vocabulary.for_tokenizer(tokenizer)
        groundings = as_groundings(input_text, query, rows)
        if PROBE in parse_detector_type(detector) and options.get("watched") is None:
            raise ValueError(
                "watched: expected what probe.watch(model, probe) returns, got None: a processor alone does not see "
                "the host's states"
            )
        detectors = build_detectors(detector, tokenizer, vocabulary, groundings, **own)
        if eos_token_ids is None:
            eos = getattr(tokenizer, "eos_token_id", None)
            eos_token_ids = () if eos is None else eos
        processor = cls(vocabulary, groundings, detectors, eos_token_ids=eos_token_ids, **rest)
        processor.report.options.update(detector=detector, **own)
        processor.report.timings.prepare_ns += time.perf_counter_ns() - began
        return processor

    def for_draft(self) -> PreventionLogitsProcessor:
        """A processor for a draft model with the same vocabulary: the same masks, but nothing is counted."""
        draft = PreventionLogitsProcessor(
            self.vocabulary,
            self.groundings,
            [*self._literals, *self._models],
            eos_token_ids=self.eos,
            prompt_length=self._rows.fixed,
            penalty=self.penalty,
            on_unsupported="substitute",
            on_error=self.on_error,
        )
        draft.drafting = True
        return draft

    # -- one call ---------------------------------------------------------------------------------

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Scores (rows, width) for `input_ids` (rows, ids so far), as a new tensor."""
        began = self._now()
        if scores.requires_grad:
            scores = cast(torch.FloatTensor, scores.detach())
        self._check_shapes(tuple(input_ids.shape), tuple(scores.shape))
        self._masks.fit(scores.shape[-1], scores.device)
        ids, firsts, tops, chances, risks = self._to_host(input_ids, scores)
        nodes = self._rows.locate(ids)
        if not self.drafting:
            if self._rows.fresh or self._call < 0:
                self._begin_run(began)
            self._call += 1
            if risks is not None:
                for node, (risk, judged) in zip(nodes, risks, strict=True):
                    node.risk, node.judged = risk, judged
                self._visited += nodes
        located = self._now()
        plans = []
        for row, node in enumerate(nodes):
            plan = self._plan(row, node, firsts[row], tops[row], chances[row] if chances else 0.0)
            if plan is not None:
                plans.append(plan)
        if self.num_beams > 1 and self.on_unsupported == "retract" and not self.drafting:
            self._shut_beams(nodes, plans)
        masked = self._now()
        out = self._apply(scores, plans)
        applied = self._now()
        if self.drafting:
            return cast(torch.FloatTensor, out)
        asked = [plan for plan in plans if not plan.gated] if self._models else []
        picks: Any = None  # after the literal detectors alone; for a trace
        self._candidates.last = []
        if asked:
            if self.report.trace is not None:
                picks = _as_numpy(out).argmax(axis=1) if out.device.type == "cpu" else out.argmax(dim=-1)
            self._check_candidates(out, asked, ids)
        ended = self._now()
        timings = self.report.timings
        detector = ended - applied if asked else 0
        timings.add(located - began, masked - located, detector, applied - masked, ended - began)
        timings.elapsed_ns = self._elapsed_before + ended - self._run_began
        if self.report.trace is not None:
            stamps = (began, located, masked, applied, ended)
            where = (self.report.runs, self._call, nodes, firsts, scores, out, plans)
            self.report.trace.add(*where, self._candidates, self.vocabulary, stamps, picks)
        return cast(torch.FloatTensor, out)

    def _check_shapes(self, ids: tuple[int, ...], scores: tuple[int, ...]) -> None:
        if len(ids) != 2 or len(scores) != 2 or ids[0] != scores[0]:
            raise ValueError(
                f"expected input_ids (rows, ids) and scores (rows, vocabulary), got shapes {ids} and {scores}"
            )
        if self.groundings and ids[0] % len(self.groundings):
            raise ValueError(
                f"expected a multiple of {len(self.groundings)} rows (one grounding each, times beams or "
                f"returned sequences), got {ids[0]}"
            )

    def _to_host(
        self, input_ids: torch.Tensor, scores: torch.Tensor
    ) -> tuple[Ids, list[int], list[float], list[float] | None, list[list[float]] | None]:
        """The ids, and per row the first choice, its score, its probability where skipping asks for it, and the
        probe's risks (of what comes next, of the last token) where a host is watched."""
        skipping = self.skip_threshold < 1.0 and not self.drafting
        chances: list[float] | None = None
        seen = self._take_risks(len(scores), scores.device)
        risks = None
        ids: Ids
        if scores.device.type == "cpu":
            values = _as_numpy(scores)  # NumPy's argmax is vectorised, torch's is not: 20 µs against 400
            firsts = [int(values.argmax())] if len(values) == 1 else values.argmax(axis=1).tolist()
            tops = [float(values[row, first]) for row, first in enumerate(firsts)]
            if skipping:
                chances = host_chances(values, tops)
            ids = (input_ids if input_ids.dtype == torch.int64 else input_ids.long()).cpu().numpy()
            risks = None if seen is None else seen.tolist()
        else:
            first = scores.argmax(dim=-1, keepdim=True)
            top = scores.gather(1, first).float()
            parts = [input_ids.to(first.device), first, _bits(top)]
            if skipping:
                parts.append(_bits(top_chances(scores.float(), top[:, 0])[:, None]))
            if seen is not None:
                parts.append(_bits(seen))
            packed = torch.cat(parts, dim=1).cpu().numpy()
            width = input_ids.shape[1]
            ids = packed[:, :width]
            firsts = packed[:, width].tolist()
            tops = _unbits(packed[:, width + 1])
            chances = _unbits(packed[:, width + 2]) if skipping else None
            if seen is not None:
                columns = [_unbits(packed[:, at - len(HEADS)]) for at in range(len(HEADS))]
                risks = [list(row) for row in zip(*columns, strict=True)]
        for row, top_score in enumerate(tops):
            if math.isnan(top_score):  # argmax stops at the first NaN
                clean = scores[row].float().nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
                firsts[row] = int(clean.argmax())
                tops[row] = float(clean[firsts[row]])
        return ids, firsts, tops, chances, risks

    def _take_risks(self, rows: int, device: torch.device) -> torch.Tensor | None:
        """What the probe says of the pass that these scores are from, (rows, heads); None where it does not."""
        if self._watched is None or self.drafting:
            return None
        try:
            return self._watched.take(rows, device)
        except RuntimeError:
            self.report.counters["errors"] += 1
            if self.on_error == "raise":
                raise
            return None  # the gate then asks

    def _plan(self, row: int, node: Node, first: int, top: float, chance: float) -> Plan | None:
        """What to do with one row; None to leave it alone."""
        if node.finished:
            return None
        count = self._scrap if self.drafting else self.report.counters
        count["steps"] += 1
        if top == -math.inf:
            count["no_finite_scores"] += 1
            self._set_fate(node, "no_way_out")
            return None
        prepared = [self._prepare(node, at) for at in range(len(self._literals))]
        has_text = bool(self.vocabulary[first])
        by = -1
        for at, item in enumerate(prepared):
            if item.blocks(first, has_text):
                by = at
                break
        if chance > self.skip_threshold:
            count["skipped"] += 1
            count["skipped_blocked"] += by >= 0
            self._set_fate(node, "skipped")
            return None
        gated = self.gate_threshold > 0 and node.risk is not None and node.risk <= self.gate_threshold
        count["gated"] += gated
        if not (self._literals or (self._models and not gated)):
            return None  # nothing to ask
        count["checked"] += 1
        if not math.isinf(self.penalty):
            self._set_fate(node, "penalty")
        plan = Plan(row, node, first, prepared, by)
        plan.gated = gated
        if by < 0:
            plan.sound = has_text and math.isfinite(top)
            node.clear = first
        else:
            mask = prepared[by].mask
            if mask.inside and self.on_unsupported != "substitute" and self._stands(node, first):
                # The literal so far is supported; what is not begins here: the year of a date, another number.
                going_back = self._goes_back_over_blanks(row, node, first)
                plan.action = "retracted" if going_back else "avoided"
                plan.closed = True
            elif mask.inside:
                going_back = self.retract is not None and self.retract(row, node, first)
                plan.action = "retracted" if going_back else "forced"
            elif self.on_unsupported != "substitute" and contains(mask.starts, first):
                going_back = self._goes_back_over_blanks(row, node, first)
                plan.action = "retracted" if going_back else "avoided"
                plan.no_starts = by
        if self.closed and (row, node.depth) in self.closed:
            plan.closed = True
            plan.no_blanks = self.closed[row, node.depth]
            plan.sound = False
        if self.on_error == "block" and any(state is _LOST for state in node.states):
            plan.lost = True
            plan.sound = False
        return plan

    def _shut_beams(self, nodes: list[Node], plans: list[Plan]) -> None:
        """Close off the beams that want out of a literal, so that those which say something else win.

        Where that would be every beam of an answer that is still open, they are held instead, and counted.
        """
        if len(nodes) % self.num_beams:
            return
        diverging = {plan.row: plan for plan in plans if plan.action == "forced" and not plan.node.closed}
        for first in range(0, len(nodes), self.num_beams):
            beams = range(first, first + self.num_beams)
            found = [diverging[row] for row in beams if row in diverging]
            others = any(
                row not in diverging and not nodes[row].closed and not nodes[row].finished for row in beams
            )
            if not others:
                self.report.counters["beams_held"] += len(found)
                continue
            for plan in found:
                plan.action, plan.shut, plan.node.closed = "closed", True, True
            self.report.counters["beams_closed"] += len(found)

    def _prepare(self, node: Node, at: int) -> Prepared:
        """The mask of literal detector `at` at `node`, with the end tokens that may not come."""
        state = node.states[at]
        if state is _LOST:
            return self._masks.get(_FREE, _NO_ENDS)
        detector = self._literals[at][node.group]
        try:
            mask = detector.mask(state)
            ends = _NO_ENDS if mask.may_end else self._silent_ends
            if self._textual_ends and not mask.dead:
                wrong = [t for t in self._textual_ends if not detector.finish(detector.advance(state, t))]
                ends = ends.union(wrong)
        except Exception as error:
            self._literal_failed(error)
            node.states = (*node.states[:at], _LOST, *node.states[at + 1 :])
            return self._masks.get(_FREE, _NO_ENDS)
        return self._masks.get(mask, ends)

    def _apply(self, scores: torch.Tensor, plans: list[Plan]) -> torch.Tensor:
        """The scores with the masks of all planned rows in them, each with a way out (C5)."""
        out = torch.empty_like(scores)
        host = on_host(scores)
        before: Any = scores.numpy() if host else scores
        after: Any = out.numpy() if host else out
        only = plans[0] if len(plans) == len(before) == 1 and math.isinf(self.penalty) else None
        if only is not None and only.masks_only and only.prepared[0].keep is not None:
            # Little may come: cheaper to say what stays than to copy everything first.
            after[:] = -math.inf
            keep = only.prepared[0].keep_ids if host else only.prepared[0].keep
            after[0][keep] = before[0][keep]
            self._settle(before[0], after[0], only)
            return out
        after[:] = before
        for plan in plans:
            row = after[plan.row]
            self._penalise_(row, plan, starts=True)
            self._settle(before[plan.row], row, plan)
            if plan.shut:
                row -= SHUT
        return out

    def _penalise_(self, row: Row, plan: Plan, starts: bool) -> None:
        """Apply the masks of `plan` to `row` (width,), and where `starts` what else it wants blocked."""
        for item in plan.prepared:
            item.penalise_(row, self.penalty)
        if starts and plan.closed:
            for item in plan.prepared:
                lower_(row, self._masks.open_starts(item), math.inf)
            if plan.no_blanks:
                lower_(row, self._masks.blank_index(), math.inf)
            if any(item.mask.inside for item in plan.prepared):  # a year would go on a date, and is no start
                lower_(row, self._masks.digit_index(), math.inf)
        elif starts and plan.no_starts >= 0:
            lower_(row, self._masks.open_starts(plan.prepared[plan.no_starts]), self.penalty)
        if plan.lost:
            self._candidates.fail_closed_(torch.from_numpy(row) if isinstance(row, np.ndarray) else row)

    def _settle(self, before: Any, row: Any, plan: Plan) -> None:
        """Take back what leaves a row no way out, and record what stays."""
        if not plan.sound and not self._has_way_out(row, plan):
            if plan.no_starts >= 0 or plan.closed:
                row[:] = before
                self._penalise_(row, plan, starts=False)
                plan.action = "blocked" if plan.action == "avoided" else plan.action
                plan.sound = self._has_way_out(row, plan)
            if not plan.sound and not self._release(before, row, plan):
                return
        if plan.by >= 0 and not self.drafting:
            self._record(plan)

    def _release(self, before: Any, row: Any, plan: Plan) -> bool:
        """Undo the masks of a row without a way out; False where they were undone.

        Where no token with text was possible to begin with (an end token that somebody forces), there is
        nothing to give back as long as the first choice stands.
        """
        if plan.by < 0 and not self._has_way_out(before, None):
            return True
        row[:] = before
        self._set_fate(plan.node, "no_way_out")
        if not self.drafting:
            self.report.counters["no_way_out"] += 1
        return False

    def _has_way_out(self, row: Row, plan: Plan | None) -> bool:
        """Whether some token with text has a finite score in `row` (width,), masked as `plan` says."""
        allowed = [item.mask.allowed for item in plan.prepared] if plan and math.isinf(self.penalty) else []
        few = min((ids for ids in allowed if ids is not None), key=len, default=None)
        if isinstance(row, torch.Tensor):
            index = self._masks.text_index() if few is None else torch.from_numpy(few).to(row.device)
            return bool(torch.isfinite(row[index[index < len(row)]]).any())
        if few is not None:
            return bool(np.isfinite(row[few[few < len(row)]]).any())
        has_text = self._masks.table.has_text
        best = int(row.argmax())
        if best < len(has_text) and has_text[best] and math.isfinite(row[best]):
            return True
        return bool(np.isfinite(row[: len(has_text)][has_text[: len(row)]]).any())

    def _check_candidates(self, out: torch.Tensor, plans: list[Plan], ids: Ids) -> None:
        """Model detectors, in place on `out`, which is ours."""
        requests = [
            ScoreRequest(
                self.groundings[plan.node.group],
                tuple(ids[plan.row, ids.shape[1] - plan.node.depth :].tolist()),
                (),
            )
            for plan in plans
        ]
        rows, firsts = [plan.row for plan in plans], [plan.first for plan in plans]
        verdicts = self._candidates.check(out, rows, requests, firsts, self.report.counters)
        for plan, verdict in zip(plans, verdicts, strict=True):
            for scored in verdict:
                self._record_scored(plan, scored)

    # -- nodes ------------------------------------------------------------------------------------

    def _start(self, row: int, rows: int, prompt: Sequence[int]) -> Node:
        group = row // (rows // len(self.groundings)) if self.groundings else 0
        tail = prompt_tail(self.vocabulary, prompt)
        return Node(None, -1, tuple(detectors[group].start(tail) for detectors in self._literals), group)

    def _step(self, node: Node, token: int) -> Node:
        group = node.group
        states = []
        for detectors, state in zip(self._literals, node.states, strict=True):
            if state is not _LOST:
                try:
                    state = detectors[group].advance(state, token)
                except Exception as error:
                    self._literal_failed(error)
                    state = _LOST
            states.append(state)
        child = Node(node, token, tuple(states), group)
        child.finished = node.finished or token in self.eos
        child.counted = not self.drafting
        if not self.drafting and not node.finished and (token != node.clear or self._leaky):
            dead, leaks = self._events(node, child)
            if dead:
                self.report.counters["dead"] += dead
                self.report.counters[f"dead_{node.fate or 'external'}"] += dead
            if leaks:
                self.report.counters["word_leaks"] += leaks
        return child

    def _events(self, node: Node, child: Node) -> tuple[int, int]:
        """How many literals died, and how many number words leaked, at the step from `node` to `child`."""
        token = child.token
        dead = leaks = 0
        if not self.vocabulary[token]:
            return dead, leaks
        for at, detectors in enumerate(self._literals):
            before, after = node.states[at], child.states[at]
            if before is _LOST or after is _LOST:
                continue
            detector = detectors[node.group]
            if token != node.clear:
                # The mask says more than the next state's `dead`: a token may end a literal that may not end.
                dead += _blocks(detector, before, token)
            if self._leaky and cast(Any, detector).leaked(before, token, after):
                leaks += 1
        return dead, leaks

    def _set_fate(self, node: Node, fate: str) -> None:
        if not self.drafting:
            node.fate = fate

    def _literal_failed(self, error: Exception) -> None:
        self.report.counters["errors"] += 1
        if self.on_error == "raise":
            raise error

    # -- places, for policies that go back --------------------------------------------------------

    def place_of(self, node: Node, first: int) -> int | None:
        """How many ids of the history come before the literal that is open at `node`, or would start there
        with the token `first`, and before a token of blanks that leads to it; None where it began in the
        prompt. Of a date whose year alone is wrong the day stays."""
        following = first
        while self.is_open(node):
            if self._stands(node, following):
                break
            if node.parent is None:
                return None
            following, node = node.token, node.parent
        return node.depth - self.leads(node)

    def _stands(self, node: Node, token: int) -> bool:
        """Whether the literal that is open stands without the digits that `token` begins."""
        for group, state in zip(self._literals, node.states, strict=True):
            stands = getattr(group[node.group], "stands", None)
            if stands is not None and state is not _LOST and stands(state, token):
                return True
        return False

    def _goes_back_over_blanks(self, row: int, node: Node, first: int) -> bool:
        """Whether the row goes back where no number may begin: only after a token of blanks, after which there
        is little to say but a number. Elsewhere nothing would be taken back."""
        return self.retract is not None and self.leads(node) and self.retract(row, node, first)

    def leads(self, node: Node) -> bool:
        """Whether the last token is blanks and nothing else, as some tokenizers write before digits."""
        return node.parent is not None and self.is_blank(node.token)

    def is_blank(self, token: int) -> bool:
        """Whether a token is blanks and nothing else."""
        text = self.vocabulary[token]
        return bool(text) and not text.strip(b" ")

    def node_of(self, row: int, history: Sequence[int]) -> Node:
        """The node of the first or next ids of a row of the last call."""
        node = self._rows.tip(row)
        if node.depth >= len(history):
            return node.ancestor(len(history))
        for token in history[node.depth :]:
            node = self._step(node, token)
        return node

    def resume(self, ids: torch.Tensor, nodes: Sequence[Node]) -> None:
        """Say which nodes the rows of the next call, which has exactly `ids` (rows, width), stand at."""
        self._rows.pin(ids.detach().cpu().numpy(), nodes)

    def explain(self, node: Node, token: int) -> Evidence:
        """Why `token` is blocked at `node`, by the first literal detector that blocks it."""
        for detectors, state in zip(self._literals, node.states, strict=True):
            detector = detectors[node.group]
            if state is not _LOST and detector.mask(state).is_blocked(token):
                return cast(Evidence, detector.explain(state, token))
        return Evidence(self.vocabulary[token].decode("utf-8", "replace"))

    def peek(self, node: Node | None, token: int) -> Node:
        """The node after one more token (of the first row, where `node` is None), without counting it."""
        drafting, self.drafting = self.drafting, True
        try:
            return self._step(node if node is not None else self._rows.roots()[0], token)
        finally:
            self.drafting = drafting

    @property
    def prompt_length(self) -> int:
        """Width of the prompt in the ids of the current generation."""
        return self._rows.prompt_length

    def is_open(self, node: Node) -> bool:
        """Whether a literal is open after the history of `node`."""
        return any(
            state is not _LOST and detectors[node.group].mask(state).inside
            for detectors, state in zip(self._literals, node.states, strict=True)
        )

    # -- report -----------------------------------------------------------------------------------

    def finish(self, sequences: Any, prompt_length: int | None = None) -> list[SequenceSummary]:
        """Work out from the returned ids what holds for them, and put it into the report.

        sequences: ids (rows, width) with the prompt, as generate() returns them. Counts what is unfinished
        and dead on each, and marks which interventions lie on one of them.
        """
        if isinstance(sequences, torch.Tensor):
            sequences = sequences.cpu()
        ids: Ids = np.asarray(sequences, dtype=np.int64)
        base = self._rows.prompt_length if prompt_length is None else prompt_length
        drafting, self.drafting = self.drafting, True  # walking the ids must not count their steps again
        try:
            tree = self._visited_tree()
            summaries = [self._summarise(row, ids, base, tree) for row in range(len(ids))]
        finally:
            self.drafting = drafting
        self.report.sequences.extend(summaries)
        self.report.counters["unfinished"] += sum(item.unfinished for item in summaries)
        self.report.counters["returned_dead"] += sum(item.dead for item in summaries)
        self.report.forget_built()
        return summaries

    def _summarise(self, row: int, ids: Ids, base: int, tree: Tree) -> SequenceSummary:
        node = self._start(row, len(ids), ids[row, :base].tolist())
        dead = leaks = 0
        for token in ids[row, base:].tolist():
            if node.finished:
                break
            child = self._step(node, token)
            died, leaked = self._events(node, child)
            dead, leaks, node = dead + died, leaks + leaked, child
        unfinished = any(
            state is not _LOST and not detectors[node.group].finish(state)
            for detectors, state in zip(self._literals, node.states, strict=True)
        )
        path = node.path()
        if self.report.trace is not None:
            self.report.trace.returned(self.report.runs, row, node.group, path)
        risks = None if self._watched is None else self._risks_of(ids[row, :base], node, tree)
        on_it = 0
        for record in self.report.records:
            if record.run == self.report.runs and record.node.group == node.group:
                history = record.node.path()
                returned = len(history) < len(path) and path[: len(history)] == history
                record.returned = returned or bool(record.returned)
                on_it += returned
        return SequenceSummary(row, len(path), unfinished, dead, leaks, on_it, risks)

    def _visited_tree(self) -> Tree:
        """The nodes that the probe spoke of, by the node before and the token."""
        tree: Tree = {}
        for node in dict.fromkeys(self._visited):
            tree.setdefault((id(node.parent), node.token), []).append(node)
        return tree

    def _risks_of(self, prompt: Ids, node: Node, tree: Tree) -> TokenRisks:
        """What the probe said of the history of `node`, as it was generated.

        Rows may share a history for a while (beams), so there may be several nodes for one; the host has read it
        on one of them.
        """
        assert self._watched is not None
        path = node.path()
        before: list[float | None] = []
        after: list[float | None] = []
        here = self._rows.roots_of(node.group, prompt)
        for token in path:
            before.append(next((each.risk for each in here if each.risk is not None), None))
            here = [child for each in here for child in tree.get((id(each), token), ())]
            after.append(next((each.judged for each in here if each.judged is not None), None))
        pieces = [self.vocabulary[token] for token in path]
        thresholds = [self._watched.probe.threshold(head) for head in HEADS]
        return TokenRisks.of(before, after, thresholds, pieces)

    def _record(self, plan: Plan) -> None:
        self.report.counters["penalised"] += 1
        if plan.action == "forced":
            self.report.counters["forced"] += 1
        record = self._new_record(plan, plan.first, plan.action)
        record.detector = self._literals[plan.by][plan.node.group]
        record.state = plan.node.states[plan.by]

    def _record_scored(self, plan: Plan, scored: Scored) -> None:
        self.report.counters["penalised"] += scored.token == plan.first and plan.by < 0
        self.report.counters["candidates_penalised"] += 1
        self._new_record(plan, scored.token, "forced" if scored.forced else "blocked").scored = scored

    def _new_record(self, plan: Plan, token: int, action: str) -> InterventionRecord:
        record = InterventionRecord((self.report.runs, self._call, plan.row), plan, token, action)
        record.vocabulary = self.vocabulary
        record.evidence = self.evidence
        if self.groundings:
            record.grounding = self.groundings[plan.node.group]
        self.report.records.append(record)
        return record

    def _describe_options(self, threshold: float, unscored: str, candidates: int) -> None:
        options = self.report.options
        options.update(skip_threshold=self.skip_threshold, penalty=-self.penalty)
        options.update(on_unsupported=self.on_unsupported, on_error=self.on_error)
        named: list[LiteralDetector | ModelDetector] = [
            *(group[0] for group in self._literals if group),
            *self._models,
        ]
        options.update(versions={each.name: each.version for each in named})
        if self._models:
            options.update(candidates=candidates, confidence_threshold=threshold, unscored=unscored)
        if self._watched is not None:
            probe = self._watched.probe
            options.update(probe=str(probe.card["host"]["id"]), probe_version=probe.version)
        if self.gate_threshold > 0:
            options.update(gate=PROBE, gate_threshold=self.gate_threshold)
        for model in self._models:
            self.report.add_notes(model.name, model.notes)

    def _begin_run(self, now: int) -> None:
        self.report.runs += 1
        self._visited = []
        self._call = -1
        self._run_began = now
        self._elapsed_before = self.report.timings.elapsed_ns

    def _now(self) -> int:
        if self.synchronize and torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter_ns()


def _sorted_detectors(
    detectors: Sequence[Detector], groups: int
) -> tuple[list[Sequence[LiteralDetector]], list[ModelDetector]]:
    """Literal detectors, one per grounding each, and model detectors."""
    literals: list[Sequence[LiteralDetector]] = []
    models: list[ModelDetector] = []
    for item in detectors:
        if isinstance(item, list | tuple):
            if len(item) != groups:
                raise ValueError(f"expected one literal detector per grounding ({groups}), got {len(item)}")
            literals.append(item)
        elif getattr(item, "kind", None) == "literal":
            literals.append([cast(LiteralDetector, item)] * max(1, groups))
        elif getattr(item, "kind", None) == "model":
            models.append(cast(ModelDetector, item))
        else:
            raise TypeError(f"expected a detector of kind 'literal' or 'model', got {item!r}")
    if models and not groups:
        raise ValueError("expected a grounding for the model detectors, got none")
    return literals, models


def _gate(gate: str | None, threshold: float | None, watched: Watched | None, models: bool) -> float:
    """The risk up to which model detectors are not asked; 0 where they always are."""
    if gate is None:
        if threshold is not None:
            raise ValueError(f"gate_threshold: expected gate='{PROBE}' with it, got {threshold} alone")
        return 0.0
    _one_of("gate", gate, (PROBE,))
    if watched is None or not models:
        missing = (
            "a model detector (lettuceprevent, lettucedetect)" if watched is not None else "a watched host"
        )
        raise ValueError(f"gate: expected {missing} to go with {gate!r}, got none")
    if threshold is None:
        return watched.probe.threshold("before")
    _between("gate_threshold", threshold)
    return threshold


def _blocks(detector: LiteralDetector, state: Any, token: int) -> bool:
    """Whether a token with text is blocked; without the whole mask where the detector can say so."""
    blocks = getattr(detector, "blocks", None)
    return bool(blocks(state, token)) if blocks is not None else detector.mask(state).is_blocked(token)


def _as_numpy(scores: torch.Tensor) -> Any:
    return (scores if scores.dtype == torch.float32 else scores.float()).numpy()


def _bits(values: torch.Tensor) -> torch.Tensor:
    """float32 values as int64 that carry their bits, so that they travel with ids in one transfer."""
    return values.contiguous().view(torch.int32).to(torch.int64)


def _unbits(bits: Ids) -> list[float]:
    return [float(value) for value in bits.astype(np.int32).view(np.float32)]


def _one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")


def _between(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}: expected a probability from 0 to 1, got {value}")
