"""Symbolic sizes of axes: whole numbers, and polynomials in open sizes with floor division, in a normal form.

    size = Σ coefficient · Π atom ** power      coefficients are rational, powers whole
    atom = a name | ⌊size⌋ | max(0, size) | a sum in a denominator

A name stands for a whole number that is not negative. Whole terms are kept outside of a floor, so that
`floor(h/2 + 1/2) - 1` and `floor(h/2 - 3/2) + 1` are equal; `max`, `min` and `ceiling` are written with these atoms.
Equal sizes are equal values as far as this form shows it. A size without names is a number: an `int`, or a `Fraction`
if it is not whole. sympy is used only at the border: its expressions are read as text, and `to_sympy` builds the
formulas that users see. A size combined with a sympy expression becomes one too.
"""

from __future__ import annotations

import ast
import functools
import itertools
import keyword
import math
import operator
import threading
import unicodedata
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard

from .errors import ShapeError

if TYPE_CHECKING:
    from sympy import Expr


LARGEST = 2**63 - 1
"""The largest number of positions in a dimension of an array."""

LARGEST_POWER = 63
"""The largest exponent in a size: beyond it, only powers of 1 are below `LARGEST`."""

MOST_TERMS = 4096
"""The largest number of terms in a size. More raise an error before multiplying them out takes all memory."""

DOT = "·"  # a letter in Python: replaces the dots of scoped names while `ast` parses a text


def is_name(text: str) -> bool:
    """Whether the text is one plain name that Python source code reproduces unchanged."""
    stable = unicodedata.normalize("NFKC", text) == text
    return text.isidentifier() and stable and not keyword.iskeyword(text) and DOT not in text


# ---------------------------------------------------------------------------- the normal form

Number: TypeAlias = "int | Fraction"
SizeLike: TypeAlias = "int | Fraction | Size"


@dataclass(frozen=True)
class Part:
    """A size inside another, as an atom of it.

    Attributes:
        kind: "floor" is ⌊size⌋ of a size that is not whole: the coefficients of products of whole atoms are between 0
            and 1. "Max" is max(0, size) of a size whose sign is not known: its coefficients are whole, the first one
            positive. "divisor" is a sum in a denominator, at most one in a term: its power is -1, and its
            coefficients are whole.
        size: the size.
    """

    kind: Literal["floor", "Max", "divisor"]
    size: Size

    def __str__(self) -> str:
        return _WRITTEN[self.kind].format(self.size)


_WRITTEN = {"floor": "floor({})", "Max": "Max(0, {})", "divisor": "({})"}

Atom: TypeAlias = "str | Part"
Monomial: TypeAlias = "tuple[tuple[Atom, int], ...]"


def _operator(made: Callable[[Any, Any], Any]) -> Any:
    """An operator of sizes and numbers, as a method of `Size`."""
    return lambda one, two: made(one, two) if isinstance(two, int | Fraction | Size) else NotImplemented


class Size:
    """A size with names in it: terms with coefficients other than 0, in a fixed order. Equal sizes are one object.

    Attributes:
        terms: monomials with their coefficients, in the order of a written formula: by name, large powers first,
            the constant last.
        name: the name, if the size is a bare name.
        names: the names in it, sorted.
    """

    __slots__ = ("__weakref__", "name", "names", "terms")
    terms: tuple[tuple[Monomial, Number], ...]
    name: str | None
    names: tuple[str, ...]

    def __new__(cls, terms: tuple[tuple[Monomial, Number], ...]) -> Size:
        known = _SIZES.get(terms)
        if known is not None:
            return known
        made = super().__new__(cls)
        inner = ((each,) if isinstance(each, str) else each.size.names for m, _ in terms for each, _ in m)
        made.terms, made.names = terms, tuple(sorted({*itertools.chain.from_iterable(inner)}))
        match terms:
            case ((((str(name), 1),), 1),):
                made.name = name
            case _:
                made.name = None
        with _MAKING:  # threads that make the same size get one object
            return _SIZES.setdefault(terms, made)

    def __reduce__(self) -> tuple[Any, ...]:
        return Size, (self.terms,)

    __add__ = __radd__ = _operator(lambda one, two: total((one, two)))
    __sub__ = _operator(lambda one, two: total((one, -two)))
    __rsub__ = _operator(lambda one, two: total((-one, two)))
    __truediv__ = _operator(lambda one, two: quotient(one, two))
    __rtruediv__ = _operator(lambda one, two: quotient(two, one))
    __floordiv__ = _operator(lambda one, two: floored(one, two))

    def __mul__(self, other: Any) -> Any:
        if other == 1:
            return self
        return _times(self, other) if isinstance(other, int | Fraction | Size) else NotImplemented

    __rmul__ = __mul__

    def __neg__(self) -> Size:
        return Size(tuple((monomial, -by) for monomial, by in self.terms))

    def __pow__(self, power: int) -> Any:
        found = power_of(self, power)
        if found is None:
            raise ShapeError(f"({self})**{power} is no size", fix=f"powers are at most {LARGEST_POWER}")
        return found

    def _sympy_(self) -> Any:
        """The expression that sympy converts it to."""
        return to_sympy(self)

    def __str__(self) -> str:
        below = {tuple(each for each in monomial if each[1] < 0) for monomial, _ in self.terms}
        if len(self.terms) > 1 and len(below) == 1 and (shared := below.pop()):
            line = Size(((shared, 1),))  # one fraction line for all terms
            return f"({self / line}){str(line)[1:]}"
        return written(self, str)

    __repr__ = __str__


_SIZES: weakref.WeakValueDictionary[Any, Size] = weakref.WeakValueDictionary()
_MAKING = threading.RLock()


@functools.lru_cache(maxsize=1 << 14)
def symbol(name: str) -> Size:
    """The open size of the axis `name`; that of `...`, all leading axes together, is called `lead`."""
    return Size((((("lead" if name == "..." else name, 1),), 1),))


def name_of(size: Any) -> str | None:
    """The name of a size that is a bare name; None for other sizes."""
    return size.name if isinstance(size, Size) else None


def size_names(size: Any) -> tuple[str, ...]:
    """The names in a size, sorted; none in a number."""
    return size.names if isinstance(size, Size) else ()


def terms_of(size: SizeLike) -> tuple[tuple[Monomial, Number], ...]:
    """The terms whose sum is the size."""
    if isinstance(size, Size):
        return size.terms
    return (((), size),) if size else ()


def _parts(size: SizeLike) -> list[Part]:
    """The atoms of a size that are no names."""
    return [atom for monomial, _ in terms_of(size) for atom, _ in monomial if isinstance(atom, Part)]


def _made(terms: Mapping[Monomial, Number]) -> Any:
    """The size with these terms: a number if no name is left."""
    found = [(each, by.numerator if by.denominator == 1 else by) for each, by in terms.items() if by]
    if not found:
        return 0
    if len(found) == 1:
        return Size((found[0],)) if found[0][0] else found[0][1]
    return Size(tuple(sorted(found, key=_place)))


def total(sizes: Iterable[Any]) -> Any:
    """The sum of sizes, 0 for none. For many sizes, it is much faster than repeated addition."""
    found: dict[Monomial, Number] = {}
    for size in sizes:
        for monomial, by in terms_of(size):
            found[monomial] = found.get(monomial, 0) + by
    return _reduced(_made(found))


@functools.lru_cache(maxsize=1 << 16)
def _times(one: Size, two: SizeLike) -> Any:
    """one · two. Cached: a plan needs few distinct products, and often."""
    found: dict[Monomial, Number] = {}
    for mine, a in one.terms:
        for theirs, b in terms_of(two):
            monomial = _over_one(_joined(mine, theirs)) if theirs else mine
            found[monomial] = found.get(monomial, 0) + a * b
        if len(found) > MOST_TERMS:
            raise ShapeError(f"a size has more than {MOST_TERMS} terms", fix="write it with fewer names")
    return _reduced(_made(found))


def _joined(one: Monomial, two: Monomial, sign: int = 1) -> Monomial:
    """The product of two monomials, or the quotient if `sign` is -1."""
    powers = dict(one)
    for atom, power in two:
        powers[atom] = powers.get(atom, 0) + sign * power
    return tuple(sorted(((atom, power) for atom, power in powers.items() if power), key=lambda e: str(e[0])))


def _over_one(monomial: Monomial) -> Monomial:
    """The monomial with the sums in its denominator multiplied out into one."""
    parts = [(atom, power) for atom, power in monomial if not isinstance(atom, str)]
    sums = [(atom.size, power) for atom, power in parts if _is_divisor(atom)]
    if not sums or (sums[0][1] == -1 and len(sums) == 1):
        return monomial
    others = tuple(each for each in monomial if not _is_divisor(each[0]))
    return _joined(others, ((Part("divisor", product(size**-power for size, power in sums)), -1),))


def _is_divisor(atom: Atom) -> TypeGuard[Part]:
    return isinstance(atom, Part) and atom.kind == "divisor"


def quotient(size: Any, by: Any) -> Any:
    """size / by, exactly.

    Raises:
        ShapeError: `by` is 0.
    """
    if by == 0:
        raise ShapeError(f"the size ({size})/0 is none", fix="give sizes above 0")
    if not isinstance(by, Size):
        return _made({monomial: Fraction(a) / by for monomial, a in terms_of(size)})
    above, below = fraction(by)
    if not isinstance(above, Size):
        return quotient(size * below, above)
    number, monomial, divisor = _primitive(above)
    over = _joined((), monomial, -1)
    if divisor != 1:
        over = _joined(over, ((Part("divisor", divisor), -1),))
    return _made({over: Fraction(1) / number}) * (size * below)


def _primitive(size: Size) -> tuple[Number, Monomial, Any]:
    """A size as number · monomial · sum, with whole coefficients without a common factor, the first one positive."""
    number = _content(size.terms) * (1 if size.terms[0][1] > 0 else -1)
    shared = dict(size.terms[0][0])
    for monomial, _ in size.terms[1:]:
        powers = dict(monomial)
        shared = {atom: min(power, powers.get(atom, 0)) for atom, power in shared.items()}
    common = tuple((atom, power) for atom, power in shared.items() if power > 0)
    rest = {_joined(monomial, common, -1): Fraction(by) / number for monomial, by in size.terms}
    return number, common, _made(rest)


def _content(terms: Iterable[tuple[Monomial, Number]]) -> Fraction:
    """The largest number by which all coefficients can be divided to whole numbers."""
    numbers = [by for _, by in terms]
    above = math.gcd(*(by.numerator for by in numbers))
    return Fraction(above, math.lcm(*(by.denominator for by in numbers)))


def _reduced(size: Any) -> Any:
    """The size with sums in denominators cancelled where they divide their numerators."""
    if not isinstance(size, Size):
        return size
    atoms = [atom for monomial, _ in size.terms for atom, _ in monomial if not isinstance(atom, str)]
    for divisor in dict.fromkeys(filter(_is_divisor, atoms)):
        over = ((divisor, -1),)
        above = {_joined(each, over, -1): by for each, by in size.terms if (divisor, -1) in each}
        divided = _divided(_made(above), divisor.size)
        if divided is not None:
            return divided + _made({each: by for each, by in size.terms if (divisor, -1) not in each})
    return size


def _divided(size: Any, by: Size) -> Any:
    """size / by if the division leaves no remainder, else None."""
    (lead, number), found, rest = by.terms[0], 0, size
    for _ in range(MOST_TERMS):
        if rest == 0:
            return found if size != 0 else None
        monomial, a = terms_of(rest)[0]
        step = _joined(monomial, lead, -1)
        if any(power < 0 for atom, power in step if atom in dict(lead)):
            return None
        term = _made({step: Fraction(a) / number})
        found, rest = found + term, rest - term * by
    return None


def product(sizes: Iterable[Any]) -> Any:
    """The product of sizes, 1 for none."""
    found = math.prod(sizes)
    return found.numerator if isinstance(found, Fraction) and found.denominator == 1 else found


def power_of(base: Any, exponent: int) -> Any:
    """A power of a size; None beyond `LARGEST_POWER`, for a number beyond `LARGEST`, and for 0 to a power below 0."""
    highest = max((abs(power) for monomial, _ in terms_of(base) for _, power in monomial), default=1)
    if (not isinstance(base, Size) and abs(base) > LARGEST) or abs(exponent) * highest > LARGEST_POWER:
        return None
    if exponent < 0:
        return quotient(1, power_of(base, -exponent)) if base != 0 else None
    return math.prod([base] * exponent)


# ---------------------------------------------------------------------------- rounding, and the larger of two


def floored(size: Any, by: Any = 1) -> Any:
    """⌊size / by⌋: the whole terms, and the floor of the remaining fractions."""
    if isinstance(size, int) and isinstance(by, int):
        return size // by
    return _floor(quotient(size, by) if by != 1 else size)


def _floor(size: SizeLike) -> Any:
    if not isinstance(size, Size):
        return math.floor(size)
    whole: dict[Monomial, Number] = {}
    rest: dict[Monomial, Number] = {}
    for monomial, by in size.terms:
        outside = math.floor(by) if _is_whole(monomial) else 0
        whole[monomial], rest[monomial] = outside, by - outside
    left = _made(rest)
    inside = _without_inner_floor(_in_steps(left))
    if not isinstance(inside, Size):
        return _made(whole) + math.floor(inside)
    return _made(whole) + (_floor(inside) if inside != left else _made({((Part("floor", inside), 1),): 1}))


def _in_steps(size: SizeLike) -> Any:
    """A size with the same floor: its constant is rounded down to a multiple of the other terms' common step."""
    terms = dict(terms_of(size))
    constant = terms.pop((), 0)
    if not constant or not all(map(_is_whole, terms)):
        return size
    step = math.lcm(*(by.denominator for by in terms.values()))
    return _made({**terms, (): Fraction(math.floor(constant * step), step)})


def _without_inner_floor(size: SizeLike) -> Any:
    """⌊(⌊a⌋ + b) / n⌋ is ⌊(a + b) / n⌋ where b is whole and n a whole number above 0."""
    for monomial, by in terms_of(size):
        match monomial:
            case ((Part("floor", inner), 1),) if by > 0 and by.numerator == 1:
                others = {each: a * by.denominator for each, a in terms_of(size) if each != monomial}
                if all(_is_whole(each) and a.denominator == 1 for each, a in others.items()):
                    return (inner + _made(others)) * Fraction(1, by.denominator)
    return size


def larger(one: Any, two: Any) -> Any:
    """The larger of two sizes: a + max(0, b - a)."""
    return one + positive_part(two - one)


def smaller(one: Any, two: Any) -> Any:
    """The smaller of two sizes: a - max(0, a - b)."""
    return one - positive_part(one - two)


def positive_part(size: SizeLike) -> Any:
    """max(0, size). Its atom is built from size or -size, the one with a positive first term, with whole coefficients.
    Positive denominators stay outside of it."""
    below = product(_below(each) for each in denominators(size).items() if _is_positive(each))
    above = size * below
    if not isinstance(above, Size):
        return size if above > 0 else 0
    if is_never_negative(above):
        return size
    if is_never_negative(-above):
        return 0
    if above.terms[0][1] < 0:
        return size + positive_part(-size)
    number = _content(above.terms)
    inner = _made({monomial: Fraction(by) / number for monomial, by in above.terms})
    return quotient(_made({((Part("Max", inner), 1),): number}), below)


def is_never_negative(size: Any) -> bool:
    """Whether no coefficient is negative, and no atom can be negative."""
    return all(by > 0 and all(map(_is_positive, monomial)) for monomial, by in terms_of(size))


def _is_positive(factor: tuple[Atom, int]) -> bool:
    """Whether a power of an atom is known never to be negative."""
    atom, _ = factor
    return isinstance(atom, str) or atom.kind == "Max" or is_never_negative(atom.size)


def _is_whole(monomial: Monomial) -> bool:
    """Whether a product of atoms is a whole number for all values of its names."""
    larger = (atom.size for atom, _ in monomial if isinstance(atom, Part) and atom.kind == "Max")
    return all(power > 0 for _, power in monomial) and all(
        _is_whole(each) for of in larger for each, _ in of.terms
    )


FUNCTIONS_OF_SIZES: Mapping[str, Callable[..., Any]] = {
    "floor": floored,
    "ceiling": lambda size: -floored(-size),
    "Max": lambda *sizes: functools.reduce(larger, sizes),
    "Min": lambda *sizes: functools.reduce(smaller, sizes),
}
"""The functions of sizes besides arithmetic, by their names in a text."""


# ---------------------------------------------------------------------------- substitution of names


def put_in(size: Any, values: Mapping[str, Any]) -> Any:
    """The size with names replaced by their values, once and all at the same time."""
    if not isinstance(size, Size):
        return size
    if size.name is not None:
        return values.get(size.name, size)
    known = tuple([(name, values[name]) for name in size.names if name in values])
    return _put_in(size, known) if known else size


@functools.lru_cache(maxsize=1 << 16)
def _put_in(size: Size, known: tuple[tuple[str, Any], ...]) -> Any:
    """Substitutes names. Cached: a plan needs the same few sizes thousands of times."""
    values = dict(known)
    return total(by * product(_factor(each, values) for each in one) for one, by in size.terms)


def _factor(factor: tuple[Atom, int], values: Mapping[str, Any]) -> Any:
    """A power of an atom with names replaced."""
    atom, power = factor
    if isinstance(atom, str):
        found = values.get(atom)
        if found is None:
            return Size((((factor,), 1),))
    else:
        found = _MADE[atom.kind](put_in(atom.size, values))
    return found**power if power > 0 else quotient(1, found**-power)


_MADE: dict[str, Callable[[Any], Any]] = {"floor": _floor, "Max": positive_part, "divisor": lambda size: size}


def evaluate(size: Any, values: Mapping[str, Any]) -> Any:
    """The size with every axis name replaced by its value: a number when nothing is left open."""
    while isinstance(size, Size):
        found = values.get(size.name, size) if size.name is not None else put_in(size, values)
        if found is size:
            break
        size = found
    return size


def are_equal(a: Any, b: Any, known: Mapping[str, Any]) -> bool:
    """Whether two sizes are equal for all values of the names that are not among the known ones."""
    return bool(a == b or fraction(evaluate(evaluate(a, known) - evaluate(b, known), known))[0] == 0)


# ---------------------------------------------------------------------------- as a fraction, and solved


def fraction(size: Any) -> tuple[Any, Any]:
    """A size as a numerator and a denominator, both with whole coefficients and powers above 0."""
    below: Any = _content(terms_of(size)).denominator if size != 0 else 1
    below = below * product(map(_below, denominators(size).items()))
    return size * below, below


def _below(factor: tuple[Atom, int]) -> Any:
    """The part of a denominator that comes from a factor with a power below 0."""
    atom, power = factor
    return atom.size if _is_divisor(atom) else _made({((atom, -power),): 1})


def denominators(size: Any) -> dict[Atom, int]:
    """The atoms that are in denominators, with their lowest powers."""
    found: dict[Atom, int] = {}
    for monomial, _ in terms_of(size):
        for atom, power in monomial:
            if power < found.get(atom, 0):
                found[atom] = power
    return found


def invert_size(size: Any, name: str, whole: Any) -> Any:
    """The value of `name` at which the size is `whole`, as a formula; None if the size is not linear in it."""
    slope: dict[Monomial, Number] = {}
    rest: dict[Monomial, Number] = {}
    for monomial, by in terms_of(fraction(size - whole)[0]):
        powers = dict(monomial)
        if powers.get(name, 0) > 1 or any(
            name in size_names(atom.size) for atom in powers if not isinstance(atom, str)
        ):
            return None
        (slope if name in powers else rest)[_joined(monomial, ((name, powers.get(name, 0)),), -1)] = by
    return quotient(-_made(rest), _made(slope)) if slope else None


def solve_size(size: Any, observed: Any) -> tuple[str, int] | None:
    """The only open name in `size` and its value at which `size` is `observed`, if there is exactly one."""
    if len(names := size_names(size)) != 1:
        return None
    above, _ = fraction(size - observed)
    if _parts(above):
        return None  # floor(D/2) and max(3, D) do not determine D
    linear = invert_size(above, names[0], 0)
    if linear is None and isinstance(above, Size):
        import sympy

        roots = [int(root) for root in sympy.Poly(to_sympy(above)).ground_roots() if root.is_Integer]
    else:
        roots = [linear] if isinstance(linear, int) else []
    found = [root for root in roots if root > 0] or [root for root in roots if root == 0]
    return (names[0], found[0]) if len(found) == 1 else None


# ---------------------------------------------------------------------------- as text, and as a sympy expression


def _place(term: tuple[Monomial, Number]) -> tuple[tuple[str, int], ...]:
    """The sort key of a term: by its names, large powers first, the constant last."""
    return (*((str(atom), -power) for atom, power in term[0]), ("\U0010ffff", 0))


def written(size: Any, atom: Callable[[Any], str]) -> str:
    """A size as text, with atoms written by a function."""

    def shown(factor: Any) -> str:
        if isinstance(factor, int):
            return str(factor)
        return atom(factor[0]) + (f"**{factor[1]}" if factor[1] != 1 else "")

    texts = list[str]()
    for term in _as_written(size) if atom is str else terms_of(size):
        above, below = ([*map(shown, part)] for part in factors_of(*term))
        sign = "-" if above[0] == "-1" and len(above) > 1 else ""
        over = f"/{below[0]}" if len(below) == 1 else f"/({'*'.join(below)})" if below else ""
        texts.append(f"{sign}{'*'.join(above[1:] if sign else above)}{over}")
    return " + ".join(texts).replace("+ -", "- ") or "0"


def factors_of(monomial: Monomial, by: Number) -> tuple[list[Any], list[Any]]:
    """The factors of a term's numerator and denominator: numbers, and atoms with powers above 0."""
    above = [each for each in monomial if each[1] > 0]
    below = [(atom, -power) for atom, power in monomial if power < 0]
    ahead = [by.numerator] if by.numerator != 1 or not above else []
    return [*ahead, *above], [by.denominator] * (by.denominator != 1) + below


def to_sympy(size: Any) -> Expr:
    """A size, or a number, as a sympy expression."""
    import sympy

    def of(atom: Atom) -> Any:
        if isinstance(atom, str):
            return sympy.Symbol(atom)
        inner = to_sympy(atom.size)
        return {"floor": sympy.floor(inner), "Max": sympy.Max(0, inner), "divisor": inner}[atom.kind]

    return sympy.Add(
        *(
            sympy.Rational(by.numerator, by.denominator)
            * sympy.Mul(*(of(atom) ** power for atom, power in each))
            for each, by in terms_of(size)
        )
    )


def _as_written(size: Any) -> Iterable[tuple[Any, Number]]:
    """Terms as a person writes them. Whole terms move into roundings, `floor(n/2 - u/2)` for `floor(n/2 + u/2) - u`,
    and `ceiling`, `Max` and `Min` are written by name."""
    found: dict[Any, Number] = dict(terms_of(size))
    for monomial, by in terms_of(size):
        atom = monomial[0][0] if monomial and by in (1, -1) else ""
        if isinstance(atom, str) or len(monomial) > 1 or monomial[0][1] != 1 or _parts(atom.size):
            continue
        if atom.kind == "floor":
            whole = (each for each, _ in atom.size.terms if each and _is_whole(each))
            taken = {each: a for each in whole if (a := found.get(each, 0)) * by < 0 and a.denominator == 1}
            inside = atom.size + by * _made(taken)
            text = f"floor({inside})" if by == 1 else f"ceiling({-inside})"
        else:
            taken = {each: -by * a for each, a in atom.size.terms if found.get(each, 0) == -by * a}
            other = _made(taken)
            text = f"{'Max' if by == 1 else 'Min'}({other}, {other + by * atom.size})"
        if taken:
            found = {each: a for each, a in found.items() if each not in taken}
            found = {((text, 1),) if each == monomial else each: a for each, a in found.items()}
            found[((text, 1),)] = 1
    return found.items()


# ---------------------------------------------------------------------------- as text that is read, and as source


class NoSizeError(ValueError):
    """A part of an expression is not a size."""

    def __init__(self, node: ast.expr) -> None:
        super().__init__(ast.unparse(node))
        self.node = node


_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: quotient,
    ast.FloorDiv: floored,
    ast.Pow: lambda base, power: power_of(base, power) if isinstance(power, int) else None,
}


def read_expression(node: ast.expr) -> Any:
    """The size that an expression of Python's grammar writes.

    Raises:
        NoSizeError: it is none; the error has the part that is at fault.
    """
    found: Any = None
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name) if is_name(name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -read_expression(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            a, b = read_expression(left), read_expression(right)
            if b != 0 or not isinstance(op, ast.Div | ast.FloorDiv):
                found = _ARITHMETIC[type(op)](a, b)
        case ast.Call(func=ast.Name(id=name), args=[_, *others] as arguments, keywords=[]):
            if name in FUNCTIONS_OF_SIZES and (name in ("Max", "Min") or not others):
                found = FUNCTIONS_OF_SIZES[name](*map(read_expression, arguments))
    if found is None:
        raise NoSizeError(node)
    return found


def write_size(size: Any) -> int | str:
    """A size as a value of JSON: a whole number, or text, `"2*D + 1"`."""
    return size if isinstance(size, int) else str(size)


def read_written(value: Any) -> Any:
    """The size that `write_size` wrote.

    Raises:
        ValueError: the value is not a size.
    """
    try:
        return value if type(value) is int else _read_text(value)
    except (TypeError, ValueError, SyntaxError, RecursionError, MemoryError, ShapeError):
        raise ValueError(repr(value)) from None


@functools.lru_cache(maxsize=1 << 12)
def _read_text(text: str) -> Any:
    return read_expression(ast.parse(text, mode="eval").body)


def size_source(size: Any, names: Mapping[str, str] = {}) -> str:
    """The size as Python source in integer arithmetic. A size is whole, so one division at the end is exact.

    Args:
        size: the size.
        names: the names of sizes in the source; a missing name stays as it is.
    """

    def of(atom: str | Part) -> str:
        if isinstance(atom, str):
            return names.get(atom, atom)
        if atom.kind == "Max" and denominators(atom.size):
            fix = f"give {', '.join(size_names(atom.size))} values"
            raise ShapeError(f"{atom} is no whole number as long as names are in it", fix=fix)
        inner = size_source(atom.size, names)
        return f"max(0, {inner})" if atom.kind == "Max" else f"({inner})"

    if isinstance(size, int):
        return str(size)
    above, below = fraction(size)
    return written(above, of) if below == 1 else f"({written(above, of)}) // ({written(below, of)})"


def as_size(value: Any, name: str) -> Any:
    """`value` as a size: a positive integer, or a formula.

    Raises:
        ShapeError: it is neither.
    """
    if isinstance(value, Size):
        return value
    is_truth = isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool"
    try:
        size = 0 if is_truth else operator.index(value)
    except TypeError:
        size = 0
    if not 1 <= size <= LARGEST:
        fix = f"give {name}= a positive integer or a sympy expression"
        raise ShapeError(f"the size of '{name}' is {value!r}", fix=fix)
    return size


def as_formula(size: Any) -> int | Expr:
    """A size as users see it: an integer, or a sympy expression."""
    return size if isinstance(size, int) else to_sympy(size)
