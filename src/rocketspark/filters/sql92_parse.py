"""The tree of an SQL92 filter from its text, by a lark grammar. Rule: imported only when a filter is compiled.

Words, literals and comments as RocketMQ's lexer takes them (SelectorParser, rocketmq-filter 5.5.0), but text after
the end of the condition is refused; RocketMQ drops it in silence.
"""

from __future__ import annotations

from functools import cache
from typing import cast

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from rocketspark.errors import FilterIllegal
from rocketspark.filters import sql92_tree as tree
from rocketspark.filters.sql92_tree import Node

_GRAMMAR = r"""
    start: any
    any: all (_OR all)*
    all: equality (_AND equality)*

    ?equality: comparison
        | equality _EQUAL comparison      -> equal
        | equality _NOT_EQUAL comparison  -> not_equal
        | equality _IS NULL               -> is_null
        | equality _IS NOT NULL           -> is_not_null

    ?comparison: unary
        | comparison SIGN unary                                    -> ordered
        | comparison _BETWEEN unary _AND unary                     -> between
        | comparison NOT _BETWEEN unary _AND unary                 -> not_between
        | comparison _IN OPEN STRING (_COMMA STRING)* _CLOSE      -> one_of
        | comparison NOT _IN OPEN STRING (_COMMA STRING)* _CLOSE  -> none_of
        | comparison HOW STRING                                    -> holds
        | comparison NOT HOW STRING                                -> holds_not

    ?unary: primary
        | PLUS unary   -> plus
        | MINUS unary  -> minus
        | NOT unary    -> invert

    ?primary: STRING         -> text
        | INTEGER            -> integer
        | FLOATING           -> floating
        | TRUE               -> true
        | FALSE              -> false
        | NULL               -> null
        | NAME               -> name
        | OPEN any _CLOSE    -> enclosed

    NAME.1: /[A-Za-z_$][A-Za-z0-9_$]*/
    FLOATING.3: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
    INTEGER.2: /0|[1-9][0-9]*[lL]?/
    STRING: /'(?:[^']|'')*'(?!')/
    SIGN: ">=" | "<=" | ">" | "<"
    _NOT_EQUAL.1: "<>"
    _EQUAL: "="
    OPEN: "("
    _CLOSE: ")"
    _COMMA: ","
    PLUS: "+"
    MINUS: "-"
    LINE_COMMENT.2: /--[^\r\n]*/
    BLOCK_COMMENT.2: /\/\*[^*]*\*+(?:[^\/*][^*]*\*+)*\//
    BLANK: /[ \t\n\r\f]+/
    %declare _AND _OR _BETWEEN _IN _IS NOT NULL TRUE FALSE HOW
    %ignore LINE_COMMENT
    %ignore BLOCK_COMMENT
    %ignore BLANK
"""

_WORDS = {word: f"_{word}" for word in ("AND", "OR", "BETWEEN", "IN", "IS")}
_WORDS |= {word: word for word in ("NOT", "NULL", "TRUE", "FALSE")}
_WORDS |= dict.fromkeys(("CONTAINS", "STARTSWITH", "ENDSWITH"), "HOW")

_HINTS = {
    "LIKE": "there is no LIKE here, use CONTAINS, STARTSWITH or ENDSWITH",
    "!": "write <> for unequal, NOT for not",
    '"': "strings stand in single quotes",
    "'": "this string has no closing quote",
    "/": "this comment has no end",
    "&": "write AND",
    "|": "write OR",
    ";": "leave it out",
    "`": "property names stand without quotes",
}


@v_args(inline=True)
class _Builder(Transformer[Token, Node]):
    """Builds the tree while lark parses; lark calls a method per rule, with the rule's children."""

    def start(self, node: Node) -> Node:
        return tree.boolean(node)

    def any(self, *nodes: Node) -> Node:
        return tree.join(tree.AnyOf, list(nodes))

    def all(self, *nodes: Node) -> Node:
        return tree.join(tree.AllOf, list(nodes))

    def equal(self, left: Node, right: Node) -> Node:
        return tree.equal(left, right)

    def not_equal(self, left: Node, right: Node) -> Node:
        return tree.invert(tree.equal(left, right), left.position)

    def is_null(self, node: Node, _null: Token) -> Node:
        return tree.is_null(node, False)

    def is_not_null(self, node: Node, _not: Token, _null: Token) -> Node:
        return tree.is_null(node, True)

    def ordered(self, left: Node, sign: Token, right: Node) -> Node:
        return tree.ordered(left, str(sign), right)

    def between(self, value: Node, low: Node, high: Node) -> Node:
        return tree.between(value, low, high)

    def not_between(self, value: Node, _not: Token, low: Node, high: Node) -> Node:
        return tree.not_between(value, low, high)

    def one_of(self, node: Node, _open: Token, *texts: Token) -> Node:
        return tree.one_of(node, [_unquoted(text) for text in texts], False)

    def none_of(self, node: Node, _not: Token, _open: Token, *texts: Token) -> Node:
        return tree.one_of(node, [_unquoted(text) for text in texts], True)

    def holds(self, node: Node, how: Token, text: Token) -> Node:
        return tree.holds(node, how, _unquoted(text), False)

    def holds_not(self, node: Node, _not: Token, how: Token, text: Token) -> Node:
        return tree.holds(node, how, _unquoted(text), True)

    def plus(self, sign: Token, node: Node) -> Node:
        return tree.enclosed(node, _position(sign))

    def enclosed(self, bracket: Token, node: Node) -> Node:
        return tree.enclosed(node, _position(bracket))

    def minus(self, sign: Token, node: Node) -> Node:
        return tree.negate(node, _position(sign))

    def invert(self, word: Token, node: Node) -> Node:
        return tree.invert(node, _position(word))

    def text(self, token: Token) -> Node:
        return tree.Text(_position(token), 1, False, _unquoted(token))

    def integer(self, token: Token) -> Node:
        return tree.integer(token, _position(token))

    def floating(self, token: Token) -> Node:
        return tree.floating(token, _position(token))

    def true(self, token: Token) -> Node:
        return tree.Truth(_position(token), 1, False, True)

    def false(self, token: Token) -> Node:
        return tree.Truth(_position(token), 1, False, False)

    def null(self, token: Token) -> Node:
        return tree.Truth(_position(token), 1, False, None)

    def name(self, token: Token) -> Node:
        return tree.Property(_position(token), 1, False, str(token))


def _position(token: Token) -> int:
    return token.start_pos or 0


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _by_word(token: Token) -> Token:
    return token.update(type=_WORDS.get(token.upper(), "NAME"))


@cache
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=_Builder(), lexer_callbacks={"NAME": _by_word})


def parse(expression: str) -> tree.Condition:
    """Return the tree of an expression.

    Raises:
        FilterIllegal: with the offset of the mistake; the message gives line and column, and what was expected.
    """
    try:
        return cast(tree.Condition, _parser().parse(expression))
    except UnexpectedCharacters as error:
        position = error.pos_in_stream or 0
        found = expression[position]
        text = f"unexpected {found!r}: {_HINTS.get(found, 'no word, number, string or operator begins so')}"
    except UnexpectedToken as error:
        text, position = _explain(error, expression)
    except FilterIllegal as error:
        text, position = str(error), error.position
    line = expression.count("\n", 0, position) + 1
    column = position - expression.rfind("\n", 0, position)
    where = f"line {line}, column {column}" if line > 1 else f"column {column}"
    raise FilterIllegal(f"filter expression, {where}: {text}", position=position) from None


def _explain(error: UnexpectedToken, expression: str) -> tuple[str, int]:
    token = error.token
    at_end = token.type == "$END"
    position = len(expression.rstrip()) if at_end else token.start_pos or 0
    found = "the expression ends here" if at_end else f"unexpected {str(token)!r}"
    hint = _HINTS.get(token.upper(), "")
    if token.type == "_EQUAL" and expression[position - 1 : position] in ("=", "!", ">", "<"):
        hint = "write one =, or <> for unequal, >= or <="
    expected = _expected(error.accepts or error.expected)
    return f"{found}{'; ' + hint if hint else ''}; expected {expected}", position


def _expected(terminals: set[str]) -> str:
    """Describe in words the terminals that may stand at a place."""
    if "NAME" in terminals:
        return "a property, a number, a 'string', TRUE, FALSE, NULL, NOT or ("
    if "STRING" in terminals:
        return "a 'string' in single quotes"
    parts = []
    if "_EQUAL" in terminals:
        parts.append("an operator such as =, <>, >, IN, BETWEEN, IS NULL or CONTAINS")
    elif "HOW" in terminals:
        parts.append("IN, BETWEEN, CONTAINS, STARTSWITH or ENDSWITH" if "_IN" in terminals else "a text operator")
    names = {"_AND": "AND", "_OR": "OR", "OPEN": "(", "_CLOSE": ")", "_COMMA": "a comma", "NULL": "NULL"}
    parts += [name for terminal, name in names.items() if terminal in terminals]
    if "NOT" in terminals and "_EQUAL" not in terminals:
        parts.append("NOT")
    if "$END" in terminals:
        parts.append("the end")
    return ", ".join(parts[:-1]) + " or " + parts[-1] if len(parts) > 1 else "".join(parts) or "something else"
