"""The expressions of `constraint`: arithmetic and logic over a job's parameters and a cluster's state. Pure.

The language is govaluate's, which users of Rainbow know: `+ - * / % **`, `& | ^ ~ << >>`, `> >= < <= == != =~ !~ in`,
`&& || !`, `c ? a : b`, `a ?? b`, 'texts', [names-with-dashes], min(a, b) and max(a, b). All numbers are floats.

No library was taken: simpleeval reads Python's grammar, and its own page warns of long or large evaluations; the CEL
packages read CEL's grammar. Neither reads the expressions that users of Rainbow have.

Users' expressions run in the server, so they reach nothing but the values passed in. There are no loops, assignments or
attributes. A text has at most CHARS_MAX characters and NODES_MAX nodes; each node is evaluated once, and its work is
counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from switchyard.errors import Malformed
from switchyard.route.operators import (
    EvaluationBudget,
    EvaluationScope,
    ExpressionNode,
    ExpressionValue,
    Undefined,
    binary,
    coalesce,
    constant,
    membership,
    min_or_max,
    ternary,
    unary,
    variable,
)
from switchyard.route.pattern import BadPattern, compile_pattern

CHARS_MAX = 4096
NODES_MAX = 256  # names, values and operators; so also a bound of their nesting
EXPRESSION_DEPTH_MAX = 50  # of parentheses and prefixes
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>0[xX][0-9a-fA-F]{1,13}|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    |(?P<name>[^\W\d]\w*)
    |\[(?P<bracketed>[^\[\]]{1,128})\]
    |(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<sign>\*\*|<<|>>|<=|>=|==|!=|=~|!~|&&|\|\||\?\?|[-+*/%&|^~<>!?:(),]))""",
    re.VERBOSE | re.DOTALL,
)
PRECEDENCE = (
    ("||",),
    ("&&",),
    ("==", "!=", ">", ">=", "<", "<=", "=~", "!~", "in"),
    ("&", "|", "^"),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
    ("**",),
)


@dataclass(frozen=True, slots=True)
class NoValue:
    """Why an expression has no value here."""

    why: str


@dataclass(frozen=True, slots=True)
class Expression:
    text: str
    names: frozenset[str]
    size: int  # nodes, each of which is evaluated at most once
    _node: ExpressionNode = field(repr=False, compare=False)

    def value(self, values: Mapping[str, ExpressionValue], budget: EvaluationBudget) -> ExpressionValue | NoValue:
        """Evaluate the expression. `BudgetExceeded` is raised when the budget is used up."""
        budget.spend(self.size)
        try:
            return self._node(EvaluationScope(values, budget))
        except Undefined as exc:
            return NoValue(str(exc))


@lru_cache(maxsize=256)
def parse_expression(text: str) -> Expression:
    """Parse an expression. Malformed says what is wrong, and where."""
    if len(text) > CHARS_MAX:
        raise Malformed(f"an expression has at most {CHARS_MAX} characters, this one {len(text)}")
    reader = _ExpressionParser(text)
    node = reader.whole()
    return Expression(text, frozenset(reader.names), reader.size, node)


class _ExpressionParser:
    """Recursive descent: one method per syntactic form, each returns a function of the scope."""

    def __init__(self, text: str) -> None:
        self.names: set[str] = set()
        self.size = 0
        self._deep = 0
        self._tokens = _tokenize(text)
        self._next = 0

    def whole(self) -> ExpressionNode:
        if not self._tokens:
            raise Malformed("the expression is empty")
        node = self._choice()
        if self._next < len(self._tokens):
            raise self._unexpected()
        return node

    def _choice(self) -> ExpressionNode:
        """`c ? a : b`, `a ?? b`."""
        self._enter()
        node = self._binary(0)
        if self._take("?"):
            yes = self._choice()
            self._need(":")
            node = ternary(node, yes, self._choice())
        elif self._take("??"):
            node = coalesce(node, self._choice())
        self._deep -= 1
        return node

    def _binary(self, level: int) -> ExpressionNode:
        if level == len(PRECEDENCE):
            return self._prefixed()
        node = self._binary(level + 1)
        while sign := self._take(*PRECEDENCE[level]):
            self._count()
            if sign == "in":
                node = membership(node, self._list())
                continue
            node = binary(sign, node, self._right(sign, level + 1))
            if sign == "**" and self._take("**"):
                raise Malformed("a ** b ** c can be read in two ways: write parentheses")
        return node

    def _right(self, sign: str, level: int) -> ExpressionNode:
        """Read the right side of an operator. A literal pattern is compiled now, so that its mistakes are reported."""
        first = self._next
        node = self._binary(level)
        kind, word, _ = self._tokens[first]
        if sign in ("=~", "!~") and kind == "text" and self._next == first + 1:
            try:
                compile_pattern(_unquote(word))
            except BadPattern as exc:
                raise Malformed(f"{word[:80]}: {exc}") from exc
        return node

    def _prefixed(self) -> ExpressionNode:
        sign = self._take("!", "-", "~")
        if not sign:
            return self._single()
        self._enter()
        self._count()
        node = unary(sign, self._prefixed())
        self._deep -= 1
        return node

    def _single(self) -> ExpressionNode:
        self._count()
        if self._take("("):
            node = self._choice()
            self._need(")")
            return node
        if self._next >= len(self._tokens):
            raise Malformed("the expression ends too early")
        kind, word, _ = self._tokens[self._next]
        if kind == "sign":
            raise self._unexpected()
        self._next += 1
        if kind == "number":
            return constant(_read_number(word))
        if kind == "text":
            return constant(_unquote(word))
        if kind == "name" and word in ("true", "false"):
            return constant(word == "true")
        if kind == "name" and self._peek("("):
            return self._call(word)
        self.names.add(word)
        return variable(word)

    def _call(self, name: str) -> ExpressionNode:
        if name not in ("min", "max"):
            raise Malformed(f"undefined function {name[:80]}: there are min and max")
        nodes = self._list()
        if len(nodes) < 2:
            raise Malformed(f"{name} takes two values or more")
        return min_or_max(min if name == "min" else max, name, nodes)

    def _list(self) -> tuple[ExpressionNode, ...]:
        self._need("(")
        nodes = [self._choice()]
        while self._take(","):
            nodes.append(self._choice())
        self._need(")")
        return tuple(nodes)

    def _enter(self) -> None:
        self._deep += 1
        if self._deep > EXPRESSION_DEPTH_MAX:
            raise Malformed(f"nested deeper than {EXPRESSION_DEPTH_MAX}")

    def _count(self) -> None:
        self.size += 1
        if self.size > NODES_MAX:
            raise Malformed(f"an expression has at most {NODES_MAX} names, values and operators")

    def _peek(self, *words: str) -> str:
        if self._next < len(self._tokens):
            kind, word, _ = self._tokens[self._next]
            if word in words and (kind == "sign" or (kind == "name" and word == "in")):
                return word
        return ""

    def _take(self, *words: str) -> str:
        word = self._peek(*words)
        self._next += bool(word)
        return word

    def _need(self, word: str) -> None:
        if not self._take(word):
            raise self._unexpected(f"expected {word!r}")

    def _unexpected(self, detail: str = "") -> Malformed:
        if self._next >= len(self._tokens):
            return Malformed("the expression ends too early" + (f": {detail}" if detail else ""))
        _, word, position = self._tokens[self._next]
        return Malformed(f"unexpected {word[:40]!r} at character {position + 1}" + (f": {detail}" if detail else ""))


def _tokenize(text: str) -> list[tuple[str, str, int]]:
    tokens: list[tuple[str, str, int]] = []
    text = text.rstrip()
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            start = position + len(text[position:]) - len(text[position:].lstrip())
            hint = " (there are no attributes here)" if text[start] == "." else ""
            raise Malformed(f"unexpected {text[start]!r} at character {start + 1}{hint}")
        kind = str(match.lastgroup)
        tokens.append(("name_" if kind == "bracketed" else kind, match[kind], match.start(kind)))
        position = match.end()
    return tokens


def _read_number(word: str) -> float:
    number = float(int(word, 16)) if word[:2] in ("0x", "0X") else float(word)
    if not math.isfinite(number):
        raise Malformed(f"{word[:40]} is too large a number")
    return number


def _unquote(word: str) -> str:
    return re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), word[1:-1], flags=re.DOTALL)
