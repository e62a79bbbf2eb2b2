"""The parser: turns text into statements with Python's own `ast`. Nothing is evaluated.

block       := { equation | addition | declaration | definition | call }  one a line
equation    := name[left] = expression                         y[b, (p, q)] = …
addition    := name[left] += expression                        y[b, e[b,t]] += …, see `desugaring`
start       := name[…, -1, …] = expression                     h[b, -1, o] = …, before the first position
             | name[…, +1, …] = expression                      after the last, if read at t+1
declaration := name[axes]: input | parameter | constant        x[b, i, n: k + 1]: input
             | parameter(std=0.02) | parameter(value=0)         how it starts: see the grammar
             | parameter(value=...)                             at an array, given outside the text
             | name: output
             | axis: size                                       i: 4
definition  := def name(x, …): block                           the block's own lines, indented
call        := name, … = name(x, …, scope='blocks.0')          of a block that is defined above
             | name[left], … = name(x[entries], …)              along an axis, see `recurrences`
expression  := see `expression_parser`
entry       := axis | integer | (entry, …) | ... | start:stop:step | expression of positions
             | t-1 | t+1                                        of a recurrent tensor, see `recurrences`
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import EquationError, Place, ShapeError, near, told_in
from ..sizes import DOT, LARGEST, NoSizeError, as_size, is_name, read_expression
from .desugaring import Addition, together, written_out
from .equation import Calling, Declaration, Definition, Equation, Statement, locate
from .expression import Call, Contraction, Expression, Literal, Ref, Taken, axes_of_index, contraction
from .expression_parser import Terms, entries_of
from .recurrences import Start, called_along, recurring

_OF_RULES = "j"
"""The name that rules in records use for the axes of a call."""

_SIZE = "a size is an integer or an expression such as 4*D + 1"

_KINDS = ("input", "parameter", "constant", "output")

STARTS = ("std", "value", "identity", "near_identity", "orthogonal", "kaiming", "xavier")
"""The kinds of `parameter(kind=number)`: how a parameter is initialised. The grammar describes each."""


@told_in("lines")
def parse_block(text: str, taken: Collection[str] = ()) -> tuple[Statement, ...]:
    """Parses a block of equations and declarations; bare names stay `Ref(name, ())`.

    Args:
        text: the lines.
        taken: the names of sizes and axes that are given outside the text.

    Raises:
        EquationError: the text is not in the language.
    """
    if not isinstance(text, str):
        fix = 'write "y[b,p] = x[b,i] * W[p,i]"'
        raise EquationError(f"equations are text, not {type(text).__name__}", fix=fix)
    return _Reader(textwrap.dedent(text)).statements(taken)


@told_in("names")
def parse_names(names: str | Sequence[str], kind: str) -> tuple[Declaration, ...]:
    """Parses `"x, t"` or `"x[b,n,c] t[b,n]"` (or a list of such texts) as declarations of one kind."""
    pieces = [names] if isinstance(names, str) else names
    if not isinstance(pieces, Sequence) or not all(isinstance(each, str) for each in pieces):
        raise EquationError(f"{kind}s are names, not {names!r}", fix='write "x, t" or ["x[b,i]", "t[b]"]')
    text = " ".join(pieces)
    found: list[Declaration] = []
    for match in re.finditer(r"[^\s,\[\]]+(?:\s*\[(?:[^\[\]])*\])?|[\[\]]", text):
        piece, place = match.group(), Place(text, 1, match.start(), len(match.group()))
        if piece in "[]":
            raise EquationError(f"'{piece}' does not follow a name", place, 'write "x, t" or "x[b,i] t[b]"')
        match parse_block(f"{piece}: {kind}"):
            case (Declaration() as declared,):
                found.append(declared)
            case _:
                raise EquationError(f"'{piece}' is not a name", place)
    return tuple(found)


@functools.lru_cache
def rule_of(text: str) -> Expression:
    """A rule of a function's record, with the names that it uses."""
    (line,) = _Reader(f"rule = {text}").statements()
    assert isinstance(line, Equation)
    return line.right


def parse_rule(text: str, meaning: Mapping[str, Expression], axes: Sequence[str] = ()) -> Expression:
    """Parses a rule of a function's record, such as `cast(a == p)` or `y * (g - sum[j](g * y))`.

    Args:
        text: an expression of bare names.
        meaning: the expressions that the names stand for.
        axes: the axes that `j` stands for.
    """

    def change(part: Expression) -> Expression:
        match part:
            case Ref(name):
                return meaning[name]
            case Contraction(factors, (_, *_)):
                return contraction(factors, tuple(axes), part.place)
            case Call(_, _, over, options) if over or options:
                named = (
                    (axis, by) for name, by in options for axis in (axes if name == _OF_RULES else (name,))
                )
                return replace(part, axes=tuple(axes) if over else (), options=tuple(named), place=None)
        return part

    return rule_of(text).rewrite(change)


@told_in("sizes")
def parse_size(text: str) -> Any:
    """Parses the text of a size, such as `4 * D + 1`: an integer or a formula."""
    match _Reader(f"size: {text}").statements():
        case (Declaration(kind="size") as declared,):
            return declared.size
    raise EquationError(f"{text!r} is not a size", fix=_SIZE)


@told_in("sizes")
def read_sizes(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Converts sizes that a caller gives: integers, sympy expressions, or text such as `"D/h"`.

    Raises:
        EquationError: a text is not a size.
        ShapeError: a size is none of these.
    """
    return {name: read_size(value, name) for name, value in sizes.items()}


def read_size(value: Any, name: str) -> Any:
    """Converts the size of one axis. Symbols of sympy are identified by name; their assumptions are ignored."""
    sympy = sys.modules.get("sympy")  # a caller that gives one of its expressions has loaded it
    if sympy is not None and isinstance(value, sympy.Expr) and not value.is_number:
        for each in value.free_symbols:
            if not is_name(each.name):
                message = f"the size of '{name}' holds the symbol {each.name!r}"
                raise ShapeError(message, fix="call symbols by plain names, such as D")
        value = str(value)
    return as_size(parse_size(value) if isinstance(value, str) else value, name)


class _Reader(Terms):
    """Parses one text into statements."""

    taken: Collection[str] = ()

    def statements(self, taken: Collection[str] = ()) -> tuple[Statement, ...]:
        self.taken = taken
        try:
            return self.read(self.tree.body)
        except RecursionError:
            raise EquationError("the equations are nested too deeply", fix="split the line") from None

    def read(self, nodes: Sequence[ast.stmt], outer: Mapping[str, Definition] = {}) -> tuple[Statement, ...]:
        """The statements of one block. A block of the text around it that it calls is defined in it too.

        Args:
            nodes: the lines of the block.
            outer: the blocks that are defined before it.
        """
        blocks, found = dict(outer), list[Statement]()
        named = (each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name))
        names = Taken({*self.taken, *(name.replace(DOT, ".") for name in named)})
        for node in nodes:
            match node:
                case ast.Assign([target], ast.Call(ast.Name(block)) as call) if block in blocks:
                    found += [] if blocks[block] in found else [blocks[block]]
                    found += self.calling(target, block, call, names)
                case ast.FunctionDef():
                    found.append(made := self.definition(node, blocks))
                    if blocks.get(made.name) in found:
                        message = f"the block '{made.name}' is defined twice"
                        raise self.fail(node, message, "choose another name")
                    blocks[made.name] = made
                case _:
                    found.append(self.statement(node))
        return tuple(written_out(together(recurring(found, self.taken), names), names))

    def statement(self, node: ast.stmt) -> Statement:
        match node:
            case ast.Assign(targets=[target], value=value):
                return self.equation(target, value)
            case ast.AugAssign(target=target, op=ast.Add(), value=value):
                name, entries = self.target(target)
                left = tuple(map(self.entry, entries))
                return Addition(name, left, self.expression(value), self.place(target))
            case ast.AnnAssign(target=target, annotation=annotation, value=None):
                return self.declaration(target, annotation)
            case ast.Expr(value=ast.Compare()):
                raise self.fail(node, "a comparison is not an equation", "use one '=': `y[b] = …`")
        fix = "write `name[axes] = expression`"
        if isinstance(node, ast.Return):
            fix = "take it out: the last line of a block is what it gives"
        raise self.fail(node, "this line is not an equation", fix)

    @told_in("blocks")
    def definition(self, node: ast.FunctionDef, outer: Mapping[str, Definition]) -> Definition:
        """A block, whose inputs are plain names."""
        names = [each.arg for each in node.args.args]
        plain = ast.unparse(node.args) == ", ".join(names) and not (node.decorator_list or node.returns)
        if not plain:
            raise self.fail(node, "a block takes names of tensors", "write `def name(x, y):`")
        name, *inputs = (self.name(node, each) for each in (node.name, *names))
        return Definition(name, tuple(inputs), self.read(node.body, outer), self.place(node))

    @told_in("blocks")
    def calling(self, target: ast.expr, block: str, call: ast.Call, names: Taken) -> list[Statement]:
        """`y, z = block(x, scope="name")`."""
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        match call.keywords:
            case []:
                scope = ""
            case [ast.keyword("scope", ast.Constant(str(text)))]:
                scope = text.replace(DOT, ".")
            case _:
                fix = 'write `y = block(x, scope="name")`'
                raise self.fail(call, "a call takes tensors and a scope", fix)
        results, read = (tuple(map(self.tensor, each)) for each in (targets, call.args))
        if any(isinstance(each, ast.Subscript) for each in (*targets, *call.args)):
            return [*called_along(results, block, read, scope, self.place(target), names)]
        made, operands = (tuple(ref.name for ref in each) for each in (results, read))
        return [Calling(made, block, operands, scope, place=self.place(target))]

    def tensor(self, node: ast.expr) -> Ref:
        """A result or an operand of a call: a bare name, or with brackets."""
        found = self.expression(node) if isinstance(node, ast.Name | ast.Subscript) else None
        if not isinstance(found, Ref):
            fix = "compute it in a line of its own, and pass its name"
            raise self.fail(node, "a block call takes and returns names of tensors", fix)
        return found

    def equation(self, target: ast.expr, value: ast.expr) -> Equation:
        name, entries = self.target(target)
        positions = [*map(_outside, entries)]
        is_start = sum(map(bool, positions)) == 1
        pairs = zip(positions, entries, strict=True)
        left: tuple[Any, ...] = tuple(
            at if at and is_start else self.left_entry(each, target) for at, each in pairs
        )
        counts = Counter(axis for entry in left for axis in axes_of_index((entry,)))
        for axis, count in counts.items():
            if count > 1:
                fix = "give each axis of a result a name of its own"
                place = locate(self.place(target), axis)
                raise EquationError(f"axis '{axis}' is on the left twice", place, fix)
        return (Start if is_start else Equation)(name, left, self.expression(value), self.place(target))

    def target(self, target: ast.expr) -> tuple[str, list[ast.expr]]:
        match target:
            case ast.Name(id=name):
                return self.name(target, name), []
            case ast.Subscript(value=ast.Name(id=name), slice=inside):
                return self.name(target, name), entries_of(inside)
        raise self.fail(target, "the left side is not a tensor", "write `name[axes] = …`")

    @told_in("axes")
    def left_entry(self, node: ast.expr, target: ast.expr | None = None) -> str | tuple[str, ...]:
        entry = self.composite(node.elts) if isinstance(node, ast.Tuple) and node.elts else self.entry(node)
        if not isinstance(entry, str | tuple):
            fix = "name the axis, as in `y[b,i]`; at positions values are added, `y[v] = 0` and then `y[k[n]] += …`"
            fix += "; a recurrence starts outside of one axis, `h[b,-1,o] = …`"
            if target is not None and isinstance(node, ast.Subscript):
                name, entries = self.target(target)
                index = ",".join("v" if each is node else self.place(each).text for each in entries)
                fix = f"at positions values are added: write {self.place(target).text} += …, after a line that names"
                fix += f" the axes of '{name}', as {name}[{index}] = 0"
            raise self.fail(node, "the left side takes axis names only", fix)
        return entry

    @told_in("declarations")
    def declaration(self, target: ast.expr, annotation: ast.expr) -> Declaration:
        place = self.place(target)
        kind, options = self.kind(annotation)
        if kind is not None:
            name, entries = self.target(target)
            dims = None if isinstance(target, ast.Name) else tuple(map(self.dim, entries))
            return Declaration(name, kind, dims, options, place=place)
        if isinstance(target, ast.Name):
            return Declaration(self.axis(target), "size", size=self.size(annotation), place=place)
        word = annotation.id if isinstance(annotation, ast.Name) else ""
        fix = f"{near(word, _KINDS)}a tensor is declared as one of: {', '.join(_KINDS)}"
        raise self.fail(annotation, "this declares no tensor", fix)

    def kind(self, node: ast.expr) -> tuple[str | None, tuple[tuple[str, float], ...]]:
        match node:
            case ast.Name(id=kind) if kind in _KINDS:
                return kind, ()
            case ast.Call(ast.Name("parameter"), [], [ast.keyword(str(name), value)]):
                if name == "value" and isinstance(value, ast.Constant) and value.value is ...:
                    return "parameter", (("array", 0.0),)
                number = self.expression(value)
                if name not in STARTS or not isinstance(number, Literal):
                    hint = "its value is a number; " if name in STARTS else near(name, STARTS)
                    fix = f"{hint}write `parameter(std=0.02)`, or one of {', '.join(STARTS)}"
                    raise self.fail(node, "this is not a way to initialize a parameter", fix)
                return "parameter", ((name, number.value.real),)
        return None, ()

    def dim(self, node: ast.expr) -> tuple[tuple[str, Any], ...]:
        match node:
            case ast.Slice(ast.Name() | ast.Tuple() as lower, ast.expr() as upper, None):
                axes, sizes = (
                    each.elts if isinstance(each, ast.Tuple) else [each] for each in (lower, upper)
                )
                if len(axes) == len(sizes):
                    return tuple(zip(self.composite(axes), map(self.size, sizes), strict=True))
            case ast.Tuple(elts=entries):
                return tuple(pair for entry in entries for pair in self.dim(entry))
        return tuple((axis, None) for axis in axes_of_index((self.left_entry(node),)))

    @told_in("sizes")
    def size(self, node: ast.expr) -> Any:
        numbers = (each for each in ast.walk(node) if isinstance(each, ast.Constant))
        try:
            for each in numbers:
                if not isinstance(each.value, int) or each.value > LARGEST:
                    raise NoSizeError(each)
            size = read_expression(node)
        except NoSizeError as error:
            raise self.fail(error.node, "this is not a size", _SIZE) from None
        if isinstance(size, int) and abs(size) > LARGEST:
            raise self.fail(node, "this size is beyond 2**63", "give a smaller one")
        return size


def _outside(node: ast.expr) -> int:
    """A signed integer in brackets, `-1` or `+1`: a position before the first or after the last. Otherwise 0."""
    match node:
        case ast.UnaryOp(ast.USub() | ast.UAdd() as sign, ast.Constant(int(by))) if type(by) is int:
            return by if isinstance(sign, ast.UAdd) else -by
    return 0
