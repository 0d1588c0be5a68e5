"""The number detector: an automaton over the bytes of an answer, and exact masks over the vocabulary.

A `State` is a function of (grounding, history). It holds the lexeme that is open (`literals.LexState`),
where the forms of the grounding stand in it (`trie.Position`), whether the lexeme could have ended earlier
and what was read since, and a few bytes of an unfinished UTF-8 character. States are interned, transitions
and masks are remembered on them.

    detector = NumberDetector.for_grounding(grounding, vocabulary)
    state = detector.start(b"")
    state = detector.advance(state, token_id)
    detector.mask(state).blocked            # ids that would leave what the grounding supports

A token is blocked if some literal in it is complete and not supported, or if after it the open literal can
no longer become one that is. Words (option `number_words`) are governed more loosely: a token may complete
one from a beginning that is no word itself, and that is counted (`leaked`).

Cost: `advance` is a dictionary look-up when the pair was seen before, else about 1 us per character; `mask`
is computed once per state by a walk over the vocabulary, sorted as canonical text, that takes whole ranges
at once (a few ms cold), then it is an attribute.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import regex

from . import lexicon_en as lexicon
from .check import licence_of
from .detectors import Evidence, TokenMask
from .grounding import Grounding
from .licence import Licence
from .literals import (
    COMMITTED,
    LETTER,
    LINE,
    OTHER,
    PUNCTUATION,
    LexState,
    before,
    begin,
    canonical,
    has_digit,
    is_word,
    marker_after,
)
from .trie import Position
from .vocabulary import Vocabulary

Ids = npt.NDArray[np.int64]
Ranges = list[tuple[int, int]]
_EMPTY: tuple[Ranges, Ranges] = ([], [])
_MAX_VISITED = 200_000
_NONE: Ids = np.empty(0, np.int64)
_RAW = 0xE000  # private-use characters stand for bytes that are no whole character
_MAX_MARKER = 999


class Core(NamedTuple):
    """What a state is made of: two states with the same core are the same object."""

    lex: LexState | None = None  # the open lexeme; None between lexemes
    position: Position | None = None  # where the forms of the grounding stand in it; None where none fits
    ended: str = ""  # what stands before `rest`, if the lexeme could have ended there; else ""
    ok: bool = False  # what ended there is supported
    rest: str = ""  # what was read since
    previous: str = LINE  # what stands before the lexeme, or before the next one
    literal: bool = False  # the lexeme holds a digit
    dead: bool = False  # it can no longer be saved
    marker: int = 0  # the answer's last list marker
    value: int = 0  # the number of a possible list marker
    pending: bytes = b""  # an unfinished UTF-8 character
    text: str = ""  # the lexeme, once it holds a digit


class State:
    """An interned `Core` with what has been worked out for it."""

    __slots__ = (
        "chars",
        "core",
        "dead",
        "end",
        "lex",
        "literal",
        "mask",
        "next",
        "pending",
        "position",
        "viable",
    )

    def __init__(self, core: Core) -> None:
        self.core = core
        self.lex, self.position, self.literal = core.lex, core.position, core.literal
        self.dead, self.pending = core.dead, core.pending
        # made late: most states are only passed through, and dictionaries weigh on the collector
        self.next: dict[int, tuple[State, bool, bool]] | None = None  # id -> state, blocked, leaked
        self.chars: dict[str, tuple[State, str]] | None = None  # character -> state, what was violated
        self.mask: TokenMask | None = None
        self.end: bool | None = None
        self.viable: bool | None = None


class NumberDetector:
    """A literal detector for one grounding and one vocabulary."""

    name = "number"
    version = "1"
    kind = "literal"

    def __init__(self, licence: Licence, tokens: TokenIndex, *, context_length: int | None = None) -> None:
        self.licence = licence
        self._context_length = len(licence.text) if context_length is None else context_length
        self.tokens = tokens
        self._states: dict[Core, State] = {}
        self._line_starts: dict[int, Position] = {}
        self._visited: dict[tuple[State, int, int, bool, bool], tuple[Ranges, Ranges]] = {}
        # Decoding shows a run of byte tokens that is no valid UTF-8 as marks, digits among it and all.
        self._broken_bytes = "digits" if tokens.byte_fallback else ""

    @classmethod
    def for_grounding(cls, grounding: Grounding, vocabulary: Vocabulary, **options: bool) -> NumberDetector:
        """Options: number_words, units, rounding, derived, exemptions (see `licence.Licence`)."""
        licence = licence_of(grounding, **options)
        return cls(licence, TokenIndex.of(vocabulary), context_length=len(grounding.text))

    # --- the interface -----------------------------------------------------------------------------------

    def start(self, prefix: bytes = b"") -> State:
        """The state after the prompt, of which `prefix` is the text since the last blank; the prefix itself
        is never judged."""
        state = self._outside(LINE, 0)
        for char in _characters(prefix):
            state = self._step(state, char)[0]
        if state.lex is None and not state.pending:
            return self._outside(LINE, 0)
        if not self._viable(state):
            state = self._died(state)
        return state

    def advance(self, state: State, token_id: int) -> State:
        """The state after one more token; a token that was blocked leaves a dead literal."""
        return self._move(state, token_id)[0]

    def blocks(self, state: State, token_id: int) -> bool:
        """Whether the token is blocked, without the whole mask."""
        return self._move(state, token_id)[1]

    def leaked(self, state: State, token_id: int, after: State | None = None) -> bool:
        """Whether the token completes an unsupported number word from a beginning that was left open."""
        return self._move(state, token_id)[2]

    def finish(self, state: State) -> bool:
        """Whether the answer may end here: what is open is supported as it stands."""
        if state.end is None:
            state.end = state.dead or self._at_end(state)
        return state.end

    def mask(self, state: State) -> TokenMask:
        """What the state says of every id; remembered."""
        if state.mask is None:
            state.mask = self._build_mask(state)
        return state.mask

    def unfinished(self, state: State) -> bool:
        """Whether a digit-form literal is open that is not supported as it stands."""
        return bool(state.literal) and not state.dead and not self.finish(state)

    def stands(self, state: State, token_id: int) -> bool:
        """Whether a supported literal is open that stands without the digits that `token_id` begins after a
        blank: they may be its year ("March 5," + " 2022"), or a number of their own."""
        lex, core = state.lex, state.core
        if lex is None or state.dead:
            return False
        if lex.accepts and self._supported(state):
            rest = ""
        elif core.ended and core.ok:
            rest = core.rest
        else:
            return False
        return not has_digit(rest) and _APART.match(rest + self.tokens.text(token_id)) is not None

    def explain(self, state: State, token_id: int) -> Evidence:
        """What the token would have written, and the literal of the grounding nearest to it (longest common
        beginning, then value)."""
        attempt = state.core.text + self.tokens.text(token_id)
        found = list(regex.findall(r"[^\s]*[0-9½¼¾][^\s]*", attempt)) or [attempt.strip()]
        literal = found[-1].strip(".,;:!?()[]\"'*")
        return self.nearest(literal)

    def nearest(self, literal: str) -> Evidence:
        """The grounding's literal nearest to a canonical literal."""
        digits = regex.sub("[^0-9.]", "", literal)
        best, best_score = None, (0, 0.0)
        for source in self.licence.literals:
            other = regex.sub("[^0-9.]", "", source.text)
            if not other or not digits:
                continue
            common = next(
                (i for i, (a, b) in enumerate(zip(digits, other, strict=False)) if a != b),
                min(len(digits), len(other)),
            )
            score = (common, -abs(len(other) - len(digits)))
            if (common and score > best_score) or (best is None and common):
                best, best_score = source, score
        if best is None:
            return Evidence(literal)
        in_context = best.end <= self._context_length  # else it stands in the query
        span = (best.start, best.end) if in_context else None
        return Evidence(literal, self.licence.text[best.start : best.end], span)

    # --- characters --------------------------------------------------------------------------------------

    def _intern(self, core: Core) -> State:
        state = self._states.get(core)
        if state is None:
            state = self._states[core] = State(core)
        return state

    def _outside(self, previous: str, marker: int) -> State:
        return self._intern(Core(previous=previous, marker=marker))

    def _died(self, state: State) -> State:
        return self._intern(state.core._replace(dead=True, position=None, text=""))

    def _whole(self, state: State) -> State:
        """The state without its unfinished character."""
        return self._intern(state.core._replace(pending=b""))

    def _start_position(self, previous: str, marker: int) -> Position:
        if previous != LINE:
            return self.licence.start
        position = self._line_starts.get(marker)
        if position is None:
            position = self._line_starts[marker] = self.licence.start_at_line(marker)
        return position

    def _step(self, state: State, char: str) -> tuple[State, str]:
        """The state after one canonical (or raw) character, and what was violated: "", "digits" or "words"."""
        if state.chars is None:
            state.chars = {}
        known = state.chars.get(char)
        if known is None:
            known = state.chars[char] = self._compute_step(state, char)
        return known

    def _compute_step(self, state: State, char: str) -> tuple[State, str]:
        if "\ue000" <= char <= "\ue0ff":
            return self._step_raw(state, ord(char) - _RAW)
        if state.pending:
            state, violated = self._give_up_pending(state)
            following, more = self._step(state, char)
            return following, _worse(violated, more)
        if state.lex is None:
            return self._begin(state, char), ""
        lex, ended, ok, rest = state.lex, state.core.ended, state.core.ok, state.core.rest
        marked = False
        if lex.accepts and not (is_word(char) and is_word(lex.shape[-1])):
            ended, ok, rest, marked = self._after(state), self._supported(state), "", lex.marker
        grown = lex.step(char)
        if grown is not None:
            return self._grow(state, grown, char, ended, ok, rest)
        return self._leave(state, char, ended, ok, rest, marked)

    @staticmethod
    def _after(state: State) -> str:
        """What stands before the next place if the lexeme ends here."""
        assert state.lex is not None
        shape = state.lex.shape.lstrip("\n") or "\n"
        if len(shape) == 1 and not is_word(shape):
            return before(state.core.previous, shape)
        return before(OTHER, state.lex.shape[-1])

    def _step_raw(self, state: State, byte: int) -> tuple[State, str]:
        pending = state.pending + bytes([byte])
        try:
            text = pending.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                return self._intern(state.core._replace(pending=pending)), ""
            state, violated = self._give_up_pending(state)
            if state.pending or len(pending) > 1:
                following, more = self._step_raw(state, byte)
                return following, _worse(violated, more)
            return state, violated
        return self._step(self._whole(state), canonical(text))

    def _give_up_pending(self, state: State) -> tuple[State, str]:
        """The state once its pending bytes turn out to be no character but a mark, and what that violates."""
        following, violated = self._step(self._whole(state), PUNCTUATION)
        return following, violated if state.dead else _worse(self._broken_bytes, violated)

    def _begin(self, state: State, char: str) -> State:
        lex = begin(state.core.previous, char)
        if lex is None:
            return self._outside(before(state.core.previous, char), state.core.marker)
        previous, marker = state.core.previous, state.core.marker
        position = self._start_position(previous, marker).step(char)
        value = int(char) if char.isdigit() and previous == LINE else 0
        text = "" if char.isalpha() else char
        return self._intern(
            Core(
                lex,
                position,
                previous=previous,
                literal=has_digit(char),
                marker=marker,
                value=value,
                text=text,
            )
        )

    def _grow(
        self, state: State, lex: LexState, char: str, ended: str, ok: bool, rest: str
    ) -> tuple[State, str]:
        core = state.core
        position = None if core.position is None else core.position.step(char)
        literal, dead, violated = core.literal or has_digit(char), core.dead, ""
        if literal and not core.literal:
            dead = False  # a word that leaked is no licence for digits that go on from it
        value = min(core.value * 10 + int(char), _MAX_MARKER) if core.value and char.isdigit() else core.value
        if literal and not dead and position is None:
            complete = (char.isdigit() or lex.code) and lex.accepts and not lex.marker
            # Digits after a month stay with it: "july 1p" may become "july 1px", but never "1px".
            stuck = lex.month and ended and "0" not in lex.shape[: -len(rest) - 1]
            if complete or stuck or not (ended and ok):
                dead, violated = True, "digits"
        text = ""
        if not dead and (position is not None or literal):
            text = (core.text or lex.shape[:-1].lstrip("\n")) + char
        rest = rest + char if ended else ""
        following = Core(
            lex, position, ended, ok, rest, core.previous, literal, dead, core.marker, value, text=text
        )
        return self._intern(following), violated

    def _leave(
        self, state: State, char: str, ended: str, ok: bool, rest: str, marked: bool
    ) -> tuple[State, str]:
        """The lexeme ends where it last could; what was read since is read again, and then the character."""
        violated = ""
        if ended and not ok and not state.dead:
            violated = "digits" if state.literal else "words"
        marker = marker_after(state.core.marker, state.core.value) if marked else state.core.marker
        following = self._outside(ended or OTHER, marker)
        for again in rest + char:
            following, more = self._step(following, again)
            violated = _worse(violated, more)
        return following, violated

    # --- judging -----------------------------------------------------------------------------------------

    def _governs(self, state: State) -> bool:
        lex = state.lex
        return bool(state.literal) or (self.licence.number_words and lex is not None and lex.governed)

    def _supported(self, state: State) -> bool:
        """Whether the lexeme, ended here, is supported."""
        lex = state.lex
        assert lex is not None
        if state.dead:
            return True
        if not self._governs(state):
            return True
        if not state.literal and not lex.words:
            return True  # a committed beginning that ended as no number word
        if state.position is not None and state.position.ok:
            return True
        return bool(lex.marker and state.core.ended and state.core.ok)

    def _viable(self, state: State) -> bool:
        """Whether some way to go on from here leaves everything supported."""
        if state.viable is None:
            state.viable = self._compute_viable(state)
        return state.viable

    def _compute_viable(self, state: State) -> bool:
        if state.pending and not state.dead and state.lex is not None:
            return self._viable_pending(state)
        lex = state.lex
        if lex is None or state.dead or state.position is not None or not self._governs(state):
            return True
        if lex.accepts and not (lex.marker and state.core.ended and state.core.ok):
            return False
        if not (state.core.ended and state.core.ok):
            return False
        following = self._read_again(state)
        if following is None or not self._viable(following):
            return False
        if not has_digit(state.core.rest) or following.position is None:
            return True
        # The same digits are read in two ways: after "2 april", "240" can be the beginning of a year that is
        # not supported, or a number that is not. Some next character has to suit both.
        return any(self._can_step(state, char) for char in ("\n", *following.position.characters()))

    def _can_step(self, state: State, char: str) -> bool:
        following, violated = self._step(state, char)
        return not violated and self._viable(following)

    def _read_again(self, state: State) -> State | None:
        """The state if the lexeme ended where it last could; None where what was read since is not supported."""
        following = self._outside(state.core.ended, state.core.marker)
        for char in state.core.rest:
            following, violated = self._step(following, char)
            if violated:
                return None
        return following

    def _viable_pending(self, state: State) -> bool:
        whole = self._whole(state)
        for char in _completions(state.pending):
            following, violated = self._step(whole, char)
            if not violated and self._viable(following):
                return True
        return False

    def _at_end(self, state: State) -> bool:
        if state.pending:
            state, violated = self._give_up_pending(state)
            if violated:
                return False
        lex = state.lex
        if lex is None or state.dead or (not self._governs(state) and not state.core.rest):
            return True
        if lex.accepts:
            return self._supported(state)
        if not state.core.ended:
            return not self._governs(state)
        if not state.core.ok:
            return False
        following = self._read_again(state)
        return following is not None and self._at_end(following)

    # --- tokens ------------------------------------------------------------------------------------------

    def _move(self, state: State, token_id: int) -> tuple[State, bool, bool]:
        """The state after a token, whether the token is blocked, whether a number word leaks in it."""
        if state.next is None:
            state.next = {}
        known = state.next.get(token_id)
        if known is None:
            known = state.next[token_id] = self._compute_move(state, self.tokens.text(token_id))
        return known

    def _compute_move(self, state: State, text: str) -> tuple[State, bool, bool]:
        loose, stop, leaked = _is_loose(state), False, False
        origin = state
        for char in text:
            state, violated = self._step(state, char)
            if violated == "words" and loose:
                leaked, violated = True, ""
            stop = stop or violated != ""
            loose = loose and is_word(char)
        if state is not origin and not self._viable(state):
            if loose and not state.literal:
                leaked = True
            else:
                stop = True
            state = self._died(state)
        return state, stop, leaked

    def _build_mask(self, state: State) -> TokenMask:
        index = self.tokens
        if len(self._visited) > _MAX_VISITED:
            self._visited.clear()
        governed = state.lex is not None and state.lex.governed
        blocked, starts = self._visit(0, len(index.texts), 0, state, _is_loose(state), governed)
        blocked_ids: Ids | None = index.ids(blocked)
        allowed = None
        if blocked_ids is not None and 2 * len(blocked_ids) > len(index.order):
            allowed, blocked_ids = np.setdiff1d(index.all_ids, blocked_ids, assume_unique=True), None
        inside = bool(state.literal) and not state.dead
        return TokenMask(blocked_ids, index.ids(starts), self.finish(state), inside, state.dead, allowed)

    def _visit(
        self, low: int, high: int, depth: int, state: State, loose: bool, governed: bool
    ) -> tuple[Ranges, Ranges]:
        """Which of the sorted texts [low, high) are blocked and which begin a literal, as ranges.

        They agree on their first `depth` characters, and `state` is the state after those. `loose`: the
        token goes on a beginning that was left open; `governed`: it began inside a run of number words.
        Results are shared between all the states that come to the same state on the way, which is why most
        masks cost little.
        """
        index = self.tokens
        lex = state.lex
        settled = not state.pending and (lex is None or (not state.literal and lex.plain))
        if settled and index.matter[high] == index.matter[low] and depth:
            return _EMPTY
        key = (state, low, depth, loose, governed)
        known = self._visited.get(key)
        if known is not None:
            return known
        quiet = not state.pending and not state.literal and lex is not None and not lex.governed
        blocked: Ranges = []
        starts: Ranges = []
        texts = index.texts
        at = low
        if len(texts[at]) == depth:
            at = bisect_right(texts, texts[at], at, high)
            if not self._viable(state) and not (loose and not state.literal):
                blocked.append((low, at))
            if (
                lex is not None
                and not state.literal
                and lex.governed
                and not governed
                and self.licence.number_words
            ):
                starts.append((low, at))
        while at < high:
            char = texts[at][depth]
            end = bisect_left(texts, texts[at][:depth] + chr(ord(char) + 1), at, high)
            if index.matter[end] == index.matter[at] and (settled or (quiet and not _spells(lex, char))):
                at = end
                continue
            following, violated = self._step(state, char)
            begun = bool(following.literal) and _begins(state, following, char)
            if violated and not (violated == "words" and loose):
                blocked.append((at, end))
            else:
                goes_on = governed and following.lex is not None and following.lex.governed
                more, begin_more = self._visit(
                    at, end, depth + 1, following, loose and is_word(char), goes_on
                )
                blocked += more
                if not begun:
                    starts += begin_more
            if begun:
                starts.append((at, end))
            at = end
        self._visited[key] = blocked, starts
        return blocked, starts


def _worse(one: str, other: str) -> str:
    """Of two violations the one that is never let through."""
    return "digits" if "digits" in (one, other) else one or other


def _is_loose(state: State) -> bool:
    """Whether a word is open that a token may complete unhindered: a beginning that is no word itself."""
    lex = state.lex
    return bool(
        lex is not None and not state.literal and lex.partial and lex.partial not in lexicon.BEGINNING_WORDS
    )


def _spells(lex: LexState | None, char: str) -> bool:
    """Whether a letter goes on towards a word of the lexicon."""
    following = lex.step(char) if lex is not None and char.isalpha() else None
    return following is not None and not following.plain


def _begins(earlier: State, state: State, char: str) -> bool:
    """Whether the step opened a literal: the first digit of a lexeme, or of a new one after another."""
    if not earlier.literal or earlier.lex is None:
        return True
    if not has_digit(char) or state.lex is None:
        return False
    return len(state.lex.shape.lstrip("\n")) < len(earlier.lex.shape.lstrip("\n"))


# --- the vocabulary as canonical text --------------------------------------------------------------------

_WORD_MATTERS = (
    regex.compile(  # the token's first letters may go on a word, but then from a state that is not settled
        rf"(?<![a-z_{LETTER}])(?:{'|'.join(sorted(COMMITTED))})"
    )
)


class TokenIndex:
    """A vocabulary as canonical text, sorted. `matter[i]`: how many of the first i texts hold a digit or a
    number word.

    Built once per vocabulary: about 1 s for 262 k tokens.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.size = len(vocabulary)
        self._texts = [_characters(piece) if piece else "" for piece in vocabulary.table]
        order = sorted((i for i, t in enumerate(self._texts) if t), key=self._texts.__getitem__)
        self.order: Ids = np.asarray(order, np.int64)
        self.all_ids: Ids = np.sort(self.order)
        self.texts = [self._texts[i] for i in order]
        search = _WORD_MATTERS.search
        self.byte_fallback = vocabulary.byte_fallback
        raw = _RAW_BYTES.search if self.byte_fallback else search
        flags = [_has_matter(t) or search(t) is not None or raw(t) is not None for t in self.texts]
        self.matter = [0, *np.cumsum(flags).tolist()]

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> TokenIndex:
        """The index of a vocabulary, kept on it."""
        index = _INDEXES.get(vocabulary.fingerprint)
        if index is None:
            index = _INDEXES[vocabulary.fingerprint] = cls(vocabulary)
        return index

    def text(self, token_id: int) -> str:
        return self._texts[token_id] if 0 <= token_id < self.size else ""

    def ids(self, ranges: Iterable[tuple[int, int]]) -> Ids:
        parts = [self.order[a:b] for a, b in ranges]
        return np.sort(np.concatenate(parts)) if parts else _NONE


_INDEXES: dict[str, TokenIndex] = {}
_RAW_BYTES = regex.compile("[\ue080-\ue0ff]")
_APART = regex.compile(",? [0-9]")
_MATTER = regex.compile(rf"[0-9{''.join(lexicon.VULGAR_FRACTIONS)}]")
_UNFINISHED = regex.compile(r"[\ue0c0-\ue0ff][\ue080-\ue0bf]*$")


def _has_matter(text: str) -> bool:
    """Whether the text holds a digit, or ends in bytes that can become nothing but digits."""
    if _MATTER.search(text) is not None:
        return True
    tail = _UNFINISHED.search(text)
    if tail is None:
        return False
    return all(has_digit(c) for c in _completions(bytes(ord(c) - _RAW for c in tail[0])))


def _characters(piece: bytes) -> str:
    """Canonical characters of a token's bytes; bytes that are no whole character become private-use
    characters."""
    if piece.isascii():
        return canonical(piece.decode("ascii"))
    try:
        return canonical(piece.decode())
    except UnicodeDecodeError:
        text = piece.decode("utf-8", "surrogateescape")
        return "".join(
            chr(_RAW + ord(c) - 0xDC00) if "\udc80" <= c <= "\udcff" else canonical(c) for c in text
        )


@lru_cache(maxsize=4096)
def _completions(pending: bytes) -> tuple[str, ...]:
    """The different canonical characters that an unfinished UTF-8 sequence can become."""
    lead = pending[0]
    length = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    missing = length - len(pending)
    if missing > 2:
        return (PUNCTUATION, LETTER, *"0123456789") if lead == 0xF0 else (PUNCTUATION,)
    first = pending.ljust(length, b"\x80")
    last = pending.ljust(length, b"\xbf")
    low = max(_code(first), (0x80, 0x800, 0x10000)[length - 2])  # what is shorter is encoded with fewer bytes
    high = _code(last)
    found = set()
    for code in range(low, min(high, 0x10FFFF) + 1):
        if not 0xD800 <= code <= 0xDFFF and unicodedata.category(chr(code)) != "Cn":
            found.add(canonical(chr(code)))
    return tuple(sorted(found)) or (PUNCTUATION,)


def _code(piece: bytes) -> int:
    lead = piece[0]
    code = lead & (0x1F if lead < 0xE0 else 0x0F if lead < 0xF0 else 0x07)
    for byte in piece[1:]:
        code = code << 6 | (byte & 0x3F)
    return code
