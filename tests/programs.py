"""Random programs in the language, written from its reference: any construct may stand beside any other.

`program(seed, number)` is the same each time. Axes of the pool have one size each throughout a program; a dimension
is written as a formula of these, so that arrays of another batch can be drawn. What is written is valid by
construction: an axis that is not on the left is in two factors of a product, or in the brackets of a function.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import tensornet as tn

SUMMED_ALONE = (
    "ignore:the axis .* is summed, and nothing else has it|.* is the diagonal of:tensornet.TensornetWarning"
)
"""For tests of random programs, which mean such sums, and such diagonals."""
POOL = ("b", "i", "j", "k", "n", "t", "c")
MAPS = (
    "tanh({})", "sigmoid({})", "sin({})", "cos({})", "exp(-abs({}))", "sqrt(abs({}) + 0.1)", "relu({})", "gelu({})",
    "silu({})", "softplus({})", "abs({})", "square({})", "({})**2", "log(1.5 + abs({}))", "reciprocal(1.5 + abs({}))",
    "leaky_relu({}, slope=0.1)", "elu({})", "erf({})", "floor({})", "sign({})", "expm1(-abs({}))", "hardswish({})",
    "clip({}, -0.5, 0.75)", "mish({})", "log_sigmoid({})", "rsqrt(1 + square({}))", "dropout({}, 0.2)", "round({})",
)  # fmt: skip
KEEP = [
    "softmax",
    "log_softmax",
    "normalize",
    "cumsum",
    "cumprod",
    "hardmax",
    "average_hardmax",
    "average_hardmin",
]
LEAVE = ("sum", "sum", "mean", "max", "min", "prod", "var", "logsumexp", "norm", "std", "max")
Text = tuple[str, frozenset[str]]
"""An expression, and the axes of its value."""


@dataclass(frozen=True)
class Leaf:
    """An input or a parameter: a formula for each dimension; positions are below a bound."""

    dims: tuple[str, ...]
    kind: str
    bound: str = ""


@dataclass(frozen=True)
class Program:
    """A text and all that it is given.

    Attributes:
        text: its lines.
        inputs: the names that `inputs=` takes.
        given: sizes.
        leaves: inputs and parameters, by name.
        sizes: of every axis, given or not.
        outputs: what is computed.
        selected: what is asked for.
        frozen: parameters that are made constants.
        memory_limit: bytes, or nothing.
        gradients: whether these are asked for.
        special: an infinite number or none is among the inputs.
        wrong: positions outside of what they index are among the inputs.
    """

    text: str
    inputs: tuple[str, ...]
    given: Mapping[str, int]
    leaves: Mapping[str, Leaf]
    sizes: Mapping[str, int]
    outputs: tuple[str, ...]
    selected: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    memory_limit: int | None = None
    gradients: bool = False
    special: bool = False
    wrong: bool = False
    seed: int = 0

    def arrays(self, **changed: int) -> dict[str, np.ndarray]:
        """Arrays for its leaves, of other sizes where these are told."""
        draw = np.random.default_rng(self.seed)
        sizes = {**self.sizes, **changed}
        return {name: self._array(leaf, sizes, draw) for name, leaf in self.leaves.items()}

    def graph(self) -> tn.Graph:
        """The program as a graph."""
        given: dict[str, Any] = dict(self.given)
        return tn.layer(self.text, inputs=list(self.inputs), outputs=list(self.outputs), **given)

    def record(self) -> str:
        """The program as text, which `recorded` reads."""
        leaves = (
            f"{n} {leaf.kind} {','.join(leaf.dims) or '()'}" + f" {leaf.bound}" * bool(leaf.bound)
            for n, leaf in self.leaves.items()
        )
        settings = [
            f"{name}={','.join(getattr(self, name))}"
            for name in ("selected", "frozen")
            if getattr(self, name)
        ]
        settings += [name for name in ("gradients", "special", "wrong") if getattr(self, name)]
        settings += [f"memory_limit={self.memory_limit}"] * bool(self.memory_limit) + [f"seed={self.seed}"]
        used = {
            axis: size
            for axis, size in self.sizes.items()
            if has(self.text, axis)
            or any(has(dim, axis) for leaf in self.leaves.values() for dim in (*leaf.dims, leaf.bound))
        }
        head = {
            "leaves": "; ".join(leaves), "inputs": " ".join(self.inputs), "given": " ".join(self.given),
            "sizes": " ".join(f"{axis}={size}" for axis, size in used.items()), "outputs": " ".join(self.outputs), "settings": " ".join(settings),
        }  # fmt: skip
        return "\n".join([*(f"# {name}: {value}" for name, value in head.items()), self.text])

    def _array(self, leaf: Leaf, sizes: Mapping[str, int], draw: np.random.Generator) -> np.ndarray:
        shape = tuple(_size(dim, sizes) for dim in leaf.dims)
        if leaf.bound:
            bound = _size(leaf.bound, sizes)
            low, high = (-1, bound + 1) if self.wrong else (0, max(bound, 1))
            return draw.integers(low, high, shape)
        found = np.asarray(np.round(draw.uniform(-1.5, 1.5, shape), 3))
        if self.special and leaf.kind == "input" and found.size:
            found.reshape(-1)[draw.integers(found.size)] = draw.choice([np.nan, np.inf, -np.inf])
        return found


def _size(formula: str, sizes: Mapping[str, int]) -> int:
    return max(0, int(eval(formula, {"__builtins__": {}}, dict(sizes))))


def records(name: str) -> list[str]:
    """The records of a file in `data`."""
    text = (Path(__file__).parent / "data" / name).read_text()
    return [each.strip("\n") for each in text.split("\n\n") if each.strip()]


@dataclass(frozen=True)
class Titled:
    """A program with a title, what a record says of it besides, and its text."""

    title: str
    said: Mapping[str, str]
    text: str

    def numbers(self, word: str = "sizes") -> dict[str, int]:
        """What a line `# sizes: b=3 i=4` says."""
        pairs = (each.partition("=") for each in self.said.get(word, "").split())
        return {axis: int(size) for axis, _, size in pairs}

    def graph(self, **more: Any) -> tn.Graph:
        """The graph; `more` takes the place of what the record says."""
        said = {name: self.said.get(name, "") for name in ("inputs", "outputs")}
        return tn.layer(self.text, **{**{k: v for k, v in said.items() if v}, **self.numbers(), **more})


def titled(name: str) -> dict[str, Titled]:
    """The records of a file in `data` whose first line is a title, by it; lines `# word: …` say more."""
    found = {}
    for record in records(name):
        lines = record.splitlines()
        said = dict(line[2:].split(": ", 1) for line in lines[1:] if line.startswith("# "))
        text = "\n".join(line for line in lines if not line.startswith("# "))
        found[lines[0][2:]] = Titled(lines[0][2:], said, text)
    return found


def recorded(text: str) -> Program:
    """The program of a record."""
    lines = text.strip().splitlines()
    head = dict(line[2:].split(":", 1) for line in lines if line.startswith("# ") and ":" in line)
    leaves = dict[str, Leaf]()
    for each in head["leaves"].split(";") if head["leaves"].strip() else ():
        name, kind, dims, *bound = each.split()
        leaves[name] = Leaf(() if dims == "()" else tuple(dims.split(",")), kind, *bound)
    sizes = {axis: int(size) for axis, _, size in (each.partition("=") for each in head["sizes"].split())}
    settings = {name: value for name, _, value in (each.partition("=") for each in head["settings"].split())}
    return Program(
        "\n".join(line for line in lines if not line.startswith("# ")),
        tuple(head["inputs"].split()),
        {axis: sizes[axis] for axis in head["given"].split()},
        leaves,
        sizes,
        tuple(head["outputs"].split()),
        selected=tuple(settings["selected"].split(",")) if "selected" in settings else (),
        frozen=tuple(settings["frozen"].split(",")) if "frozen" in settings else (),
        memory_limit=int(settings["memory_limit"]) if "memory_limit" in settings else None,
        gradients="gradients" in settings,
        special="special" in settings,
        wrong="wrong" in settings,
        seed=int(settings.get("seed", 0)),
    )


def program(seed: int, number: int) -> Program:
    """The program of a seed and a number."""
    draw = random.Random(f"{seed} {number}")
    return _Writer(draw).program()


def programs() -> st.SearchStrategy[Program]:
    """A strategy of programs that are accepted, with neither infinite numbers nor wrong positions among the inputs."""
    drawn = st.builds(program, st.just(0), st.integers(0, 2**20))
    return drawn.map(lambda case: replace(case, special=False, wrong=False)).filter(_is_accepted)


def _is_accepted(case: Program) -> bool:
    """Whether a program is none of the few that are refused, which the harness counts."""
    try:
        case.graph()
    except tn.TensornetError:
        return False
    return True


@dataclass
class _Known:
    """A tensor that can be read: a formula for each dimension, and the axes of its bare name."""

    name: str
    dims: tuple[str, ...]
    axes: tuple[str, ...] | None = None
    recurs: int | None = None
    positions: str = ""
    sized: bool = False
    """Whether its sizes are numbers where the text is read."""
    named: bool = True
    """Whether its bare name may stand anywhere."""


@dataclass
class _Writer:
    draw: random.Random
    lines: list[str] = field(default_factory=list)
    declared: list[str] = field(default_factory=list)
    leaves: dict[str, Leaf] = field(default_factory=dict)
    known: list[_Known] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    must: set[str] = field(default_factory=set)
    count: int = 0
    own: bool = False
    """In a block, where sizes differ from call to call."""
    busy: frozenset[str] = frozenset()
    """Axes that a product around sums: one inside that summed them too would be another reading."""
    passed: Sequence[str] = ()
    """The axes of what a block is given."""
    whole: bool = False
    """Whether real numbers become integers, which NaN and infinity do not."""

    def __post_init__(self) -> None:
        self.sizes = {axis: self.draw.choices((0, 1, 2, 3, 4), (1, 12, 40, 35, 12))[0] for axis in POOL}
        self.mode = self.one(("all", "all", "some", "must"))

    # ---- choices

    def one(self, options: Iterable[Any]) -> Any:
        return self.draw.choice([*options])

    def chance(self, percent: float) -> bool:
        return self.draw.random() * 100 < percent

    def some(self, axes: Iterable[str], least: int, most: int) -> list[str]:
        listed = sorted(axes)
        return self.draw.sample(listed, min(len(listed), self.draw.randint(least, most)))

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def size(self, formula: str) -> int:
        return _size(formula, self.sizes)

    def outside(self, within: Iterable[str], count: int = 1) -> list[str]:
        return self.some({*POOL} - {*within} - self.busy, count, count)

    # ---- tensors

    def leaf(self, dims: Sequence[str], entries: Sequence[str], bound: str = "") -> str:
        """A new input or parameter, declared or not."""
        is_input = bool(bound) or (not self.own and self.chance(45))
        name = self.name("t" if bound else "x" if is_input else self.one("WUA"))
        self.leaves[name] = Leaf(tuple(dims), "input" if is_input else "parameter", bound)
        axes = (
            tuple(entries)
            if all(each in self.sizes for each in entries) and len({*entries}) == len(entries)
            else None
        )
        strided = not all(each.isidentifier() for each in entries) and self.chance(99)
        if not dims or strided or (self.chance(30) and not self.own):
            axes = (
                tuple(dim if dim in self.sizes else self.name("q") for dim in dims) if axes is None else axes
            )
            sized = (
                f"{a}:{self.size(d)}" if a not in self.sizes and (strided or self.chance(50)) else a
                for a, d in zip(axes, dims, strict=True)
            )
            kind = "input" if is_input else "parameter"
            self.declared.append(f"{name}[{', '.join(sized) or '()'}]: {kind}")
        elif is_input:
            self.inputs.append(name)
        named = any(line.startswith(f"{name}[") for line in self.declared)
        known = self.mode == "all" and (strided or all(each in POOL for each in entries))
        self.known.append(
            _Known(name, tuple(dims), axes, positions=bound, sized=known and not self.own, named=named)
        )
        return name

    def positions(self, within: Iterable[str], bound: str) -> Text:
        """A tensor of positions, or an expression of them, below a bound of one or more."""
        if not self.own and within and self.chance(60):
            axes = self.some(within, 1, 2)
            known = [k for k in self.known if k.positions == bound and {*k.dims} <= {*within}]
            if known and self.chance(40):
                found = self.one(known)
                return (f"{found.name}[{','.join(found.dims)}]" if found.dims else found.name), frozenset(
                    found.dims
                )
            name = self.leaf(axes, axes, bound)
            return (f"{name}[{','.join(axes)}]" if axes else name), frozenset(axes)
        if not within:
            return "0", frozenset()
        axis = self.one(within)
        self.must.add(axis)
        match self.draw.randrange(5):
            case 0:
                return f"index({axis}) % {self.size(bound)}", frozenset([axis])
            case 1:
                read, held = self.positions(within, bound)
                return f"({read} + 1) % {self.size(bound)}", held
            case 4 if not self.own:
                read, held = self.reads(within)
                self.whole = True
                return f"int64(3 * {read}) % {self.size(bound)}", held
            case 2 if bound in POOL and bound not in within and self.size(bound):
                read, held = self.reads([*within, bound], {bound})
                return f"{self.one(('argmax', 'argmin'))}[{bound}]({read})", held - {bound}
        return f"(index({axis}) // 2) % {self.size(bound)}", frozenset([axis])

    def reads(self, within: Iterable[str], need: Iterable[str] = ()) -> Text:
        """A tensor as it is read, under axes of `within`, with those that are needed."""
        within, need = [*dict.fromkeys([*within, *sorted(need)])], {*need}
        for _ in range(3):
            candidates = [k for k in self.known if not k.positions]
            if not candidates or self.chance(45):
                break
            found = self.again(self.one(candidates), within)
            if found and need <= found[1]:
                return found
        return self.anew(within, need)

    def anew(self, within: Sequence[str], need: set[str]) -> Text:
        """A new tensor, as long as its entries take."""
        axes = [*sorted(need), *self.some({*within} - need, 0 if need or self.chance(15) else 1, 2)][:4]
        self.draw.shuffle(axes)
        others = [axis for axis in within if axis not in axes]
        made = [self.entry(axis, others if others and self.chance(90) else within) for axis in axes]
        if axes and self.chance(6):
            made.append((axes[0], axes[0]))  # a diagonal
        if self.chance(8):
            made.insert(0, (self.one(("0", "-1", "1")), "2"))
        entries, dims = [each for each, _ in made], [dim for _, dim in made]
        name = self.leaf(dims, entries)
        used = {axis for axis in within if any(has(entry, axis) for entry in entries)}
        return (f"{name}[{','.join(entries)}]" if entries else name), frozenset(used)

    def anew_plain(self, axes: Iterable[str]) -> Text:
        """A new tensor under axes as they are."""
        order = self.some(axes, 9, 9)
        return f"{self.leaf(order, order)}[{','.join(order)}]", frozenset(order)

    def entry(self, axis: str, within: Sequence[str]) -> tuple[str, str]:
        """An entry that has an axis, and the formula of a dimension that it fits."""
        a, size = axis, self.sizes[axis]
        c = self.one(within)
        u = self.draw.randint(1, 2)
        if self.chance(62) or not size or not self.sizes[c] or (self.own and {a, c} & {*self.passed}):
            return a, a
        usual = [(f"{a} + {u}", f"{a}+{u}"), (f"2*{a}", f"2*{a}-1"), (f"2*{a} + {u}", f"2*{a}-1+{u}")]
        rare = [(f"3*{a} + {u}", f"3*{a}-2+{u}"), (f"{a}//2", f"({a}+1)//2"), (f"{a} % 2", "2"), (f"({a},{u - 1})", f"{a}*2"),
                (f"(1,{a})", f"2*{a}"), (f"({a},-1)", f"{a}*2")]  # fmt: skip
        if a != "b" and not self.own:
            rare.append((f"{size - 1} - {a}", a))
        if c != a:
            usual += [
                (f"{a} + {c}", f"{a}+{c}-1"),
                (f"{a} + {c}", f"{a}+{c}-1"),
                (f"2*{a} + {c}", f"2*({a}-1)+{c}"),
                (f"({a},{c})", f"{a}*{c}"),
            ]
            rare += [(f"({c},{a})", f"{a}*{c}"), (f"{a} + {c} + {u}", f"{a}+{c}+{u}-1")]
            rare += [(f"(0,{a},{c})", f"2*{a}*{c}")] if self.chance(30) else []
            rare += (
                [(f"{a} - {c} + {self.sizes[c] - 1}", f"{a}+{c}-1")]
                if "b" not in (a, c) and not self.own
                else []
            )
        if self.chance(40) and not self.own:
            read, _ = self.positions([a, *within], str(u + 1))
            usual += [(read, str(u + 1))] if has(read, a) else []
            rare += [(f"({a},{read})", f"{a}*{u + 1}")] if has(read, a) else []
        entry, dim = self.one(usual if self.chance(65) else rare)
        self.must |= (
            {axis for axis in (a, c) if has(entry, axis)}
            if entry != f"{a} + {u}" or self.chance(50)
            else set()
        )
        return entry, dim

    def again(self, tensor: _Known, within: Sequence[str]) -> Text | None:
        """A tensor that is there already, under the same axes or others."""
        if tensor.named and tensor.axes is not None and {*tensor.axes} <= {*within} and self.chance(30):
            return tensor.name, frozenset(tensor.axes)
        entries: list[str] = []
        for dimension, dim in enumerate(tensor.dims):
            size = self.size(dim)
            sized = tensor.sized and "b" not in dim
            options = [
                axis for axis in within if axis == dim or (self.sizes[axis] == size and sized and axis != "b")
            ]
            options *= 4
            if size and (dim in ("1", "2", "3", "4") or sized):
                options += [str(self.draw.randrange(size)), str(-self.draw.randint(1, size))]
            if tensor.recurs == dimension:
                options += [f"{axis}{self.one('+-')}1" for axis in within if self.sizes[axis] == size]
            elif size and sized:
                options += [
                    entry for axis in within for entry, needs in self.windows(axis, within) if needs == size
                ]
                if self.chance(15):
                    options.append(self.positions(within, str(size))[0])
            if not options:
                return None
            entries.append(self.one(options))
        used = {axis for axis in within if any(has(entry, axis) for entry in entries)}
        return (f"{tensor.name}[{','.join(entries)}]" if entries else tensor.name), frozenset(used)

    def windows(self, axis: str, within: Sequence[str]) -> list[tuple[str, int]]:
        """Expressions of positions, and how many they need."""
        size = self.sizes[axis]
        if not size or axis == "b":
            return []
        found = [(f"{axis} + {u}", size + u) for u in (1, 2)] + [
            (f"2*{axis}", 2 * size - 1),
            (f"2*{axis} + 1", 2 * size),
            (f"{size - 1} - {axis}", size),
        ]
        for other in within:
            if other not in (axis, "b") and self.sizes[other]:
                found += [
                    (f"{axis} + {other}", size + self.sizes[other] - 1),
                    (f"({axis},{other})", size * self.sizes[other]),
                ]
        return found

    # ---- expressions

    def expression(self, within: Sequence[str], depth: int, direct: bool = False) -> Text:
        text, axes = self.term(within, depth, direct)
        for _ in range(self.one((0, 0, 0, 0, 1, 1))):
            more, other = self.term(within, depth, direct)
            text, axes = f"{text} {self.one('+-')} {more}", axes | other
        return text, axes

    def term(self, within: Sequence[str], depth: int, direct: bool) -> Text:
        match self.draw.randrange(10):
            case 0 | 1:
                if direct and self.chance(15):
                    lost = self.outside(within)
                    text, axes = self.anew_plain([*self.some(within, 0, 2), *lost])
                    return text, axes - {*lost}
                return self.reads(within)
            case 2:
                return self.number(within)
            case 3 | 4 | 5 if depth > 0:
                return self.call(within, depth)
        return self.product(within, depth, direct)

    def number(self, within: Sequence[str]) -> Text:
        if within and self.chance(30):
            axis = self.one(within)
            self.must.add(axis)
            return self.one(
                (
                    f"index({axis})",
                    f"(index({axis}) + 1) * 0.5",
                    f"index({axis}) ** 2",
                    f"(index({axis}) + 3) // 2",
                )
            ), frozenset([axis])
        return self.one(("2", "0.5", "1.25", "pi", "3")), frozenset()

    def product(self, within: Sequence[str], depth: int, direct: bool) -> Text:
        summed = self.outside(within, self.one((0, 0, 1, 1, 2)))
        inner = [*within, *summed]
        needs: list[set[str]] = [set() for _ in range(2 if summed else self.one((1, 2, 2, 3)))]
        if summed and self.chance(40):
            needs.append(set())
        for axis in summed:
            for place in self.draw.sample(range(len(needs)), 2):
                needs[place].add(axis)
        factors = [self.reads(inner, need) for need in needs]
        windowed = {axis for axis in summed if not any(_stands(text, axis) for text, _ in factors)}
        if windowed:  # an axis that stands in sums of positions alone would be a size there
            factors.append(self.anew_plain(windowed))
        for _ in range(self.one((0, 0, 0, 0, 0, 1, 2))):
            factors.append(self.one(factors))  # the same factor again
        before = self.busy
        for _ in range(self.one((0, 0, 1)) if depth > 0 else 0):
            self.busy |= {*summed}
            factors.append(self.factor(within, depth - 1) if self.chance(50) else self.wrapped(inner))
        self.busy = before
        if self.chance(12):
            factors.append(self.number(within))
        self.draw.shuffle(factors)
        text = " * ".join(f"({text})" if "+ 1)" in text and "//" in text else text for text, _ in factors)
        axes = frozenset(axis for _, each in factors for axis in each)
        if self.chance(8):
            divisor, more = self.reads(within)
            text, axes = f"{text} / (1.5 + abs({divisor}))", axes | more
        elif self.chance(6) and (given := [axis for axis in within if self.sizes[axis]]):
            size = self.one(given)
            self.must.add(size)
            text = f"{text} / sqrt({size})"
        return (f"-{text}" if self.chance(10) else text), axes - {*summed}

    def wrapped(self, within: Sequence[str]) -> Text:
        """A function of one tensor: no product inside could sum what the one around it sums."""
        text, axes = self.reads(within)
        return self.one(MAPS).format(text), axes

    def factor(self, within: Sequence[str], depth: int) -> Text:
        if self.chance(60):
            return self.call(within, depth)
        text, axes = self.expression(within, depth)
        return f"({text})", axes

    def call(self, within: Sequence[str], depth: int) -> Text:
        kinds: list[Callable[[Sequence[str], int], Text]] = [
            self.mapped,
            self.mapped,
            self.reduced,
            self.reduced,
            self.compared,
            self.chosen,
        ]
        if within:
            kinds += [self.along, self.along, self.moved, self.told, self.shifted]
        return self.one(kinds)(within, depth)  # type: ignore[no-any-return]

    def mapped(self, within: Sequence[str], depth: int) -> Text:
        text, axes = self.expression(within, depth - 1)
        return self.one(MAPS).format(text), axes

    def needing(self, within: Sequence[str], need: Sequence[str], depth: int) -> Text:
        """An expression that has some axes."""
        text, axes = self.expression(within, depth - 1)
        if missing := {*need} - axes:
            more, other = self.reads(within, missing)
            text, axes = f"{text} + {more}", axes | other
        return text, axes

    def reduced(self, within: Sequence[str], depth: int) -> Text:
        over = self.outside(within, self.one((1, 1, 1, 2)))
        text, axes = self.needing([*within, *over], over, depth)
        if not over:  # all axes are taken
            return text, axes
        function = self.one(LEAVE)
        if len(over) == 1 and self.chance(10):
            function = self.one(("argmax", "argmin"))
        return f"{function}[{','.join(over)}]({text})", axes - {*over}

    def along(self, within: Sequence[str], depth: int) -> Text:
        axis = self.one(within)
        text, axes = self.needing(within, [axis], depth)
        function = self.one(KEEP)
        if function in ("cumsum", "cumprod") and self.chance(40):
            text += ", back=1"
        if function == "softmax" and len(within) > 1 and self.chance(20):
            other = self.one([a for a in within if a != axis])
            if other in axes:
                return f"softmax[{axis},{other}]({text})", axes
        if self.chance(8):
            return f"argsort[{axis}]({text.removesuffix(', back=1')})", axes
        if self.chance(8):
            more, other_axes = self.needing(within, [axis], depth)
            return (
                f"recur[{axis}](tanh({text.removesuffix(', back=1')}), {more}, start=0.5)",
                axes | other_axes,
            )
        return f"{function}[{axis}]({text})", axes

    def compared(self, within: Sequence[str], depth: int) -> Text:
        (one, a), (two, b) = self.reads(within), self.reads(within)
        text = f"({one} {self.one(('<', '<=', '>', '>=', '==', '!='))} {two})"
        if self.chance(20):
            more, c = self.reads(within)
            return f"({text} {self.one('&|')} ({more} > 0))", a | b | c
        return (f"(~{text} * 0.5)" if self.chance(15) else text), a | b

    def chosen(self, within: Sequence[str], depth: int) -> Text:
        (one, a), (two, b) = self.reads(within), self.reads(within)
        if self.chance(40):
            return f"{self.one(('maximum', 'minimum'))}({one}, {two})", a | b
        if len(within) > 1 and self.chance(40):
            i, j = self.draw.sample([*within], 2)
            if self.chance(50):
                text, axes = self.needing(within, [j], depth)
                self.must |= {i, j}
                return f"softmax[{j}](where(index({i}) <= index({j}), {text}, -inf))", axes | {i, j}
            return f"where(index({i}) >= index({j}), {one}, {two})", a | b | {i, j}
        condition, c = self.compared(within, depth)
        return f"where({condition}, {one}, {self.one((two, '0', '-1.5'))})", a | b | c

    def moved(self, within: Sequence[str], depth: int) -> Text:
        axis = self.one(within)
        text, axes = self.needing(within, [axis], depth)
        return f"roll({text}, {axis}={self.one((1, -1, 2))})", axes

    def shifted(self, within: Sequence[str], depth: int) -> Text:
        axis = self.one(within)
        text, axes = self.needing(within, [axis], depth)
        start = self.one(("", ", 0.5"))
        return f"{self.one(('previous', 'following'))}[{axis}]({text}{start})", axes

    def told(self, within: Sequence[str], depth: int) -> Text:
        axis = self.one(within)
        self.must.add(axis)
        if self.chance(50):
            text, axes = self.reads([a for a in within if a != axis])
            return f"repeat[{axis}]({text})", axes | {axis}
        text, axes = self.positions([a for a in within if a != axis], axis if self.sizes[axis] else "1")
        return f"onehot[{axis}]({text})", axes | {axis}

    # ---- lines

    def left(self, axes: Iterable[str]) -> tuple[str, tuple[str, ...], tuple[str, ...] | None]:
        """Brackets on the left, the dimensions, and the axes of the bare name."""
        order = self.some(axes, 9, 9)
        if len(order) > 1 and self.chance(12):
            entries, dims = [f"({order[0]},{order[1]})", *order[2:]], [f"{order[0]}*{order[1]}", *order[2:]]
            return f"[{','.join(entries)}]", tuple(dims), None
        return (f"[{','.join(order)}]" if order else ""), tuple(order), tuple(order)

    def equation(self) -> None:
        text, axes = self.expression(self.some(POOL, 0, 3), self.one((1, 1, 2)), direct=True)
        left, dims, bare = self.left(axes)
        name = self.name("y")
        self.lines.append(f"{name}{left} = {text}")
        self.known.append(_Known(name, dims, bare, sized=self.mode == "all"))

    def jointly(self) -> None:
        """One axis name in several functions of a line."""
        within = self.some(POOL, 0, 1)
        axis = self.outside(within)[0]
        parts = [self.needing([*within, axis], [axis], 1) for _ in range(self.one((2, 3)))]
        text = f" {self.one('+-')} ".join(f"{self.one(LEAVE)}[{axis}]({part})" for part, _ in parts)
        left, dims, bare = self.left({a for _, axes in parts for a in axes} - {axis})
        name = self.name("y")
        self.lines.append(f"{name}{left} = {text}")
        self.known.append(_Known(name, dims, bare, sized=self.mode == "all"))

    def resized(self) -> None:
        """Slices, pad, concat and stack, whose axes are longer or shorter than those they are made of."""
        axis, rest = self.name("r"), self.some(POOL, 0, 1)
        axes = [axis, *rest]
        self.sizes[axis] = self.draw.randint(1, 4)
        order = self.some(axes, 9, 9)
        name, u, size = self.name("y"), self.draw.randint(0, 2), self.sizes[axis]
        source = self.leaf(order, order)
        read = f"{source}[{','.join(order)}]"
        match self.draw.randrange(4):
            case 0 if size >= 2:
                self.declared = [line for line in self.declared if not line.startswith(f"{source}[")]
                given = self.chance(60)
                sized = (f"{a}:{size}" if a == axis and given else a for a in order)
                self.declared.append(f"{source}[{', '.join(sized)}]: {self.leaves[source].kind}")
                self.inputs = [each for each in self.inputs if each != source]
                middle = [("1:3", "2"), ("-3:-1", "2")] if size > 2 else []
                forms = self.one(
                    (
                        *[[("1:", f"{axis}-1"), (":-1", f"{axis}-1")]] * 6,
                        [("::2", f"({axis}+1)//2")],
                        [self.one((("-1:", "1"), (":1", "1")))],
                        [(":2", "2"), ("-2:", "2"), *middle][: self.draw.randint(1, 3)],
                    )
                )
                parts = [
                    f"{source}[{','.join(form if a == axis else a for a in order)}]" for form, _ in forms
                ]
                text = f" {self.one('*-+')} ".join(parts)
                length = forms[0][1]
            case 1:
                text, length = (
                    f"pad({read}, {axis}=({u},1)" + self.one((")", ", value=0.5)")),
                    f"{axis}+{u}+1",
                )
            case 2:
                other = self.leaf(
                    [f"{axis}+1" if a == axis else a for a in order], ["…" if a == axis else a for a in order]
                )
                text, length = f"concat[{axis}]({read}, {other}[{','.join(order)}])", f"2*{axis}+1"
                self.known[-1].axes = None
            case _:
                order = [a for a in order if a != axis]
                sources = [self.reads(rest, rest)[0] for _ in range(2)]
                text, length = f"stack[{axis}]({', '.join(sources)})", "2"
                order = [axis, *order]
                if rest and self.chance(30):
                    order, rest = [f"({','.join(self.some(order, 9, 9))})"], []
                    length = f"2*{order[0].strip('()').replace(axis, '1').replace(',', '*')}"
        self.lines.append(
            f"{name}[{','.join(order)}] = {self.one(('{}', '{}', 'tanh({})', '2 * {}')).format(text if ' ' not in text or '(' in text[:8] else f'({text})')}"
        )
        self.known.append(_Known(name, tuple(length if has(a, axis) else a for a in order)))

    def windowed(self) -> None:
        """A sum along an axis that windows alone have: what is read from the end says how long it is."""
        p, u = self.some({*POOL} - {"b"}, 2, 2)
        if not self.sizes[p] or not self.sizes[u]:
            return
        x, w, y, n, m = map(self.name, "xWynm")
        step, first = self.draw.randint(1, 2), self.draw.randint(0, 2)
        self.sizes |= {m: self.sizes[u]}
        self.leaves |= {x: Leaf((f"{step}*({p}-1)+{u}+{first}",), "input"), w: Leaf((m,), "parameter")}
        self.declared += [f"{x}[{n}]: input", f"{w}[{m}]: parameter"]
        shown = self.one((f"{m}-1-{u}", f"{m}-{u}-1", f"{u}+0"))
        self.lines.append(f"{y}[{p}] = sum[{u}]({x}[{step}*{p}+{u}+{first}] * {w}[{shown}])")
        self.known.append(_Known(y, (p,), (p,), sized=self.mode == "all"))

    def ordered(self) -> None:
        """Positions in order: top, argsort, and what they pick."""
        within = self.some(POOL, 0, 1)
        axis, short = self.outside(within, 2)
        name = self.name("y")
        if self.sizes[short] > self.sizes[axis]:
            axis, short = short, axis
        read, _ = self.anew([*within, axis], {*within, axis})
        entries = [axis if a == axis else a for a in [*within, axis]]
        source = self.leaf(entries, entries)
        told = f"top[{axis},{short}]({read})"
        picked = f"{source}[{','.join([*within, told])}]"
        left = ",".join([*within, short])
        self.must.add(short)
        if self.chance(90):
            places = self.name("p")
            self.lines.append(f"{places}[{left}] = {told}")
            picked = f"{source}[{','.join([*within, f'{places}[{left}]'])}]"
        self.lines.append(f"{name}[{left}] = {picked}")
        self.known.append(_Known(name, (*within, short), (*within, short), sized=self.mode == "all"))

    def leading(self) -> None:
        """Any leading axes."""
        front = self.front = self.some(POOL, 0, 2) if self.front is None else self.front
        i, o = self.outside(front, 2)
        source = self.leaf([*front, i], [*front, i])
        weight = self.leaf([o, i], [o, i])
        name = self.name("y")
        more = self.one(("", f" + {self.leaf([o], [o])}[{o}]", f" * {weight}[{o},{i}]"))
        function = self.one(("{}", "tanh({})", f"softmax[{o}]({{}})"))
        self.declared = [line for line in self.declared if not line.startswith(f"{source}[")]
        if self.leaves[source].kind == "parameter":
            self.leaves[source] = Leaf((*front, i), "input")
        self.inputs = [*dict.fromkeys([*self.inputs, source])]
        self.known = [k for k in self.known if k.name != source]
        self.lines.append(
            f"{name}[...,{o}] = {function.format(f'{source}[...,{i}] * {weight}[{o},{i}]{more}')}"
        )
        self.dotted.add(name)

    front: list[str] | None = None
    """The leading axes of the program."""
    dotted: set[str] = field(default_factory=set)
    """Tensors with `...`, which are outputs."""

    def scattered(self) -> None:
        rest = self.some(POOL, 0, 1)
        v, n = self.outside(rest, 2)
        if not self.sizes[v]:
            return
        name = self.name("y")
        base = "0"
        if self.chance(40):
            base, axes = self.reads([v, *rest], {v, *rest})
        else:
            self.must |= {v, *rest}
        self.lines.append(f"{name}[{','.join([v, *rest])}] = {base}")
        for _ in range(self.one((1, 1, 1, 2))):
            places = self.leaf([n], [n], v)
            self.busy = frozenset([v])
            text, axes = self.term([n, *rest], 0, False)
            if missing := {*rest, *([n] if axes and self.chance(85) else [])} - axes:
                text = f"{self.reads([n, *rest], missing)[0]} * ({text})"
            self.busy = frozenset()
            self.must |= {n, *rest}
            self.lines.append(f"{name}[{','.join([f'{places}[{n}]', *rest])}] += {text}")
        self.known.append(_Known(name, (v, *rest), (v, *rest)))

    def recurrence(self) -> None:
        """One or two states, of order one or two, either way; the second may read the first wherever it is."""
        other = self.some({*POOL} - {"t"}, 0, 2)
        back = self.one((1, 1, -1))
        made: list[_Known] = []
        self.must.add("t")
        mutual = self.chance(30)
        names = [self.name("h") for _ in range(self.one((1, 1, 2)))]
        orders = {name: self.some({"t", *other}, 9, 9) for name in names}
        far = dict.fromkeys(names, 1)

        def state(name: str, offset: int, **swapped: str) -> str:
            position = f"t{offset:+d}" if offset else "t"
            return f"{name}[{','.join(position if a == 't' else swapped.get(a, a) for a in orders[name])}]"

        for place, name in enumerate(names):
            terms = [self.one(("0.5 * {}", "0.3 * {}", "{}")).format(state(name, -back))]
            if self.chance(25):
                far[name] = 2
                terms.append(f"0.4 * {state(name, -2 * back)}")
            same = [
                (o, p)
                for o in other
                for p in POOL
                if p not in (*other, "t") and self.sizes[p] == self.sizes[o]
            ]
            if same and self.chance(50):
                o, p = self.one(same)
                weight = self.leaf([o, p], [o, p])
                terms[0] = f"{state(name, -back, **{o: p})} * {weight}[{o},{p}]"
            if self.chance(25) and other:
                gate, _ = self.reads(other)
                terms[0] = f"{terms[0]} * {self.one(('tanh({})', '{}', 'sigmoid({})')).format(gate)}"
            terms.append(self.reads(["t", *other], {"t", *other})[0])
            for earlier in names[:place]:
                offset = self.one((0, -back) if mutual else (0, -1, 1))
                far[earlier] = max(far[earlier], abs(offset))
                terms.append(f"{self.one(('0.5', 'sin(1)'))} * {state(earlier, offset)}")
            for later in names[place + 1 :] if mutual else ():
                terms.append(f"0.2 * {state(later, -back)}")
            if self.chance(30):
                terms.append(self.product(["t", *other], 0, False)[0])
            text = self.one(("tanh({})", "sin({})", "{}", "0.5 * sigmoid({})")).format(" + ".join(terms))
            self.lines.append(f"{state(name, 0)} = {text}")
        for name in names:
            for offset in range(1, far[name] + 1):
                if self.chance(55):
                    value = self.one(("0.5", self.reads(other, other)[0], f"tanh({self.reads(other)[0]})"))
                    position = f"{-offset * back:+d}"
                    entries = ",".join(position if a == "t" else a for a in orders[name])
                    self.lines.append(f"{name}[{entries}] = {value}")
            made.append(
                _Known(name, tuple(orders[name]), tuple(orders[name]), recurs=orders[name].index("t"))
            )
        self.must |= {*other}
        self.known += made

    def block(self) -> None:
        """A block of one line or two, called twice, with other sizes and parameters of its own, or with the same."""
        given = self.some(POOL, 1, 2)
        inner = _Writer(self.draw, own=True, count=self.count, passed=given)
        r = inner.outside(given)[0]
        inner.sizes |= {axis: max(1, size) for axis, size in inner.sizes.items()}
        inner.known.append(_Known("x", tuple(given), tuple(given)))
        name, text = self.name("f"), list[str]()
        result, dims = "x", tuple(given)
        for step in range(self.one((1, 2))):
            text_of, axes = inner.expression([*given, r], 1)
            more = f"{result}[{','.join(dims)}]"
            result, dims = f"z{step}", tuple(self.some(axes | {*dims}, 9, 9))
            text.append(f"{result}[{','.join(dims)}] = {text_of} + {more}")
            inner.known.append(_Known(result, dims, dims))
        body = "\n".join(text)
        free = {axis for axis in POOL if has(body, axis) and axis not in given}
        head = [f"x[{','.join(given)}]: input", *(f"{axis}: {inner.sizes[axis]}" for axis in sorted(free))]
        self.lines.append(
            "\n".join(
                [
                    f"def {name}(x):",
                    *(
                        f"    {line}"
                        for line in [
                            *head,
                            *(d for d in inner.declared if has(body, d.partition("[")[0])),
                            *text,
                        ]
                    ),
                ]
            )
        )
        self.count = inner.count
        for scope in ("one", "two"):
            outer = [self.name("a") for _ in given]
            sizes = dict(inner.sizes)
            for axis, alias in zip(given, outer, strict=True):
                sizes[axis] = self.sizes[alias] = self.draw.randint(1, 3)
            source = self.name("x")
            self.leaves[source] = Leaf(tuple(outer), "input")
            self.declared.append(f"{source}[{','.join(outer)}]: input")
            for leaf_name, leaf in inner.leaves.items():
                if not has(body, leaf_name):
                    continue
                dims_of = tuple(str(_size(dim, sizes)) for dim in leaf.dims)
                self.leaves[f"{scope}{name}.{leaf_name}"] = Leaf(dims_of, leaf.kind, leaf.bound)
            called = self.name("y")
            self.lines.append(f"{called} = {name}({source}, scope='{scope}{name}')")
            self.known.append(_Known(called, tuple(str(_size(dim, sizes)) for dim in dims)))

    # ---- programs

    def program(self) -> Program:
        kinds = [self.equation] * 9 + [
            self.jointly,
            self.recurrence,
            self.recurrence,
            self.scattered,
            self.resized,
        ]
        kinds += [self.ordered, self.windowed, self.block, self.leading]
        for _ in range(self.one((1, 1, 1, 2, 2, 3))):
            self.one(kinds)()
        if not self.lines:
            self.equation()
        written = "\n".join(self.lines)
        leaves = {name: leaf for name, leaf in self.leaves.items() if "." in name or has(written, name)}
        declared = [line for line in self.declared if line.partition("[")[0] in leaves]
        text = "\n".join([*declared, *self.lines])
        made = _made(self.lines)
        around = "\n".join(line for line in text.splitlines() if not line.startswith(" "))
        used = [axis for axis in POOL if has(around, axis)]  # a given size holds in a block that alone has it
        given = {
            axis: self.sizes[axis]
            for axis in used
            if self.mode == "all" or axis in self.must or (self.mode == "some" and self.chance(40))
        }
        if 0 in given.values() or ":0" in text:
            return _Writer(self.draw).program()  # sizes that are given are positive
        parameters = [name for name, leaf in leaves.items() if leaf.kind == "parameter"]
        extra = self.one(
            ("gradients", "gradients", "gradients", "selected", "frozen", "memory_limit", "batch", "batch")
        )
        return Program(
            text,
            tuple(name for name in self.inputs if name in leaves),
            given,
            leaves,
            self.sizes,
            tuple(unread(self.lines)),
            selected=tuple(self.some(made, 1, 2)) if extra == "selected" else (),
            frozen=tuple(self.some(parameters, 1, 3)) if extra == "frozen" else (),
            memory_limit=self.one((600, 2000, 10000)) if extra == "memory_limit" else None,
            gradients=extra == "gradients",
            special=self.chance(4) and not self.whole,
            wrong=self.chance(3),
            seed=self.draw.randrange(2**31),
        )


def _made(lines: Sequence[str]) -> list[str]:
    """The tensors that lines define."""
    equations = [line for line in lines if "=" in line and not line.startswith("def ")]
    return [*dict.fromkeys(line.split("[")[0].split(" ")[0] for line in equations)]


def unread(lines: Sequence[str]) -> list[str]:
    """The tensors that no other reads; of those that read one another, the last."""
    made = _made(lines)
    reads = {
        name: {
            other
            for other in made
            if other != name
            and any(
                has(line.partition("=")[2], other)
                for line in lines
                if line.startswith((f"{name}[", f"{name} "))
            )
        }
        for name in made
    }
    found: list[str] = []
    reached: set[str] = set()
    for name in [*(n for n in made if not any(n in each for each in reads.values())), *reversed(made)]:
        if name not in reached:
            found.append(name)
            todo = [name]
            while todo:
                one = todo.pop()
                todo += reads[one] - reached
                reached |= {one} | reads[one]
    return [name for name in made if name in found]


def _stands(text: str, axis: str) -> bool:
    """Whether an axis is an entry of its own in a text, or a part of a composite."""
    text = text.replace("index(", "index ")
    return any(f"{one}{axis}{two}" in text for one in "[,(" for two in "],)")


def has(text: str, name: str) -> bool:
    """Whether a name is in a text, as a word."""
    at = text.find(name)
    while at >= 0:
        before, after = text[at - 1 : at] if at else "", text[at + len(name) : at + len(name) + 1]
        if not (before.isalnum() or before in ("_", ".")) and not (after.isalnum() or after in ("_",)):
            return True
        at = text.find(name, at + 1)
    return False
