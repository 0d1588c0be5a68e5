"""generate() with prevention: what `custom_generate` calls, and what the package exports.

Contract: every argument of transformers' generate() works as it does there; ours are taken out, the processor
is
added after the caller's own, and GenerationMixin does the loop. What cannot be checked is refused with the
reason
rather than generated unchecked. The report is complete when the call returns.
"""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from transformers import GenerationMixin, LogitsProcessorList, StopStringCriteria

from .detectors import (
    DETECTOR_OPTIONS,
    LITERAL_DETECTORS,
    PROBE,
    build_detectors,
    host_defaults,
    parse_detector_type,
)
from .grounding import Grounding, as_groundings
from .probe import Probe, Watched
from .processor import PreventionLogitsProcessor
from .profiles import Profile, Unset
from .report import PreventionReport
from .retract import Retractor, can_retract
from .vocabulary import Vocabulary

# Options of the processor that generate() passes on under their own names; `probe` is read here.
PROCESSOR_OPTIONS = frozenset(
    {
        "skip_threshold",
        "candidates",
        "confidence_threshold",
        "penalty",
        "unscored",
        "on_unsupported",
        "on_error",
        "evidence",
        "synchronize",
        "prompt_length",
        "gate",
        "gate_threshold",
        "probe",
    }
)
_NUMBER = Unset("number")
# How much of a passage must stand in the prompt for it to count as shown to the host.
_PASSAGE_START = 48
_REFUSED_MODES: dict[str, Callable[[Callable[[str], Any]], bool]] = {
    "group beam search": lambda get: (get("num_beam_groups") or 1) > 1,
    "constrained beam search": lambda get: (
        get("constraints") is not None or get("force_words_ids") is not None
    ),
    "contrastive search": lambda get: (get("penalty_alpha") or 0) > 0 and (get("top_k") or 0) > 1,
    "DoLa": lambda get: get("dola_layers") is not None,
}


def generate(
    model: Any,
    *args: Any,
    tokenizer: Any = None,
    input_text: Any = None,
    query: str | Sequence[str] | None = None,
    detector_type: str | None = _NUMBER,
    report: PreventionReport | MutableMapping[str, Any] | None = None,
    profile: Profile | str | Path | Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Generate with `model`, held to `input_text`. Returns what `model.generate` returns.

    tokenizer: the host's; needed to know what its ids say. input_text: the context, as for `as_groundings`.
    query: the question, also evidence. detector_type: "number", ... joined by "+"; None generates unchecked; "probe"
    penalises nothing: the report gets the risk of every step and token (and alone it needs no input_text).
    report: a PreventionReport to fill, or a dict that gets `PreventionReport.to_dict()`. profile: options that
    `lettuceprevent tune` found for this host, a file; what the call gives itself comes first.

    Further options, of the processor: skip_threshold, candidates, confidence_threshold, penalty, unscored,
    on_unsupported, on_error, evidence, synchronize, prompt_length, gate, gate_threshold; of the detectors:
    number_words, units, rounding, derived, exemptions, ...; probe: a Probe, or its folder or file, for
    detector_type "probe" or gate="probe" (by default the one of the package for this host). Everything else goes
    to transformers. Options may be None, which means their default; on_unsupported's is "retract" with a number
    detector wherever generate() can be taken up again (not with beams, drafts, encoder-decoder hosts or
    inputs_embeds), else "avoid".
    """
    arguments = _bind(args, kwargs)
    tuned = None if profile is None else Profile.load(profile)
    if tuned is not None:
        detector_type = tuned.fill(arguments, detector_type)
    own = {name: arguments.pop(name) for name in PROCESSOR_OPTIONS & set(arguments)}
    detector_options = {name: arguments.pop(name) for name in DETECTOR_OPTIONS & set(arguments)}
    plain = getattr(type(model), "generate", GenerationMixin.generate)
    settings = _Settings(model, arguments)
    if tokenizer is not None and settings.needs_tokenizer:
        arguments["tokenizer"] = tokenizer
    names = parse_detector_type(detector_type)
    if not names:
        return plain(model, **arguments)

    began = time.perf_counter_ns()
    settings.refuse_what_cannot_be_checked()
    _need("tokenizer", tokenizer, "the host's tokenizer, to know what token ids say")
    if names != [PROBE] or settings.prompt_ids is None:
        _need(
            "input_text",
            input_text,
            "the context to check against (or detector_type=None to generate unchecked)",
        )
    watched = _watched(model, names, own.pop("probe", None), own.get("gate"), settings)
    # A report of the installed package is another class than that of an exported copy of this module.
    kept = cast(PreventionReport, report) if hasattr(report, "timings") else PreventionReport()
    vocabulary = Vocabulary.for_tokenizer(tokenizer)
    groundings = as_groundings(input_text, query, settings.rows) if input_text is not None else []
    options = {name: value for name, value in detector_options.items() if value is not None}
    options = {**host_defaults(names, model), **options}
    detectors = build_detectors(detector_type, tokenizer, vocabulary, groundings, **options)
    if tuned is not None:
        tuned.warn(model, vocabulary, detector_type, [*detectors, *([watched.probe] if watched else [])])
        kept.options["profile"] = profile if isinstance(profile, str) else str(tuned.host["id"])
    if own.get("on_unsupported") is None:
        # What measured best (results/e2e_numbers.json): "avoid" holds a number that had begun to another one.
        goes_back = bool(LITERAL_DETECTORS.intersection(names)) and settings.can_retract
        own["on_unsupported"] = "retract" if goes_back else "avoid"
    processor = PreventionLogitsProcessor(
        vocabulary,
        groundings,
        detectors,
        eos_token_ids=settings.eos_token_ids,
        num_beams=settings.num_beams,
        report=kept,
        watched=watched,
        **{"prompt_length": settings.prompt_length, **{k: v for k, v in own.items() if v is not None}},
    )
    kept.options.update(
        detector=str(detector_type),
        **{name: _plain(value) for name, value in options.items()},
    )
    if groundings:
        _warn_where_context_is_missing(settings.prompt_ids, groundings, tokenizer)
    arguments["logits_processor"] = LogitsProcessorList(
        [*(arguments.get("logits_processor") or []), processor]
    )
    kept.timings.prepare_ns += time.perf_counter_ns() - began

    before = kept.timings.elapsed_ns
    began = time.perf_counter_ns()
    try:
        with watched or nullcontext():
            if processor.on_unsupported == "retract" and settings.can_retract:
                out = _retracting(plain, model, processor, settings, arguments)
            else:
                kept.counters["retract_unavailable"] += (
                    processor.on_unsupported == "retract" and not settings.beams
                )
                with _checked_drafts(model, processor, settings):
                    out = plain(model, **arguments)
    finally:
        kept.timings.elapsed_ns = before + time.perf_counter_ns() - began
    sequences = out if isinstance(out, torch.Tensor) else out.sequences
    processor.finish(sequences)
    if isinstance(report, MutableMapping):
        report.update(kept.to_dict())
    return out


def _watched(
    model: Any, names: Sequence[str], probe: Probe | str | Path | None, gate: str | None, settings: _Settings
) -> Watched | None:
    """The host, watched by a probe where one is asked for."""
    if PROBE not in names and gate is None:
        if probe is not None:
            raise ValueError(f"probe: expected detector_type or gate {PROBE!r} with it, got neither")
        return None
    if settings.drafts:
        raise ValueError(
            f"{PROBE}: expected one forward pass of the host a step, got assisted or prompt-lookup decoding, which "
            "reads several positions at once"
        )
    if (settings.get("guidance_scale") or 1) != 1:
        raise ValueError(
            f"{PROBE}: expected one forward pass of the host a step, got guidance_scale, which runs it twice"
        )
    return Watched(model, Probe.for_host(model, probe))


def _retracting(
    plain: Callable[..., Any],
    model: Any,
    processor: PreventionLogitsProcessor,
    settings: _Settings,
    arguments: dict[str, Any],
) -> Any:
    """generate() that goes back where a literal diverges; see `retract.py`."""
    arguments = dict(arguments)
    stops = list(arguments.pop("stopping_criteria", None) or [])
    strings = settings.get("stop_strings")
    if strings is not None:
        stops.append(StopStringCriteria(arguments["tokenizer"], strings))
    pad = settings.get("pad_token_id")
    if pad is None and settings.eos_token_ids:
        pad = settings.eos_token_ids[0]
    retractor = Retractor(
        processor,
        plain,
        model,
        arguments,
        settings.get,
        limit=settings.most_new_tokens,
        pad=pad,
        user_stops=stops,
        as_dict=bool(settings.get("return_dict_in_generate")),
    )
    return retractor.run()


def _bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Positional arguments under their names; without what only chose this function, and without unset
    ones."""
    names = list(inspect.signature(GenerationMixin.generate).parameters)[1:]
    if len(args) > len(names):
        raise TypeError(f"generate(): expected at most {len(names)} positional arguments, got {len(args)}")
    arguments = dict(zip(names, args, strict=False))
    twice = sorted(set(arguments) & set(kwargs))
    if twice:
        raise TypeError(f"generate(): expected {', '.join(twice)} once, got it by position and by name")
    arguments.update(kwargs)
    arguments.pop("trust_remote_code", None)
    custom = arguments.pop("custom_generate", None)
    if callable(custom):
        raise ValueError(
            "custom_generate: expected none, got a callable, which would replace the decoding loop"
        )
    return {name: value for name, value in arguments.items() if value is not None or name not in names}


def _plain(value: Any) -> Any:
    """A value that a JSON report can hold."""
    return value if isinstance(value, str | int | float | bool) else str(value)


def _need(name: str, value: Any, what: str) -> None:
    if value is None:
        raise ValueError(f"{name}: expected {what}, got None")


class _Settings:
    """What generate() will do, as far as the processor has to know."""

    def __init__(self, model: Any, arguments: dict[str, Any]) -> None:
        self._model = model
        self._arguments = arguments
        self._encoder_decoder = bool(getattr(model.config, "is_encoder_decoder", False))

    def get(self, name: str) -> Any:
        """A generation setting: the argument, else the given configuration's, else the model's."""
        if name in self._arguments and (self._arguments[name] is not None or name == "eos_token_id"):
            return self._arguments[name]
        for config in (
            self._arguments.get("generation_config"),
            getattr(self._model, "generation_config", None),
        ):
            value = getattr(config, name, None)
            if value is not None:
                return value
        return None

    def refuse_what_cannot_be_checked(self) -> None:
        """Raise where generate() would run without the processor."""
        attention = str(getattr(self._model.config, "_attn_implementation", None) or "")
        if self.get("cache_implementation") == "paged" or attention.startswith("paged"):
            raise ValueError(
                "cache_implementation='paged' is continuous batching, which ignores the logits processors "
                "passed to generate(): nothing would be checked. Leave it out, or pass detector_type=None to "
                "generate unchecked"
            )
        for mode, applies in _REFUSED_MODES.items():
            if applies(self.get):
                raise ValueError(
                    f"{mode} is run by code from outside transformers, which may pass logits processors by; "
                    "expected greedy, sampling, beam search or assisted decoding"
                )

    @property
    def can_retract(self) -> bool:
        """Whether generate() can be paused and taken up again with these arguments."""
        return can_retract(
            self._arguments,
            self.get,
            num_beams=self.num_beams,
            drafts=self.drafts,
            encoder_decoder=self._encoder_decoder,
        )

    @property
    def most_new_tokens(self) -> int:
        """How many ids a row may get; transformers' default is 20."""
        most = self.get("max_new_tokens")
        if most is not None:
            return int(most)
        longest = self.get("max_length")
        prompt = self.prompt_ids
        if longest is None or (longest == 20 and "max_length" not in self._arguments) or prompt is None:
            return 20
        return max(0, int(longest) - int(prompt.shape[1]))

    @property
    def beams(self) -> bool:
        return self.num_beams > 1

    @property
    def num_beams(self) -> int:
        return int(self.get("num_beams") or 1)

    @property
    def eos_token_ids(self) -> list[int]:
        """Every token that ends an answer of this model."""
        eos = self.get("eos_token_id")
        if eos is None:
            return []
        if isinstance(eos, torch.Tensor):
            eos = eos.tolist()
        return [int(eos)] if isinstance(eos, int) else [int(token) for token in eos]

    @property
    def prompt_ids(self) -> torch.Tensor | None:
        """Ids (rows, width) of the prompt, of an encoder-decoder model its source; None where there are
        none."""
        for name in ("input_ids", "inputs"):
            ids = self._arguments.get(name)
            if isinstance(ids, torch.Tensor) and ids.ndim == 2 and not ids.is_floating_point():
                return ids
        return None

    @property
    def rows(self) -> int:
        """Rows of the batch, before beams and returned sequences multiply them."""
        for name in (
            "input_ids",
            "inputs",
            "inputs_embeds",
            "encoder_outputs",
            "input_features",
            "pixel_values",
        ):
            value = self._arguments.get(name)
            if value is None:
                continue
            return int(value.shape[0] if hasattr(value, "shape") else value[0].shape[0])
        return 1

    @property
    def prompt_length(self) -> int | None:
        """Width of the prompt in the ids the processor will see; None to take it from the first call."""
        if self._encoder_decoder or self.get("token_healing"):
            return None  # transformers may put a start token before, or cut the prompt
        if self.prompt_ids is not None:
            return int(self.prompt_ids.shape[1])
        return 0 if self._arguments.get("inputs_embeds") is not None else None

    @property
    def drafts(self) -> bool:
        """Whether this is assisted or prompt-lookup decoding."""
        assisted = self._arguments.get("assistant_model") is not None
        return assisted or bool(self.get("prompt_lookup_num_tokens") or self.get("assistant_early_exit"))

    @property
    def needs_tokenizer(self) -> bool:
        """Whether generate() itself uses the tokenizer; otherwise transformers 4 hands it to some models' forward()."""
        return self.drafts or self.get("stop_strings") is not None or bool(self.get("token_healing"))

    @property
    def foreign_draft(self) -> bool:
        """Whether the draft model has a vocabulary of its own."""
        return self._arguments.get("assistant_tokenizer") is not None


def _warn_where_context_is_missing(
    prompt: torch.Tensor | None, groundings: Sequence[Grounding], tokenizer: Any
) -> None:
    """Warn where a row's prompt shows none of its passages: the host cannot know what it is held to."""
    if prompt is None or prompt.shape[1] == 0:
        return
    texts = [_squeezed(text) for text in tokenizer.batch_decode(prompt, skip_special_tokens=True)]
    share = max(1, len(texts) // len(groundings))
    for row, text in enumerate(texts):
        grounding = groundings[min(row // share, len(groundings) - 1)]
        starts = [_squeezed(passage)[:_PASSAGE_START] for passage in grounding.passages]
        if not any(start and start in text for start in starts):
            warnings.warn(
                f"the prompt of row {row} does not contain the beginning of any passage of input_text; "
                "the host is held to a context that it does not see",
                stacklevel=3,
            )
            return


def _squeezed(text: str) -> str:
    """Text without blanks and case, which tokenizers and templates change."""
    return "".join(text.split()).casefold()


@contextmanager
def _checked_drafts(model: Any, processor: PreventionLogitsProcessor, settings: _Settings) -> Iterator[None]:
    """Give a draft model a processor of its own.

    transformers hands the host's processors to the draft. The draft's scores are no steps of the host, and a
    draft with a vocabulary of its own must not be masked by the host's; the host checks every draft anyway.
    """
    inner = getattr(model, "_get_candidate_generator", None)
    if inner is None or not settings.drafts:
        yield
        return
    draft = [] if settings.foreign_draft else [processor.for_draft()]

    def with_draft_processor(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("logits_processor")
        if given is not None:
            others = [item for item in given if item is not processor]
            kwargs["logits_processor"] = LogitsProcessorList([*others, *draft])
        return inner(*args, **kwargs)

    model._get_candidate_generator = with_draft_processor
    try:
        yield
    finally:
        model.__dict__.pop("_get_candidate_generator", None)
