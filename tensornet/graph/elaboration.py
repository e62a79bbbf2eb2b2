"""From a block of text to the parts of a Graph: names get their meaning, sums are written out, sizes are solved."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from types import MappingProxyType
from typing import Any

from ..errors import EquationError, Place, ShapeError, TensornetWarning, near, told_in
from ..language.ellipsis import expand_ellipsis, expand_index
from ..language.equation import Calling, Declaration, Definition, Equation, Statement, einstein, resolve
from ..language.expression import (
    ELLIPSIS,
    Call,
    Contraction,
    Expression,
    Index,
    Ref,
    axes_of_index,
    fresh,
    is_scalar,
    is_told,
    occurring,
    option_axes,
    remade_axes,
    scalar_value,
    show,
    show_index,
    sized_by_name,
    subexpressions,
    transform,
)
from ..language.reading import parse_block, parse_names, read_sizes
from ..language.starts import NAMED, WORDS
from ..language.undeclared import misplaced, slip_of
from ..operations.functions import FUNCTIONS
from ..sizes import are_equal, as_size, size_names, symbol
from .apply import Apply, called_last, scoped
from .inlining import renamed_axes, spoken_sizes
from .leaves import Constant, Leaf
from .matching import Matched, matched
from .reaching import axes_told, cropped, cut_to_window, in_order, not_whole, read_in, reading
from .recurrences import early, late, read_later
from .repeating import Repeated
from .shape import Axis, Dim, Scope, Shorter, dim_size, index_of, result_dims, scope_of
from .unify import Unifier

__all__ = ["Parts", "elaborated", "rebuild", "start_of"]

Names = str | Sequence[str]


Parts = tuple[tuple[Leaf, ...], tuple[Equation | Apply, ...], tuple[str, ...], tuple[tuple[str, Any], ...]]
"""What a graph is made of: leaves, equations and calls, outputs, sizes."""

Make = Callable[..., Any]
"""Makes a graph of its parts."""

OPTIONS = ("inputs", "outputs", "constants", "init")
"""What `tensornet.layer` takes besides sizes, one of which may be a slip of it."""


@told_in("names")
def elaborated(
    equations: str,
    inputs: Names,
    outputs: Names,
    constants: Mapping[str, Any],
    init: Mapping[str, Any],
    sizes: Mapping[str, Any],
    make: Make,
    blocks: Mapping[str, Any] = MappingProxyType({}),
) -> Parts:
    """The parts of the graph that a block of text says; see `tensornet.layer`.

    Args:
        equations, inputs, outputs, constants, init, sizes: those of `tensornet.layer`.
        make: makes a graph of its parts, for the blocks in the text.
        blocks: graphs that the text may call, by name.
    """
    statements = parse_block(equations, blocks)
    block = _Block(statements, inputs, read_sizes(sizes), constants, init, make, blocks)
    try:
        return block.parts(outputs)
    except RecursionError:
        raise EquationError("the equations are nested too deeply", fix="split the line") from None


def rebuild(
    text: str,
    outputs: Names,
    constants: Mapping[str, Any],
    init: Mapping[str, Any],
    make: Make,
    blocks: Mapping[str, Any],
) -> Parts:
    """The parts of the graph that printed as `text`; it may hold lines that no output needs."""
    return elaborated(text, (), outputs, constants, init, {}, make, blocks)


@dataclass
class _Known:
    """What is known of a tensor while the block is read."""

    kind: str
    index: tuple[Index, ...] | None = None
    dims: tuple[Dim, ...] | None = None
    start: tuple[str, float] | Constant | None = None
    place: Place | None = None
    value: Constant | None = None


class _Block:
    """Reads the statements in order; `known` grows, and the unifier learns the sizes."""

    def __init__(
        self,
        statements: Sequence[Statement],
        inputs: Names,
        given: Mapping[str, Any],
        constants: Mapping[str, Any],
        init: Mapping[str, Any],
        make: Make,
        blocks: Mapping[str, Any],
        scope: str = "",
    ) -> None:
        self.scope = scope
        declarations = [s for s in statements if isinstance(s, Declaration)]
        self.lines = [s for s in statements if isinstance(s, Equation)]
        self.body = [s for s in statements if isinstance(s, Equation | Calling)]
        self.make, self.blocks = make, dict(blocks)
        self.definitions = {s.name: s for s in statements if isinstance(s, Definition)}
        self.calls: dict[int, Apply | Matched] = {}  # by how many equations and calls are before
        self.told: set[str] = set()
        self.values = constants, init
        self.strict = set(
            given
        )  # sizes that hold wherever the axis is named; `i: 4` in the text only names one
        given = dict(given)
        for each in declarations:
            if each.kind == "size":
                size = as_size(each.size, each.name)
                if given.get(each.name, size) != size:
                    message = f"the size of '{each.name}' is given twice: {given[each.name]} and {size}"
                    raise ShapeError(message, each.place, "give it once")
                given[each.name] = size
        self.given = given
        self.unifier = Unifier(
            {name: size for name, size in given.items() if isinstance(size, int)},
            {name: size for name, size in given.items() if not isinstance(size, int)},
        )
        self.unifier.check_circles()
        self.init = {name: start_of(name, value) for name, value in init.items()}
        self.known: dict[str, _Known] = {}
        self.declared_outputs = [each.name for each in declarations if each.kind == "output"]
        for each in [*parse_names(inputs, "input"), *declarations]:
            if each.kind in ("input", "parameter", "constant"):
                self._declare(each)
        of_blocks = set(_leaves_of(s for s in statements if isinstance(s, Calling | Definition)))
        for name, value in constants.items():
            if name not in self.known and name in of_blocks:
                continue
            entry = self.known.setdefault(name, _Known("constant"))
            entry.kind, entry.value = "constant", Constant.of(value, f"the constant '{name}'")
        self.guessed: set[str] = set()  # leaves that have the axes of the line that reads them first
        self.axes = self._axis_names()
        self.equations: list[Equation] = []
        self.scopes: list[Scope] = []

    # ---- names

    def _declare(self, each: Declaration) -> None:
        previous = self.known.get(each.name)
        if previous is not None and (previous.kind != each.kind or (previous.dims and each.dims)):
            raise EquationError(f"'{each.name}' is declared twice", each.place, "declare it once")
        entry = previous or _Known(each.kind, place=each.place)
        if each.dims is not None:
            entry.dims = tuple(
                tuple(Axis(axis, symbol(axis) if size is None else size) for axis, size in dim)
                for dim in each.dims
            )
            entry.index = index_of(entry.dims)
        if each.options:
            entry.start = each.options[0]
        self.known[each.name] = entry

    def _axis_names(self) -> set[str]:
        names = set(self.given)
        for entry in self.known.values():
            for dim in entry.dims or ():
                names.update(axis.name for axis in dim)
        for line in self.lines:
            names.update(axes_of_index(line.left))
            names.update(occurring(line.right))
        if ELLIPSIS in names and "lead" in names:
            raise EquationError("'lead' is the size of '...'", fix="give the axis 'lead' another name")
        return names

    def parts(self, outputs: Names) -> Parts:
        """Reads every line, then puts together what was found."""
        definitions = {line.name: line for line in self.lines}
        calls = [line for line in self.body if isinstance(line, Calling)]
        later = {name for line in calls for name in line.results}
        ahead = definitions | {each.name: each for line in calls for each in line.lefts}
        for name in self.known:
            if name in definitions:
                raise EquationError(
                    f"'{name}' is declared as {self.known[name].kind}, and defined here",
                    definitions[name].place,
                    f"take '{name}' out of the declarations, or define another name",
                )
        waiting = set(read_later(self.lines, self.known))
        for line in self.body:
            if isinstance(line, Calling) and line.along:
                self._call_along(line)
            elif isinstance(line, Calling):
                self.calls[len(self.equations) + len(self.calls)] = self._call(line)
            else:
                for name in {ref.name for ref in late(line)} & waiting & ahead.keys():
                    self._foresee(ahead[name])
                self._read(line, {*definitions, *later})
        return self._finish(outputs)

    def _foresee(self, line: Equation) -> None:
        """Makes known what a recurrence reads before the line that defines it: its axes, as long as their names say."""
        if line.name not in self.known:
            dims = result_dims(line, Scope())
            self.known[line.name] = _Known("foreseen", tuple(line.left), dims)

    # ---- blocks

    @told_in("blocks")
    def _call(self, line: Calling) -> Apply | Matched:
        """A call of a block: its leaves and its results are known from here on."""
        block = self._called(line)
        for name in line.operands:
            self._dims_of(name, line)
        call = self._fitted(block, line)
        self.told.update(self._leaves_known(call, line))
        returned = call.returned(self.given) if isinstance(call, Apply) else call.returned()
        for name, (_, dims) in zip(line.results, returned, strict=True):
            if name in self.known:
                raise EquationError(f"'{name}' is defined twice", line.place, "give each result its own name")
            self.known[name] = _Known("result", index_of(dims), dims)
        return call

    def _called(self, line: Calling) -> Any:
        """The block that a line calls, on as many tensors as it takes."""
        block = self.blocks.get(line.block) or self._defined(line)
        if len(line.operands) != len(block.inputs) or len(line.results) != len(block.outputs):
            counts = f"{len(block.inputs)} tensor(s) and gives {len(block.outputs)}"
            raise EquationError(f"'{line.block}' takes {counts}", line.place, "call it so")
        return block

    def _leaves_known(self, call: Apply | Matched, line: Calling) -> list[str]:
        """Makes the leaves of a called block known, those that are not yet; gives their names."""
        found = [leaf for leaf in call.leaves() if leaf.name not in self.known]
        for leaf in found:
            self.known[leaf.name] = _Known(
                leaf.kind, index_of(leaf.dims), leaf.dims, leaf.start, line.place, leaf.value
            )
            self.init.pop(leaf.name, None)
        return [leaf.name for leaf in found]

    @told_in("blocks")
    def _call_along(self, line: Calling) -> None:
        """A call of a block at each position of an axis: its equations, for all positions."""
        assert line.along is not None
        block, axis = self._called(line).flat, line.along.axis
        for name, index in zip(line.operands, line.along.read, strict=True):
            self._meet(Ref(name, index, line.place))
        operands = [
            (name, *self._at_one(name, index, axis, line))
            for name, index in zip(line.operands, line.along.read, strict=True)
        ]
        for each in line.lefts:
            if self.known.get(each.name, _Known("foreseen")).kind != "foreseen":
                fix = "give each result its own name"
                raise EquationError(f"'{each.name}' is defined twice", line.place, fix)
            self._foresee(each)
        self._check_ranks(block, line)
        results = [self._at_one(each.name, each.left, axis, line)[0] for each in line.lefts]
        given = [(name, dims) for name, dims, _ in operands]
        call = matched(block, given, line.scope, self.unifier, self._open_names(), line.place, results)
        if call.lead is not None:
            fix = "name the axes of what it takes"
            raise EquationError(f"'{line.block}' reads '...', and is called along an axis", line.place, fix)
        self._leaves_known(call, line)
        names = dict(zip((leaf.name for leaf in block.inputs), line.operands, strict=True))
        names |= {leaf.name: scoped(line.scope, leaf.name) for leaf in block.leaves if leaf.kind != "input"}
        varying = {
            leaf.name: at for leaf, (_, _, at) in zip(block.inputs, operands, strict=True) if at is not None
        }
        own = self._sized_alone(block, call)
        taken = {*self.known, *(name for each in self.body for name in _defined_by(each))}
        repeated = Repeated(axis, names, varying, taken)
        body = [renamed_axes(each, own) for each in block.own]
        for equation in repeated.equations(line, body, block.outputs):
            self._keep(equation, self._scope(equation.right))

    def _check_ranks(self, block: Any, line: Calling) -> None:
        """Refuses results that have other axes than the block's and the one that it is called along."""
        for output, each in zip(block.outputs, line.lefts, strict=True):
            own = [len(dim) for dim in block.named[output]]
            said = [1 if isinstance(entry, str) else len(entry) for entry in each.left]
            at = each.left.index(line.along.axis) if line.along else 0
            if said[:at] + said[at + 1 :] != own:
                message = f"'{each.name}' has other axes than what '{line.block}' gives"
                fix = (
                    f"it gives {output}[{show_index(index_of(block.named[output]))}], and '{{}}' is one more"
                )
                raise EquationError(message, line.place, fix.format(each.left[at]))

    def _meet(self, ref: Ref) -> None:
        """Gives a leaf that brackets show for the first time its axes."""
        entry = self.known.setdefault(ref.name, _Known("parameter", place=ref.place))
        if entry.dims is None and ref.index:
            entry.dims = tuple(self._new_dim(ref, at, each, Scope()) for at, each in enumerate(ref.index))
            entry.index = index_of(entry.dims)
            self.guessed.add(ref.name)

    def _at_one(
        self, name: str, index: tuple[Index, ...], axis: str, line: Calling
    ) -> tuple[tuple[Dim, ...], int | None]:
        """The dimensions of a tensor at one position of an axis, and which of them it has that in, if any."""
        dims = self.unifier.dims(self._dims_of(name, line))
        index = index or self.known[name].index or ()
        if len(index) != len(dims):
            message = f"'{name}' has {len(dims)} dimension(s), and is read with {len(index)}"
            raise EquationError(message, line.place, "name each of its axes")
        if axis not in index:
            return dims, None
        at = index.index(axis)
        return (*dims[:at], *dims[at + 1 :]), at

    def _dims_of(self, name: str, line: Calling) -> tuple[Dim, ...]:
        """The dimensions of a tensor that a block is called on."""
        dims = self.known.get(name, _Known("")).dims
        if dims is None:
            fix = f"say its axes above, as in {name}[b,i]: input, or define it there"
            raise EquationError(f"the axes of '{name}' are not known", line.place, fix)
        return dims

    def _sized_alone(self, block: Any, call: Matched) -> dict[str, str]:
        """Other names for the axes of a block that no tensor sizes, and for sizes that it speaks of."""
        names = dict[str, str]()
        alone = {name for each in block.own for name in sized_by_name(each.right)}
        for name in sorted(alone.union(*map(spoken_sizes, block.own))):
            size = call.private.moved(symbol(name))
            if size != symbol(name):
                names[name] = fresh(name, self.axes)
                self.axes.add(names[name])
                self.unifier.agree(symbol(names[name]), size, name, None)
        return names

    def _fitted(self, block: Any, line: Calling) -> Apply | Matched:
        """The call, of the block as it stands where that reads tensors of just these sizes, else in sizes that do."""
        known = {name: self.known[name].dims or () for name in line.operands}
        operands = [(name, self.unifier.dims(known[name])) for name in line.operands]
        if all(
            len(leaf.dims) == len(dims)
            and all(
                are_equal(dim_size(ours), dim_size(theirs), self.unifier.bound)
                for ours, theirs in zip(leaf.dims, dims, strict=True)
            )
            for leaf, (_, dims) in zip(block.inputs, operands, strict=True)
        ):
            return Apply(block, line.operands, line.results, line.scope)
        call = matched(block, operands, line.scope, self.unifier, self._open_names(), line.place)
        call.results = line.results
        return call

    def _open_names(self) -> set[str]:
        """The names in sizes of tensors that have no value."""
        dims = (dim for entry in self.known.values() for dim in entry.dims or ())
        found = {name for dim in dims for axis in dim for name in size_names(self.unifier.resolve(axis.size))}
        return found - set(self.unifier.bound)

    def _defined(self, line: Calling) -> Any:
        """The block that the text defines, with the values that are given for its leaves under this scope."""
        definition, prefix = self.definitions[line.block], f"{line.scope}." if line.scope else ""
        inside = tuple(_leaves_of(definition.statements))
        constants, init = (
            {name: part[f"{prefix}{name}"] for name in inside if f"{prefix}{name}" in part}
            for part in self.values
        )
        scope = scoped(self.scope, line.scope)
        inner = _Block(definition.statements, definition.inputs, {}, constants, init, self.make, {}, scope)
        made = self.make(*inner.parts(()))
        if not constants and not init:
            self.blocks[line.block] = made
        return made

    def _read(self, line: Equation, definitions: set[str]) -> None:
        if self.known.get(line.name, _Known("")).kind == "result":
            raise EquationError(
                f"'{line.name}' is defined twice", line.place, "give each result its own name"
            )
        self._check_order(line, definitions)
        line = self._resolve(line)
        line = self._expand_ellipsis(line)
        line = replace(line, right=self._declare_extents(line.right))
        self._check_undeclared(line)
        self._declare_leaves(line)
        line = einstein(line, self.guessed)
        _check_numbers(line.right)
        self._check_positions(line)
        line = self._whole(line)
        scope = self._scope(line.right)
        self._check_given(line)
        self._keep(line, scope)

    def _keep(self, line: Equation, scope: Scope) -> None:
        """Takes in an equation, and what it defines."""
        self.equations.append(line)
        self.scopes.append(scope)
        dims = result_dims(line, scope)
        foreseen = self.known.get(line.name)
        if foreseen is not None and foreseen.dims is not None:
            for ours, theirs in zip(dims, foreseen.dims, strict=True):
                for one, other in zip(ours, theirs, strict=True):
                    self.unifier.agree(one.size, other.size, one.name, None)
        self.known[line.name] = _Known("result", tuple(line.left), dims)

    def _check_order(self, line: Equation, definitions: set[str]) -> None:
        for ref in early(line):
            if ref.name in definitions and self.known.get(ref.name, _Known("foreseen")).kind == "foreseen":
                raise EquationError(
                    f"'{ref.name}' is used before it is defined",
                    ref.place,
                    "order the lines so that it comes first",
                )

    @told_in("axes")
    def _check_positions(self, line: Equation) -> None:
        for ref in line.references:
            for entry in ref.index:
                if is_told(entry):
                    self._check_told(ref, entry)

    def _check_told(self, ref: Ref, entry: Expression) -> None:
        """Refuses positions that no integers tell."""
        found = not_whole(entry)
        if found is not None:
            raise EquationError(
                f"{show(found)} is no integer, and indexes '{ref.name}'",
                found.place or ref.place,
                "use + - * // % and other functions that keep integers",
            )
        for each in read_in(entry):
            if self.known[each.name].kind == "parameter":
                raise EquationError(
                    f"'{each.name}' indexes '{ref.name}' and is a parameter, which holds no positions",
                    each.place,
                    f"list '{each.name}' in inputs=, or its positions in constants=",
                )

    def _resolve(self, line: Equation) -> Equation:
        indices = {name: entry.index for name, entry in self.known.items() if entry.index is not None}
        indices |= self._read_here(line, indices)
        for ref in line.references:
            entry = self.known.get(ref.name)
            if entry is not None and entry.index is None and not ref.index and entry.kind == "input":
                if ref.name in indices or ref.name in self.axes:
                    continue
                fix = f'write {ref.name}[b,i], or list it as inputs="{ref.name}[b,i]", one number as "{ref.name}[()]"'
                raise EquationError(f"the axes of the input '{ref.name}' are not known yet", ref.place, fix)
        right = cropped(line.right, {name: entry.dims for name, entry in self.known.items()})
        kept = axes_of_index(line.left)
        resolved = resolve(right, indices, lambda name: name in self.axes, kept)
        return replace(line, right=in_order(resolved, kept))

    def _read_here(self, line: Equation, known: Collection[str]) -> dict[str, tuple[Index, ...]]:
        """How a line is the first to read tensors that bare names in it stand for too."""
        found: dict[str, tuple[Index, ...]] = {}
        bare = {ref.name: ref for ref in line.references if not ref.index}
        for ref in line.references:
            if ref.name in known or ref.name in self.axes or not ref.index or ref.name not in bare:
                continue
            first = found.setdefault(ref.name, ref.index)
            if first != ref.index or not all(isinstance(entry, str | tuple) for entry in ref.index):
                shown = " and ".join(
                    dict.fromkeys(f"{ref.name}[{show_index(each)}]" for each in (first, ref.index))
                )
                message = f"which axes the bare name '{ref.name}' stands for is open: the line reads {shown}"
                raise EquationError(message, bare[ref.name].place, f"write {ref.name}[…] with the axes meant")
        return found

    # ---- leading axes

    @told_in("axes")
    def _expand_ellipsis(self, line: Equation) -> Equation:
        """Writes `...` out wherever a tensor's leading axes are known by name."""
        lead: tuple[str, ...] | None = None
        for ref in line.references:
            entry = self.known.get(ref.name)
            if ELLIPSIS not in ref.index or entry is None or entry.dims is None:
                continue
            if any(axis.name == ELLIPSIS for dim in entry.dims for axis in dim):
                continue
            count = len(entry.dims) - (len(ref.index) - 1)
            if count < 0 or (lead is not None and len(lead) != count):
                expected = "none" if count < 0 else f"{len(lead or ())}"
                raise ShapeError(
                    f"'...' stands for {max(count, 0)} axes of '{ref.name}', and for {expected} elsewhere in the line",
                    ref.place,
                    "write the axes out",
                )
            if lead is None:
                lead = self._lead_names(line, entry.dims, ref.index.index(ELLIPSIS), count)
        if lead is None:
            return line
        return Equation(
            line.name, expand_index(line.left, lead), expand_ellipsis(line.right, lead), line.place
        )

    def _lead_names(self, line: Equation, dims: tuple[Dim, ...], start: int, count: int) -> tuple[str, ...]:
        taken = occurring(line.right) | set(axes_of_index(line.left))
        names: list[str] = []
        for dim in dims[start : start + count]:
            names.append(fresh("_".join(axis.name for axis in dim), taken))
            taken.add(names[-1])
        return tuple(names)

    # ---- leaves

    def _declare_extents(self, expression: Expression) -> Expression:
        """`concat[n](cls[1,c], …)`: the 1 is how long the parameter `cls` is along n."""
        if isinstance(expression, Call) and FUNCTIONS[expression.function].axes == "joined":
            arguments = tuple(self._with_extent(part, expression.axes[0]) for part in expression.arguments)
            expression = replace(expression, arguments=arguments)
        return transform(expression, self._declare_extents)

    def _with_extent(self, part: Expression, axis: str) -> Expression:
        if not isinstance(part, Ref) or part.name in self.known or axis in axes_of_index(part.index):
            return part
        extents = [entry for entry in part.index if isinstance(entry, int) and entry > 0]
        if len(extents) != 1:
            return part
        index = tuple(axis if isinstance(entry, int) and entry > 0 else entry for entry in part.index)
        dims: list[Dim] = []
        for position, entry in enumerate(index):
            dim = self._new_dim(part, position, entry, Scope())
            dims.append((Axis(axis, extents[0]),) if entry == axis else dim)
        self.known[part.name] = _Known("parameter", index, tuple(dims), place=part.place)
        self.guessed.add(part.name)
        return replace(part, index=index)

    def _declare_leaves(self, line: Equation) -> None:
        """Gives every tensor met for the first time the dimensions this line reads it with."""
        new = [ref for ref in line.references if self.known.get(ref.name, _Known("")).dims is None]
        if not new:
            return
        for ref, scope in self._placed(line.right, self._scope(line.right)):
            if self.known.get(ref.name, _Known("")).dims is not None:
                continue
            entry = self.known.setdefault(ref.name, _Known("parameter", place=ref.place))
            if entry.dims is not None:
                continue
            entry.dims = tuple(
                self._new_dim(ref, position, each, scope) for position, each in enumerate(ref.index)
            )
            if ELLIPSIS in ref.index and entry.kind != "input":
                raise EquationError(
                    f"the {entry.kind} '{ref.name}' needs axes of its own, not '...'",
                    ref.place,
                    "name its axes",
                )
            entry.index = index_of(entry.dims)
            self.guessed.add(ref.name)

    @told_in("names")
    def _check_undeclared(self, line: Equation) -> None:
        """Refuses a number to be trained that can only be a slip, and says so of what may be one."""
        names = {ref.name for ref in line.references if not ref.index} - self.known.keys() - self.init.keys()
        if not names:
            return
        for ref, why in misplaced(line.right, names):
            others = [*self.axes, *(name for name, entry in self.known.items() if entry.index != ())]
            raise EquationError(
                f"'{ref.name}' is no axis, size or tensor here, and hardly a number to be trained: {why}",
                ref.place,
                f"{near(ref.name, others)}give {ref.name}=… if it is a size, list it in inputs= if it is data,"
                f" or declare it, {ref.name}[()]: parameter",
            )
        known = [*self.axes, *(name for name, entry in self.known.items() if entry.index)]
        for ref in line.references:
            if ref.name in names and (other := slip_of(ref.name, known)):
                message = f"'{ref.name}' is read as a number to be trained: did you mean '{other}'?"
                warnings.warn(
                    TensornetWarning(message, ref.place, f"else declare it, {ref.name}[()]: parameter"),
                    stacklevel=2,
                )

    def _placed(self, expression: Expression, scope: Scope) -> Iterator[tuple[Ref, Scope]]:
        """Every tensor read, with the sizes around it: inside a function that gives an axis another
        size (concat, pad) or hides it (mean), that axis is the argument's own."""
        if isinstance(expression, Ref):
            yield expression, scope
        own: set[str] = set()
        if isinstance(expression, Call):
            row = FUNCTIONS[expression.function]
            own = {*option_axes(expression), *row.leaves_out(expression.axes)}
            own = set(expression.axes) if row.axes == "joined" else own
        elif isinstance(expression, Contraction):
            own = set(expression.summed)
        parts: list[Expression] = []
        transform(expression, lambda part: parts.append(part) or part)  # type: ignore[func-returns-value]
        joined = isinstance(expression, Call) and FUNCTIONS[expression.function].axes == "joined"
        for number, part in enumerate(parts, 1):
            inner = scope
            if own:
                found = dict(self._scope(part).sizes)
                if joined and number > 1:  # each operand is as long as it likes
                    for axis in own:
                        found.setdefault(axis, symbol(fresh(f"{axis}_{number}", self.axes)))
                sizes = {n: s for n, s in scope.sizes.items() if n not in own}
                inner = Scope(sizes | {n: found[n] for n in own if n in found}, scope.assumed)
            yield from self._placed(part, inner)

    def _new_dim(self, ref: Ref, position: int, entry: Index, scope: Scope) -> Dim:
        match entry:
            case str():
                return (Axis(entry, scope.sizes.get(entry, symbol(entry))),)
            case tuple():
                return tuple(Axis(name, scope.sizes.get(name, symbol(name))) for name in entry)
        name = fresh(f"{ref.name.replace('.', '_')}{position}", set())
        return (Axis(name, symbol(name)),)

    # ---- sizes

    @told_in("sizes")
    def _scope(self, expression: Expression) -> Scope:
        dims = {name: entry.dims for name, entry in self.known.items() if entry.dims is not None}
        return scope_of(expression, dims, self.unifier.agree, self.unifier.bound)

    @told_in("sizes")
    def _whole(self, line: Equation) -> Equation:
        """The line, which reads windows from end to end: of what is cut in a line of its own, if they are shorter."""
        dims = {name: entry.dims for name, entry in self.known.items() if entry.dims is not None}
        shorter: list[Shorter] = []
        told = frozenset(self.strict - axes_told(line.right))
        scope_of(line.right, dims, self.unifier.agree, self.unifier.bound, told, shorter)
        if not shorter:
            return line
        first, read = shorter[0], {ref.name for each in self.lines for ref in each.references}
        name = fresh(f"{first.ref.name.replace('.', '_')}_cut", {*self.known, *self.axes, *read})
        cut, whole = cut_to_window(first, dims[first.ref.name] or (), name)
        self._keep(cut, self._scope(cut.right))
        return self._whole(replace(line, right=reading(line.right, first.ref, whole)))

    @told_in("sizes")
    def _check_given(self, line: Equation) -> None:
        """A size the user gave holds wherever the axis is named, until concat or pad makes it anew."""
        remade = {axis for each in [*self.equations, line] for axis in _remade(each.right)}
        for ref in line.references:
            for entry, dim in zip(ref.index, self.known[ref.name].dims or (), strict=True):
                if isinstance(entry, str) and entry in self.strict and entry not in remade:
                    self.unifier.agree(symbol(entry), dim_size(dim), entry, ref)

    def _finish(self, outputs: Names) -> Parts:
        for equation in self.equations:  # again: a later line may have solved what an earlier one left open
            self._scope(equation.right)
        values = tuple(sorted(self.unifier.bound.items()))
        applied = {
            number: call if isinstance(call, Apply) else call.applied(self.unifier, values)
            for number, call in self.calls.items()
        }
        calls = tuple(applied.values())
        for name, entry in self.known.items():
            if entry.kind == "parameter":
                entry.start = self.init.pop(name, entry.start)
            value = entry.start if isinstance(entry.start, Constant) else entry.value
            if value is not None and entry.dims is not None:
                self._check_value(name, entry.kind, self.unifier.dims(entry.dims), value)
        leaves = [self._leaf(name, entry) for name, entry in self.known.items() if entry.kind != "result"]
        chosen = _named_once(parse_names(outputs, "output")) or tuple(self.declared_outputs)
        if not chosen and self.body:
            last = self.body[-1]
            chosen = last.results if isinstance(last, Calling) else (last.name,)
        equations = tuple(
            self.unifier.equation(equation, scope.sizes)
            for equation, scope in zip(self.equations, self.scopes, strict=True)
        )
        self._check_unused(leaves, calls)
        by_name = {name for equation in equations for name in sized_by_name(equation.right)}
        names = self._sizes_in(equations, leaves) | {name for call in calls for name in call.graph.bound}
        waiting = iter(equations)
        count = len(applied) + len(equations)
        body = tuple(applied[n] if n in applied else next(waiting) for n in range(count))
        own = [leaf for leaf in leaves if leaf.name not in self.told]
        return called_last(own, calls), body, chosen, self.unifier.sizes(names, by_name)

    def _leaf(self, name: str, entry: _Known) -> Leaf:
        if entry.dims is None:
            fix = {
                "input": f'read it in an equation, or give its axes: inputs="{name}[b,i]"',
                "parameter": f"read it in an equation, or take the line out; a number is {name}[()]: parameter",
                "constant": "read it in an equation, or take it out of constants=",
            }[entry.kind]
            raise EquationError(f"the {entry.kind} '{name}' is never used", entry.place, fix)
        if entry.start == ("array", 0.0):
            fix = f'pass init={{"{name}": array}}'
            raise EquationError(f"the array that '{name}' starts at is not given", entry.place, fix)
        return Leaf(name, entry.kind, self.unifier.dims(entry.dims), entry.start, entry.value)

    @told_in("sizes")
    def _check_value(self, name: str, kind: str, dims: tuple[Dim, ...], value: Constant) -> None:
        if len(dims) != len(value.shape):
            raise ShapeError(
                f"the {kind} '{name}' has {len(value.shape)} dimension(s), and is read with {len(dims)}"
            )
        for dim, size in zip(dims, value.shape, strict=True):
            self.unifier.agree(dim_size(dim), as_size(size, name), dim[0].name, Ref(name, index_of(dims)))

    def _sizes_in(self, equations: tuple[Equation, ...], leaves: list[Leaf]) -> set[str]:
        names: set[str] = set()
        for leaf in leaves:
            for dim in leaf.dims:
                for axis in dim:
                    names.update(size.name for size in getattr(axis.size, "free_symbols", ()))
        for equation in equations:
            for part in equation.parts:
                if isinstance(part, Call):
                    names.update(part.axes)
                names.update(occurring(part) if not isinstance(part, Ref) else ())
        for name in list(names):
            resolved = self.unifier.resolve(symbol(name))
            names.update(size.name for size in getattr(resolved, "free_symbols", ()))
        return names

    def _check_unused(self, leaves: list[Leaf], calls: tuple[Apply, ...]) -> None:
        for name in self.init:
            raise EquationError(
                f"init names '{name}', which is no parameter", fix=_listed(leaves, "parameter", name)
            )
        mentioned = self._mentioned(calls)
        for name in self.given:
            if self.given[name] == symbol(name):  # a word for a size of whoever calls the layer
                continue
            if name not in mentioned:
                raise ShapeError(
                    f"a size is given for '{name}', which is no axis here",
                    fix=self._axes_told(name, mentioned),
                )
        for leaf in leaves:
            if leaf.kind == "constant" and leaf.value is None:
                name = scoped(self.scope, leaf.name)
                raise EquationError(
                    f"the constant '{name}' has no value", fix=f'pass constants={{"{name}": array}}'
                )

    def _axes_told(self, wrong: str, mentioned: set[str]) -> str:
        """What to give instead of a size of no axis; a dimension that is only indexed has no axis yet."""
        axes = sorted(name for name in self.axes & mentioned if name != ELLIPSIS)
        told = near(wrong, [*axes, *OPTIONS]) + (
            f"the axes are {', '.join(axes)}" if axes else "leave it out: there are no axes"
        )
        for tensor, entry in self.known.items():
            index = index_of(entry.dims or ())
            made = [each for each in index if isinstance(each, str) and each not in self.axes]
            if entry.kind == "parameter" and made:
                named = show_index(tuple(wrong if each == made[0] else each for each in index))
                return f"{told}; to size what '{tensor}' is indexed by, add the line {tensor}[{named}]: parameter"
        return told

    def _mentioned(self, calls: tuple[Apply, ...]) -> set[str]:
        """The names that lines and declarations speak of, as axes or as sizes."""
        found: set[str] = set()
        for line in self.lines:
            bare = (part for part in line.parts if isinstance(part, Ref) and not part.index)
            found.update(axes_of_index(line.left), occurring(line.right), (part.name for part in bare))
        for entry in self.known.values():
            for axis in (axis for dim in entry.dims or () for axis in dim):
                found.update((axis.name,), size_names(axis.size))
        for call in calls:
            found.update(call.graph.bound, call.graph.open_sizes)
        for size in self.given.values():
            found.update(size_names(size))
        return found


def _leaves_of(statements: Iterable[Statement]) -> Iterator[str]:
    """The names in a text that may be leaves: declared, or read without being defined; those of blocks scoped."""
    statements = tuple(statements)
    made = {name for s in statements for name in _defined_by(s)}
    blocks = {s.name: s for s in statements if isinstance(s, Definition)}
    for statement in statements:
        match statement:
            case Declaration(name):
                yield name
            case Equation():
                yield from (ref.name for ref in statement.references if ref.name not in made)
            case Calling(block=block, scope=scope) if block in blocks:
                yield from (scoped(scope, name) for name in _leaves_of(blocks[block].statements))


def _defined_by(statement: Statement) -> tuple[str, ...]:
    """The tensors that a line defines."""
    match statement:
        case Equation(name):
            return (name,)
        case Calling(results):
            return results
    return ()


def _remade(expression: Expression) -> Iterator[str]:
    """The axes that functions in the expression give a new size."""
    for part in subexpressions(expression):
        if isinstance(part, Call):
            yield from remade_axes(part)


def _check_numbers(expression: Expression) -> Expression:
    """Refuses a number that nobody can compute, such as 10**400 or 1/0, where it is written."""
    if is_scalar(expression):
        scalar_value(expression)
    else:
        transform(expression, _check_numbers)
    return expression


def _listed(leaves: list[Leaf], kind: str, wrong: str) -> str:
    names = [leaf.name for leaf in leaves if leaf.kind == kind]
    return f"{near(wrong, names)}the {kind}s are {', '.join(names) or 'none'}"


@told_in("starts")
def start_of(name: str, value: Any) -> tuple[str, float] | Constant:
    """How `init=` lets a parameter start: a deviation, a word, or the array itself."""
    if isinstance(value, str) and value in NAMED:
        return NAMED[value]
    if hasattr(value, "__array__") and not isinstance(value, Real):
        return Constant.of(value, f"init of '{name}'")
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
        meant = near(value, NAMED) if isinstance(value, str) else ""
        fix = f"{meant}give a standard deviation, an array, or one of {WORDS}"
        raise EquationError(f"init of '{name}' is {value!r}", fix=fix)
    return "std", float(value)


def _named_once(outputs: Sequence[Declaration]) -> tuple[str, ...]:
    """The names of the outputs, which come as their equations say."""
    names = [each.name for each in outputs]
    for each in outputs:
        if each.dims is not None:
            fix = f"write outputs='{each.name}'; its axes are those of its equation"
            raise EquationError(f"the output '{each.name}' is named with axes", each.place, fix)
        if names.count(each.name) > 1:
            raise EquationError(f"the output '{each.name}' is named twice", each.place, "name it once")
    return tuple(names)
