"""Surface forms as a non-deterministic automaton over characters, and the subset construction over it.

A form is a path of `Node`s that ends where `ok` is set. Endings that many forms share (percent marks,
currency words, ordinal suffixes, years) are tries of their own, joined by empty moves: `Node.tails`. A
`Position` is a set of nodes, made when it is first reached and remembered: one dictionary look-up per
character from then on.
"""

from __future__ import annotations

from collections.abc import Iterable


class Node:
    """A trie node: `ok` where a form ends, `tails` the tries that may follow, `source` the literal that
    licenses the form."""

    __slots__ = ("next", "ok", "source", "tails")

    def __init__(self) -> None:
        self.next: dict[str, Node] = {}
        self.ok = False
        self.tails: tuple[Node, ...] = ()
        self.source = -1

    def add(self, form: str, source: int = -1, *, ok: bool = True, tails: tuple[Node, ...] = ()) -> Node:
        node = self
        for char in form:
            following = node.next.get(char)
            if following is None:
                following = node.next[char] = Node()
            node = following
        if source >= 0 and (node.source < 0 or (ok and not node.ok)):
            node.source = source
        node.ok = node.ok or ok
        for tail in tails:
            if tail not in node.tails:
                node.tails = (*node.tails, tail)
        return node


class Position:
    """A set of nodes, closed under tails: where the forms that fit the text so far stand. Interned by
    `Positions`."""

    __slots__ = ("_positions", "next", "nodes", "ok", "source")

    def __init__(self, nodes: tuple[Node, ...], positions: Positions) -> None:
        self.nodes = nodes
        self.next: dict[str, Position | None] = {}
        self.ok = any(n.ok for n in nodes)
        self.source = max((n.source for n in nodes if n.ok or n.tails), default=-1)
        self._positions = positions

    def step(self, char: str) -> Position | None:
        """The position after one more canonical character; None where no form goes on like this."""
        try:
            return self.next[char]
        except KeyError:
            nodes = [n.next[char] for n in self.nodes if char in n.next]
            position = self.next[char] = self._positions.of(nodes) if nodes else None
            return position

    def characters(self) -> list[str]:
        """The characters with which some form goes on."""
        return sorted({char for node in self.nodes for char in node.next})


class Positions:
    """Interns positions: the same set of nodes is the same object."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], Position] = {}

    def of(self, nodes: Iterable[Node]) -> Position:
        """The position of a set of nodes, closed under tails."""
        closed: dict[int, Node] = {}
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if id(node) not in closed:
                closed[id(node)] = node
                stack.extend(node.tails)
        key = tuple(sorted(closed))
        position = self._known.get(key)
        if position is None:
            position = self._known[key] = Position(tuple(closed.values()), self)
        return position


def trie_of(forms: Iterable[str]) -> Node:
    """The root of a trie of forms."""
    root = Node()
    for form in forms:
        root.add(form)
    return root
