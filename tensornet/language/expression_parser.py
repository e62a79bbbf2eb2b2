"""The expression parser: turns `ast` nodes into expressions and index entries."""

from __future__ import annotations

import ast
import itertools
import keyword
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

from ..errors import EquationError, Place, near, told_in
from ..ops.table import FUNCTIONS, RESERVED, SIGNS, SUM, Function
from ..sizes import DOT, LARGEST
from .diagnostics import called_elsewhere, meant
from .expression import (
    ELLIPSIS,
    Call,
    Contraction,
    Expression,
    Index,
    Literal,
    Ref,
    Size,
    Span,
    contraction,
    factors_in,
    product_of,
    scalar_value,
    sum_of,
)

Located: TypeAlias = ast.expr | ast.stmt
"""A node with a place in the text."""

_SCOPED = re.compile(r"(?<![\w.])[^\W\d]\w*(?:\.\w+)+")
_COMMENT = re.compile(r"#[^\r\n]*")
_LINE_END = re.compile(r"\r\n|\r|\n")
_RUN_ON = re.compile(rf"(?<![\w{DOT}])\.?\d[\w.]*?(?:and|else|for|if|in|is|not|or)")
_WORD, _OURS = re.compile(r"[^\W\d]\w*"), ("def", "if", "else")
_ESCAPE = re.compile(r"\\(?!\s*$)")
"""`ast` warns of numbers that run into a word (`1if`) and of escapes in quotes. Neither is in the language.
Filters for warnings are global: silencing them here would also silence the warnings of other threads."""

_SLIPS = (
    (re.compile(r"\b(if|else|where(?! *\())\b"), "a choice is where(condition, a, b)"),
    (re.compile(r"->"), "an expression of einsum is for tensornet.einsum"),
    (re.compile(r"[×·⋅÷−√²³≤≥≠]"), "write *, /, -, sqrt(…), **, <=, >= or != for this sign"),
    (re.compile(r"^\s*\w+\([\w, ]*\) *="), "write the axes of a tensor in square brackets"),
    (re.compile(r"\d *[^\W\d]"), "write a product with *, as in 2*p"),
    (re.compile(r"[\[(](\w+,)*\w+ \w+(?![\w\[(])"), "separate axes by commas, as in x[b,i]"),
    (re.compile(r"\[\s*\]"), "a number has no brackets: write y = …"),
    (re.compile(r"^\s+[^\w\s]"), "put what goes on in the next line in parentheses"),
    (re.compile(r"[\])] *\w|\w +\w+[\[(]"), "write a product with *, as in W[o,i] * x[b,i]"),
)
"""What to write for text that Python cannot read, by what stands in the line."""


_SIGNS: dict[type[ast.AST], str] = {
    ast.Pow: "**",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
"""The operators that are functions of two operands."""

_CONSTANTS = {"pi": math.pi, "inf": math.inf}


class Terms:
    """A text parsed by Python. Turns its nodes into expressions, axes and positions.

    It keeps the lines, so that every node can be located.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        masked = _SCOPED.sub(lambda match: match.group().replace(".", DOT), _COMMENT.sub("", text))
        self.lines = _LINE_END.split(text)
        self.masked = _LINE_END.split(masked)
        self._check_words()
        self.tree = self._parse(masked)

    def _check_words(self) -> None:
        for number, line in enumerate(self.masked):
            found = _RUN_ON.search(line) or _ESCAPE.search(line)
            if found:
                place = Place(self.lines[number], number + 1, found.start(), len(found.group()))
                raise EquationError(f"'{found.group()}' is not part of the language", place, "take it out")

    def _parse(self, text: str) -> ast.Module:
        try:
            return ast.parse(text)
        except SyntaxError as error:
            number = min(max(1, error.lineno or 1), len(self.lines))
            line = self.lines[number - 1]
            column = min(max(0, (error.offset or 1) - 1), len(line))
            message = (error.msg or "this cannot be read").removesuffix(" Perhaps you forgot a comma?")
            fix = "an equation reads `name[axes] = expression`, as in `y[b,p] = x[b,i] * W[p,i]`"
            words = [word for word in _WORD.findall(line) if keyword.iskeyword(word) and word not in _OURS]
            hints = [f"'{word}' is a word of Python: choose another name" for word in words]
            hints += (told for pattern, told in _SLIPS if pattern.search(line))
            fix = "; ".join([*hints[:1], fix])
            raise EquationError(
                f"syntax error: {message.rstrip('.')}", Place(line, number, column), fix
            ) from None
        except (ValueError, RecursionError, MemoryError, OverflowError) as error:
            raise EquationError(f"syntax error: {error}") from None

    def place(self, node: Located) -> Place:
        raw = self.masked[node.lineno - 1].encode()
        end = node.end_col_offset if node.end_lineno == node.lineno else None
        column, stop = (len(raw[:at].decode()) for at in (node.col_offset, end))
        return Place(self.lines[node.lineno - 1], node.lineno, column, max(1, stop - column))

    def fail(self, node: Located, message: str, fix: str = "") -> EquationError:
        return EquationError(message, self.place(node), fix)

    @told_in("functions")
    def expression(self, node: ast.expr) -> Expression:
        place = self.place(node)
        match node:
            case ast.Constant(value=int() | float() | complex() as value) if not isinstance(value, bool):
                return Literal(self.number(node, value), place)
            case ast.Name(id="nan"):
                raise self.fail(node, "nan is no number of the language", "make it an input or a constant")
            case ast.Name(id=name):
                return Literal(_CONSTANTS[name], place) if name in _CONSTANTS else self.ref(node, name, ())
            case ast.Subscript(value=ast.Name(id=name), slice=entries):
                return self.ref(node, name, self.index(entries))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _negative(self.expression(operand), place)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.expression(operand)
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return Call(SIGNS["~"], (self.expression(operand),), place=place)
            case ast.BinOp():
                return self.operations(node)
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _SIGNS:
                return self.binary(node, operator, self.expression(left), right)
            case ast.Call():
                return self.call(node)
        fix = "use + - * / // % **, comparisons, & | ~, and the functions of the language"
        hint = meant(getattr(node, "op", node), node)
        raise self.fail(node, "this is not part of the language", hint or fix)

    def ref(self, node: ast.expr, name: str, index: tuple[Index, ...]) -> Ref:
        return Ref(self.name(node, name), index, self.place(node))

    def operations(self, node: ast.expr) -> Expression:
        """A chain of operators, parsed in a loop from the left: a thousand factors need no deep recursion."""
        spine: list[ast.BinOp] = []
        while isinstance(node, ast.BinOp):
            spine.append(node)
            node = node.left
        value = self.expression(node)
        for each in reversed(spine):
            value = self.binary(each, each.op, value, each.right)
        return value

    def number(self, node: ast.expr, value: int | float | complex) -> int | float | complex:
        """The value as arrays can hold it: an integer beyond 64 bits becomes a floating-point number."""
        try:
            found = value if not isinstance(value, int) or value <= LARGEST else float(value)
        except OverflowError:
            found = complex(0, math.inf)
        if isinstance(found, complex) and not math.isfinite(found.imag):
            raise self.fail(node, "this number is infinite", "write a finite one")
        return found

    def binary(
        self, node: ast.expr, operator: ast.operator | ast.cmpop, a: Expression, right: ast.expr
    ) -> Expression:
        b, place = self.expression(right), self.place(node)
        match operator:
            case ast.Add():
                return sum_of([a, _held(a, b, sum_of)], place)
            case ast.Sub():
                return sum_of([a, _held(a, _negative(b, place), sum_of)], place)
            case ast.Mult():
                return _grouped(a, b, place) or product_of([a, _held(a, b, product_of)], place)
            case ast.Div():
                return product_of([a, Call("reciprocal", (b,), place=place)], place)
        if type(operator) in _SIGNS:
            return Call(SIGNS[_SIGNS[type(operator)]], (a, b), place=place)
        fix = meant(operator) or "use + - * / // % ** & | ~"
        raise self.fail(node, "this operator is not part of the language", fix)

    @told_in("axes")
    def index(self, node: ast.expr) -> tuple[Index, ...]:
        index = tuple(self.entry(entry) for entry in entries_of(node))
        if index.count(ELLIPSIS) > 1:
            raise self.fail(node, "'...' occurs twice in the brackets", "write it once")
        return index

    @told_in("axes")
    def entry(self, node: ast.expr) -> Index:
        match node:
            case ast.Constant(value=value) if value is Ellipsis:
                return ELLIPSIS
            case ast.Name():
                return self.axis(node)
            case ast.Tuple(elts=entries) if entries:
                if all(isinstance(each, ast.Name) for each in entries):
                    return self.composite(entries)
                return tuple(map(self.part, entries))  # type: ignore[arg-type]
            case ast.Constant(value=True | False):
                pass
            case ast.Constant(value=int()) | ast.Subscript() | ast.BinOp() | ast.UnaryOp() | ast.Call():
                return self.position(node)
            case ast.Slice():
                return self.span(node)  # type: ignore[return-value]
        raise self.not_an_index(node)

    def part(self, node: ast.expr) -> Index:
        """A part of a composite that has parts other than axes."""
        entry = self.entry(node)
        if isinstance(entry, tuple | Span) or entry == ELLIPSIS:
            raise self.not_an_index(node)
        return entry

    def position(self, node: ast.expr) -> Index:
        """A number, or an expression of positions."""
        match self.expression(node):
            case Literal(int() as value):
                return value
            case Literal() | Ref(index=()) | Size():
                raise self.not_an_index(node)
            case found:
                return found

    def span(self, node: ast.Slice) -> Span:
        """A slice `start:stop:step`; each of the three may be missing."""
        start, stop, step = (
            None if each is None else self.expression(each) for each in (node.lower, node.upper, node.step)
        )
        match start, stop:
            case Literal(int() as first), Literal(int() as end) if first > end and (first < 0) == (end < 0):
                raise self.fail(
                    node, "the slice ends before it begins", f"write {end}:{first}, or another end"
                )
        match step or Literal(1):
            case Literal(int() as by) if by > 0:
                return Span(start, stop, by, self.place(node))
        fix = "write x[::2], or x[n-1-t] to read backwards, with n as the length"
        raise self.fail(node, "the step of a slice is a positive integer", fix)

    def composite(self, entries: list[ast.expr]) -> tuple[str, ...]:
        names = tuple(self.axis(entry) for entry in entries)
        for entry, name in zip(entries, names, strict=True):
            if names.count(name) > 1:
                fix = "give each part of a composite axis a name of its own"
                raise self.fail(entry, f"axis '{name}' is in the composite twice", fix)
        return names

    @told_in("axes")
    def axis(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name) and DOT not in node.id:
            return node.id
        raise self.not_an_index(node)

    def not_an_index(self, node: ast.expr) -> EquationError:
        fix = "write an axis name, (h,d), an integer, a position (t[b,i], 2*p+u), a slice or ..."
        return self.fail(node, "this is not an index", fix)

    def call(self, node: ast.Call) -> Expression:
        axes: tuple[str, ...] = ()
        match node.func:
            case ast.Name(id=name):
                pass
            case ast.Subscript(value=ast.Name(id=name), slice=entries):
                axes = self.index(entries)  # type: ignore[assignment]
                if not all(isinstance(entry, str) for entry in axes):
                    fix = f"write {name}[j](…)"
                    raise self.fail(entries, "the brackets of a function take axis names only", fix)
            case ast.Attribute(attr=attribute):
                name = DOT + attribute
            case _:
                raise self.fail(node, "this cannot be called", "call a function by its name")
        function = self.function(node, name, axes)
        if function.of_axis_alone:
            return told_in(name)(self.of_axis)(node, name)
        own = "functions-of-your-own" if function.implementations else name
        made = told_in(own)(self.checked)(node, function, axes)
        return contraction(factors_in(*made.arguments), axes, made.place) if function is SUM else made

    def function(self, node: ast.Call, name: str, axes: tuple[str, ...]) -> Function:
        """The record of the function that a call names; raises an error if there is none that equations call."""
        name, _, method = name.rpartition(DOT) if DOT in name else (name, "", "")
        function = SUM if (method or name) == SUM.name else FUNCTIONS.get(method or name)
        if method:
            fix = "call a function by its name"
            if function is not None:
                fix = f"write {method}{'[i]' if function.takes_axes else ''}(x)"
            raise self.fail(node.func, "tensors have no methods", fix)
        if function is None:
            self.check_is_no_block(node, name)
            known = (each.name for each in (*FUNCTIONS.values(), SUM) if not each.is_kernel or each.exchanges)
            hint = called_elsewhere(name, axes) or near(name, known)
            if axes and not hint:
                hint = f"write a product with *, {name}[{','.join(axes)}] * (…); "
            named = [each.id for each in node.args if isinstance(each, ast.Name)]
            if not hint and named and not axes and len(named) == len(node.args):
                hint = f"write the axes of a tensor in square brackets, {name}[{','.join(named)}]; "
            fix = "`tensornet functions` lists all, tn.register adds one of your own"
            raise self.fail(node.func, f"'{name}' is not a function", hint + fix)
        if function.is_kernel and not function.exchanges:
            fix = "write the equations that it computes: the planner selects the kernel"
            raise self.fail(node.func, f"'{name}' is a kernel, which equations cannot call", fix)
        return function

    @told_in("blocks")
    def check_is_no_block(self, node: ast.Call, name: str) -> None:
        """Raises an error for a call of a block that is no line of its own below its definition and outside of it."""
        if any(isinstance(block, ast.FunctionDef) and block.name == name for block in ast.walk(self.tree)):
            message = (
                f"'{name}' is a block: a line of its own calls it, below its definition and outside of it"
            )
            fix = f"write `u = {ast.unparse(node)}` there, and read u"
            fix += f"; the state before is h[t-1] of a call h[t] = {name}(…)"
            raise self.fail(node.func, message, fix)

    def of_axis(self, node: ast.Call, name: str) -> Expression:
        match node:
            case ast.Call(args=[ast.Name() as axis], keywords=[]):
                return Call(name, (), (self.axis(axis),), place=self.place(node))
        raise self.fail(node, f"{name} takes one axis name", f"write {name}(i)")

    def checked(self, node: ast.Call, function: Function, axes: tuple[str, ...]) -> Call:
        """A call, checked: its axes, arity and keywords match the record of the function."""
        operands, keywords = _bound(node, function)
        for message, fix in _misuses(node, function, axes, len(operands)):
            raise self.fail(node, message, fix)
        names = [*function.operands[: len(operands)], *(each.arg for each in keywords)]
        for name in {name for name in names if names.count(name) > 1}:
            fix = "give it once; rename the axis if it is called as an option"
            raise self.fail(node, f"{function.name} has the keyword '{name}' twice", fix)
        arguments = tuple(map(self.expression, operands))
        options = tuple(self.option(node, function, keyword) for keyword in keywords)
        return Call(function.name, arguments, axes, options, self.place(node))

    def option(
        self, node: ast.Call, function: Function, keyword: ast.keyword
    ) -> tuple[str, tuple[Expression, ...]]:
        """A keyword: an option with its value, or an axis with a number of positions for each of its amounts."""
        known, name, value = [option for option, _ in function.options], keyword.arg, keyword.value
        is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
        if name is None or (name not in known and (function.axes != "moved" or is_text)):
            fix = f"{near(name or '', known)}it takes {', '.join(known)}" if known else "it takes none"
            raise self.fail(node, f"{function.name} has no keyword '{name or '**'}'", fix)
        is_axis = function.amounts and isinstance(value, ast.Tuple)
        if name in known and not is_axis:
            return name, (self.expression(value),)
        values = value.elts if len(function.amounts) > 1 and isinstance(value, ast.Tuple) else [value]
        if len(values) != max(1, len(function.amounts)):
            message = f"{function.name} takes ({', '.join(function.amounts)})"
            raise self.fail(value, message, f"write {name}={_example(function)}")
        amounts = tuple(map(self.expression, values))
        if any(isinstance(each, Literal) and not isinstance(each.value, int) for each in amounts):
            raise self.fail(value, "an amount of positions must be a whole number", "use an integer")
        return name, amounts

    @told_in("names")
    def name(self, node: Located, name: str) -> str:
        name = name.replace(DOT, ".")
        if name in FUNCTIONS or name in RESERVED:
            raise self.fail(node, f"'{name}' belongs to the language", "choose another name")
        return name


def entries_of(node: ast.expr) -> list[ast.expr]:
    """The entries of brackets; `[(h,d)]` is one composite, and `[h,d]` are two axes."""
    if not isinstance(node, ast.Tuple):
        return [node]
    if not node.elts:
        return []
    first, last = node.elts[0], node.elts[-1]
    opens = (node.lineno, node.col_offset) < (first.lineno, first.col_offset)
    closes = (node.end_lineno or 0, node.end_col_offset or 0) > (
        last.end_lineno or 0,
        last.end_col_offset or 0,
    )
    composite = opens and closes and not any(isinstance(each, ast.Tuple | ast.Slice) for each in node.elts)
    return [node] if composite else node.elts


def _example(function: Function) -> str:
    """A sample value for the keyword of an axis: `1`, or `(1,1)`."""
    ones = ",".join("1" for _ in function.amounts)
    return ones if len(function.amounts) == 1 else f"({ones})"


def _last_axis(node: ast.Call) -> str:
    """The last axis of the first tensor with brackets in a call, for an example; else `j`."""
    read = (each for each in ast.walk(node) if isinstance(each, ast.Subscript))
    entries = [entry for each in itertools.islice(read, 1) for entry in entries_of(each.slice)]
    return entries[-1].id if entries and isinstance(entries[-1], ast.Name) else "j"


def _bound(node: ast.Call, function: Function) -> tuple[list[ast.expr], list[ast.keyword]]:
    """The operands of a call, and its keywords: as in Python, each argument stands in its place or under its name."""
    most, options = function.arity[1], [name for name, _ in function.options]
    after = most + len(options)
    operands = [*node.args[:most], *node.args[after:]]
    keywords = [*map(ast.keyword, options, node.args[most:]), *node.keywords]
    named = {each.arg: each for each in keywords}
    for name in itertools.takewhile(named.__contains__, function.operands[len(operands) :]):
        operands.append(named[name].value)
        keywords.remove(named[name])
    order = {name: n for n, name in enumerate(options)}
    return operands, sorted(keywords, key=lambda each: order.get(each.arg or "", -1))


def _misuses(
    node: ast.Call, function: Function, axes: tuple[str, ...], given: int
) -> Iterator[tuple[str, str]]:
    """Where the axes, arity and keywords of a call differ from the record of its function, and what to write."""
    name, (least, most) = function.name, function.arity
    if function.takes_axes and not axes:
        axis = "v" if function.makes(("v",)) or function.anew else _last_axis(node)
        fix = f"write {name}[{axis}{',k' if function.axes == 'exchanged' else ''}](…)"
        if function.twin and len(node.args) > 1:
            fix = f"write {function.twin}(a, b), or {name}[{axis}](a) over an axis"
        yield f"{name} needs the axis it runs over", fix
    if axes and not function.takes_axes:
        yield f"{name} runs over no axis", f"write {name}(…)"
    if any(isinstance(argument, ast.Starred) for argument in node.args):
        yield "'*' does not unpack here", "write the arguments out"
    if not least <= given <= most:
        count = f"{least}" if least == most else f"at least {least}"
        yield f"{name} takes {count} argument(s), not {given}", f"write {function.form}"
    if function.takes_one_axis and len(axes) != 1:
        nests = axes and function.at == "a"
        fix = (
            f"{'('.join(f'{name}[{each}]' for each in axes)}(…{')' * len(axes)}" if nests else f"{name}[n](…)"
        )
        yield f"{name} runs over one axis", f"write {fix}"
    if function.axes == "exchanged" and len(set(axes)) != 2:
        what = "the one that it runs over, and the new one"
        yield f"{name} takes two axes in brackets: {what}", f"write {name}[j,k](…)"
    if function.axes == "moved" and not node.keywords:
        yield f"{name} needs an axis as a keyword", f"write {name}(x, i={_example(function)})"


def _grouped(a: Expression, b: Expression, place: Place) -> Expression | None:
    """A product with a parenthesised factor that could sum an axis by itself, `(U[i]*x[i]) * (V[i]*x[i])`.

    The factor stays grouped until the Einstein rule decides whether it does. None if there is no such factor.
    """
    counts = Counter(axis for factor in factors_in(b) for axis in factor.free_axes)
    shared = {axis for axis, count in counts.items() if count > 1}.intersection(a.free_axes)
    grouped = shared and isinstance(b, Contraction) and not b.summed
    return Contraction((*factors_in(a), b), (), place) if grouped else None


def _held(a: Expression, b: Expression, joined: Callable[[list[Expression]], Expression]) -> Expression:
    """`b`; a floating-point number if it is an integer whose join with the numbers in `a` exceeds 64 bits."""
    if not isinstance(b, Literal) or not isinstance(b.value, int):
        return b
    numbers: list[Expression] = [each for each in joined([a, b]).parts if isinstance(each, Literal)]
    value = scalar_value(joined(numbers)) if numbers else None
    return replace(b, value=float(b.value)) if isinstance(value, int) and abs(value) > LARGEST else b


def _negative(expression: Expression, place: Place) -> Expression:
    if isinstance(expression, Literal):
        return Literal(-expression.value, place)
    return product_of([Literal(-1, place), expression], place)
