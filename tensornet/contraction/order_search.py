"""Contraction order search and layout assignment: trees of pairs, orders in memory, and pre-multiplied weights.

`fastest` is the entry. With few operands every tree is considered. With more, opt_einsum's greedy search, its dynamic
programming and a sweep along the operands each propose a tree of pairs. The time model, which includes layouts, chooses
the fastest of them.

`Search` assigns layouts: the order in memory of each intermediate, by dynamic programming over sets of operands and the
layouts of each, along one tree of pairs or along all trees.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import opt_einsum
from opt_einsum.paths import greedy

from ..planning.constant_folding import is_worth_keeping
from .pairs import Choose, Layout, Order, Pair, Problem, Strategy, ordered

FORMS, LARGE = (8, 5), 7
"""The number of layouts kept for each intermediate: `FORMS[0]` in products of fewer than `LARGE` tensors, else
`FORMS[1]`. With 5 everywhere, two of 1,000 random products of 3 to 9 tensors take more than 1.01 times as long as with
16, the worst 1.05 times. Attention over the modes of a tensor takes 1.03 times as long. With 4, one of 300 takes 1.25
times as long."""

BEFOREHAND = 1e-4
"""The weight of a second spent once, beforehand, relative to a second spent at each call."""

READERS = 3
"""The number of waiting operands that the layout of an elementwise product is fitted to."""


Tree: TypeAlias = "tuple[tuple[int, int], ...]"
"""The pairs of tensors to contract, numbered as in `Pair`."""


@dataclass(frozen=True)
class _Made:
    """An intermediate during the search: its two parts, the strategy, and the operands in it."""

    first: _Made | int
    second: _Made | int
    way: Strategy
    subset: int


_Layouts: TypeAlias = dict[Layout, tuple[float, "_Made | int"]]
"""For every layout that an intermediate may have, called its form, the fastest way to compute it, with the seconds."""


class Search:
    """Dynamic programming over the forms of the intermediates of one contraction.

    A set of operands is a number, with a bit for each operand.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.everything = (1 << len(problem.layouts)) - 1
        self.forms = FORMS[len(problem.layouts) >= LARGE]
        self.axes, self.pricing = [frozenset(layout) for layout in problem.layouts], problem.pricing
        self.holders = dict.fromkeys(itertools.chain(*problem.layouts), 0)
        """For each axis, the set of operands that have it."""
        for number, layout in enumerate(problem.layouts):
            for axis in layout:
                self.holders[axis] |= 1 << number
        self.invariant = sum(1 << number for number in problem.invariant)
        if self.invariant == self.everything:
            self.invariant = 0
        """The set of operands whose products are computed once, before the first call."""
        self.axes_of, self._floor = functools.cache(self._axes_of), functools.cache(self._bounds)

    def _operands(self) -> dict[int, _Layouts]:
        return {1 << number: {layout: (0.0, number)} for number, layout in enumerate(self.problem.layouts)}

    def combined(
        self, subset: int, halves: Iterable[tuple[int, int]], known: Mapping[int, _Layouts], bound: float
    ) -> _Layouts:
        """The forms worth keeping of the intermediate of some operands, if they take at most `bound` seconds.

        Pairs of halves, each in one of its layouts, are tried by increasing lower bound. The search ends when no
        remaining pair can give one of the layouts that are kept.

        Args:
            subset: the operands.
            halves: the ways to divide them in two, each half with its forms in `known`.
            known: the forms of sets of operands.
            bound: the limit in seconds.
        """
        problem, found, kept = self.problem, dict[Layout, tuple[float, Any]](), self.axes_of(subset)
        weight, readers = self.weight(subset), self._readers(subset, kept)
        wanted, enough = (None, self.forms) if subset != self.everything else (problem.wanted, 1)
        for lowest, before, kernel, (a, made_a), (b, made_b) in self._pairs(halves, known):
            if lowest > bound:
                break
            changed, limits = False, (kernel, (bound - before) / weight)
            for form, (own, fields) in self.pricing.priced(a, b, kept, wanted, readers, limits).items():
                seconds = before + weight * own
                if seconds < found[form][0] if form in found else seconds <= bound:
                    found[form] = (seconds, (made_a, made_b, (*fields, own)))
                    changed = True
            if changed and len(found) >= enough:
                bound = sorted(seconds for seconds, _ in found.values())[enough - 1]
        ranked = sorted(found.items(), key=lambda each: each[1][0])
        return {
            form: (seconds, self._made(one, other, Strategy(*fields), subset))
            for form, (seconds, (one, other, fields)) in ranked[: self.forms]
        }

    def _pairs(self, halves: Iterable[tuple[int, int]], known: Mapping[int, _Layouts]) -> list[Any]:
        """The pairs of forms of two halves by increasing lower bound: that of both and the pair, the time of both, that
        of the kernel, and the forms."""
        pairs = [
            (time_a + time_b + least, time_a + time_b, kernel, (a, made_a), (b, made_b))
            for one, other in halves
            for least, kernel in [self._floor(one, other)]
            for offered in [self._offered(other, one, known)]
            for a, (time_a, made_a) in self._offered(one, other, known)
            for b, (time_b, made_b) in offered
        ]
        return sorted(pairs, key=operator.itemgetter(0))

    def _offered(
        self, one: int, other: int, known: Mapping[int, _Layouts]
    ) -> Iterable[tuple[Layout, tuple[float, _Made | int]]]:
        """The forms of an intermediate to be contracted with another.

        A weight that is computed once is also laid out once as a matrix product reads it. If it is too large to be
        kept, it is computed at each call.
        """
        forms = known[one]
        if one & ~self.invariant or not other & ~self.invariant:
            return forms.items()
        seconds, made = self._least(forms)
        if not self._is_kept(one):
            seconds /= BEFOREHAND
        axes, result = self.axes_of(one), self.axes_of(one | other)
        if not (axes - result) & self.axes_of(other):
            return [(layout, (seconds, made)) for layout, (_, made) in forms.items()]
        orders = (*([self.problem.wanted] if self.problem.wanted else []), *known[other], *forms)
        shared = axes & self.axes_of(other)
        batch, summed, own = (ordered(x, *orders) for x in (shared & result, shared - result, axes - shared))
        return [((*batch, *inner), (seconds, made)) for inner in ((*own, *summed), (*summed, *own))]

    def weight(self, subset: int) -> float:
        """The weight of a second of computing an intermediate: `BEFOREHAND` if it is computed once."""
        return 1.0 if subset & ~self.invariant else BEFOREHAND

    def _is_kept(self, subset: int) -> bool:
        """Whether the product of some operands that are computed once is kept from call to call."""
        made_of = sum(self.pricing.extent(x) for n, x in enumerate(self.axes) if subset >> n & 1)
        size = self.pricing.extent(self.axes_of(subset))
        return is_worth_keeping(self.problem.itemsize * size, self.problem.itemsize * made_of)

    def floor(self, one: int, other: int) -> float:
        """A lower bound of the seconds to contract two intermediates, in any layouts."""
        return self._floor(one, other)[0]

    def _bounds(self, one: int, other: int) -> tuple[float, float]:
        """The same, and that of the kernel alone."""
        least, kernel = self.pricing.bounds(*map(self.axes_of, (one, other, one | other)))
        return self.weight(one | other) * least, kernel

    def _axes_of(self, subset: int) -> frozenset[str]:
        """The axes of the intermediate of some operands. A single operand has all of its own axes."""
        if not subset & (subset - 1):
            return self.axes[subset.bit_length() - 1]
        kept, outside = self.problem.kept, ~subset
        return frozenset(
            [x for x, bits in self.holders.items() if bits & subset and (x in kept or bits & outside)]
        )

    def _readers(self, subset: int, kept: frozenset[str]) -> tuple[frozenset[str], ...]:
        """For each of a few other operands, the axes that it shares with an intermediate, unless these are all."""
        others = {axis: self.holders[axis] & ~subset for axis in kept}
        waiting = functools.reduce(operator.or_, others.values(), 0)
        found: dict[frozenset[str], None] = {}
        for _ in range(READERS):
            last, waiting = waiting & -waiting, waiting & (waiting - 1)
            found[frozenset(axis for axis, bits in others.items() if bits & last)] = None
        return tuple(axes for axes in found if axes and axes != kept)

    def along(self, tree: Tree, bound: float = math.inf) -> tuple[float, Order]:
        """The seconds and the order of the fastest forms along a tree. In a pair, the lowest operand's tensor is first.

        Args:
            tree: the pairs of tensors to contract.
            bound: the limit in seconds. If every order along the tree takes longer, the seconds are infinite.
        """
        known, made = self._operands(), self._subsets(tree)
        for (one, other), spare in zip(tree, self._spared(tree, made, bound), strict=True):
            pair = sorted((made[one], made[other]), key=lambda each: each & -each)
            known[sum(pair)] = self.combined(sum(pair), [(pair[0], pair[1])], known, spare)
            if not known[sum(pair)]:
                break
        return self._fastest(known)

    def refined(self, tree: Tree, breadth: int, bound: float = math.inf) -> tuple[float, Order]:
        """The fastest seconds and order along a tree, where the parts of each intermediate may come in any order.

        Args:
            tree: the pairs of tensors to contract.
            breadth: the number of parts that an intermediate is cut into.
            bound: the limit in seconds. If every such order takes longer, the seconds are infinite.
        """
        known, made = self._operands(), self._subsets(tree)
        for (one, other), spare in zip(tree, self._spared(tree, made, bound), strict=True):
            known |= self._over_subsets(self._cut(made[one], made[other], known, breadth), known, spare)
            if made[one] | made[other] not in known:
                break
        return self._fastest(known)

    def _spared(self, tree: Tree, made: Sequence[int], bound: float) -> list[float]:
        """The limit in seconds for the intermediate of each pair of a tree: what the pairs outside of it leave, by a
        lower bound of each."""
        within = [0.0] * len(self.axes)
        for one, other in tree:
            within.append(within[one] + within[other] + self.floor(made[one], made[other]))
        return [bound - (within[-1] - least) for least in within[len(self.axes) :]]

    def _subsets(self, tree: Tree) -> list[int]:
        """The operands in each tensor of a tree. As a set they identify the tree, whatever the order of its pairs."""
        made = [1 << number for number in range(len(self.problem.layouts))]
        for one, other in tree:
            made.append(made[one] | made[other])
        return made

    def estimate(self, one: int, other: int) -> float:
        """The seconds to contract two intermediates, ignoring layouts. Products of invariant operands alone, which are
        computed once, are weighted by `BEFOREHAND`."""
        a, b, joined = self.axes_of(one), self.axes_of(other), self.axes_of(one | other)
        if not (summed := (a | b) - joined):
            return self.floor(one, other)
        groups = (a & b & joined, (a - b) & joined, (b - a) & joined, summed)
        batch, *outer, inner = map(self.pricing.extent, groups)
        seconds = self.problem.profile.matmul(batch, min(outer), max(outer), inner, self.problem.itemsize)
        return seconds * self.weight(one | other)

    def flops(self, one: int, other: int) -> float:
        """The multiplications to contract two intermediates."""
        return self.pricing.extent(self.axes_of(one) | self.axes_of(other))

    def total(self, tree: Tree, price: Callable[[int, int], float]) -> float:
        """The sum of a price over the pairs of intermediates of a tree."""
        made = self._subsets(tree)
        return sum(price(made[one], made[other]) for one, other in tree)

    def best_along(self, trees: Iterable[Tree]) -> tuple[float, Order, Tree]:
        """The seconds, the order and the tree of the fastest of some trees."""
        best: tuple[float, Order, Tree] = (math.inf, (), ())
        different = {frozenset(self._subsets(tree)): tree for tree in trees}
        for tree in sorted(
            different.values(), key=lambda tree: self.total(tree, self.floor)
        ):  # a good one first: bad ones end early
            seconds, order = self.along(tree, best[0])
            if seconds < best[0]:
                best = (seconds, order, tree)
        return best

    def exhaustive(self, bound: float = math.inf) -> tuple[float, Order]:
        """The seconds and the order of the fastest of all trees; infinite seconds if all take longer than `bound`."""
        known = self._operands()
        return self._fastest(self._over_subsets(list(known), known, bound))

    def _cut(self, one: int, other: int, known: Mapping[int, _Layouts], breadth: int) -> list[int]:
        """The two parts of an intermediate, cut into smaller ones. The slowest is cut first, into its own two parts."""
        parts = {subset: self._least(known[subset]) for subset in (one, other)}
        while len(parts) < breadth and any(isinstance(made, _Made) for _, made in parts.values()):
            subset, (_, made) = max(parts.items(), key=lambda each: each[1][0])
            assert isinstance(made, _Made)
            first = made.first.subset if isinstance(made.first, _Made) else 1 << made.first
            del parts[subset]
            parts |= {half: self._least(known[half]) for half in (first, subset ^ first)}
        return sorted(parts, key=lambda subset: subset & -subset)

    def _least(self, forms: _Layouts) -> tuple[float, _Made | int]:
        """The seconds of the fastest form of an intermediate, and how that is computed."""
        return min(forms.values(), key=lambda each: each[0])

    def _over_subsets(
        self, parts: Sequence[int], known: Mapping[int, _Layouts], bound: float = math.inf
    ) -> dict[int, _Layouts]:
        """The best forms of every union of some tensors, by any tree, that take at most `bound` seconds."""
        found = {subset: known[subset] for subset in parts}
        for number in range(2, len(parts) + 1):
            for members in itertools.combinations(parts, number):
                subset = sum(members)
                others = [part for part in parts if not part & subset]
                spare = bound - (self.floor(subset, others[0]) if len(others) == 1 else 0.0)
                halves = [(half, rest) for half, rest in _halves(members) if half in found and rest in found]
                if halves and (forms := self.combined(subset, halves, found, spare)):
                    found[subset] = forms
        return found

    def _made(self, one: _Made | int, other: _Made | int, way: Strategy, subset: int) -> _Made:
        """An intermediate. First comes the tensor that determines the layout of an elementwise product, and the one
        that is not a weight in a matrix product."""
        if way.kind == "multiply" and way.swapped:
            one, other, way = other, one, replace(way, swapped=False)
        first, second = (1 << each if isinstance(each, int) else each.subset for each in (one, other))
        if way.kind == "matmul" and not first & ~self.invariant and second & ~self.invariant:
            one, other = other, one
            way = replace(way, swapped=not way.swapped, rows=way.columns, columns=way.rows)
        return _Made(one, other, way, subset)

    def _fastest(self, known: Mapping[int, _Layouts]) -> tuple[float, Order]:
        """The seconds and the order of the whole product; infinite seconds if it is not known."""
        forms = known.get(self.everything)
        if not forms:
            return math.inf, ()
        seconds, made = self._least(forms)
        return seconds, _in_order(made, len(self.axes))


def _in_order(made: _Made | int, count: int) -> Order:
    """The pairs of an intermediate of `count` operands, each after the pairs that it reads."""
    numbers: dict[int, int] = {}
    pairs: list[Pair] = []
    waiting: list[_Made | int] = [made]
    while waiting:
        last = waiting[-1]
        parts = () if isinstance(last, int) else (last.first, last.second)
        unmade = [part for part in parts if isinstance(part, _Made) and id(part) not in numbers]
        if unmade:
            waiting.extend(reversed(unmade))
            continue
        waiting.pop()
        if isinstance(last, _Made) and id(last) not in numbers:
            one, other = (part if isinstance(part, int) else numbers[id(part)] for part in parts)
            numbers[id(last)] = count + len(pairs)
            pairs.append(Pair(one, other, last.way))
    return tuple(pairs)


def _halves(parts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The ways to divide some sets of operands in two, each once. The first set is always in the first half."""
    for chosen in _choices(len(parts)):
        half = sum(part for place, part in enumerate(parts) if chosen >> place & 1)
        yield half, sum(parts) ^ half


@functools.cache
def _choices(count: int) -> tuple[int, ...]:
    """The ways to divide `count` items in two, each once. Each is the set of bits that holds the first item."""
    return tuple(half for half in range((1 << count) - 2, 0, -1) if half & 1)


# ---------------------------------------------------------------------------- trees


def left_to_right(count: int) -> Tree:
    """The tree that contracts each operand with the result of those before it."""
    return tuple((number if number == 0 else count + number - 1, number + 1) for number in range(count - 1))


def tree_of(path: Iterable[Sequence[int]], count: int) -> Tree:
    """opt_einsum's path (positions in a shrinking list) as pairs. A step of more than two is taken from the left."""
    present, tree = list(range(count)), list[tuple[int, int]]()

    def join(one: int, other: int) -> int:
        tree.append((one, other))
        return count + len(tree) - 1

    for positions in path:
        taken = [present.pop(position) for position in sorted(positions, reverse=True)][::-1]
        present.append(functools.reduce(join, taken))
    functools.reduce(join, present)
    return tuple(tree)


# ---------------------------------------------------------------------------- equal problems


def searched_once(choose: Choose) -> Choose:
    """The choice, cached for all problems that differ only in the names of their axes, or in the number of axes that
    occur together in all operands and the result."""

    @functools.lru_cache(maxsize=4096)
    def chosen(problem: Problem) -> Order:
        return choose(replace(problem))  # a copy, so that the cache keeps no prices

    def choice(problem: Problem) -> Order:
        own = {f"{number:05}": run for number, run in enumerate(_together(problem))}
        order = chosen(_renamed(problem, own))
        return tuple(replace(pair, way=_expanded(pair.way, own)) for pair in order)

    return choice


def _together(problem: Problem) -> list[Layout]:
    """The axes of a problem in runs. Axes of a run are adjacent in this order in every layout that has one of them."""
    layouts = [*problem.layouts, *([] if problem.wanted is None else [problem.wanted])]
    before, after = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for layout in layouts:
        for one, other in itertools.pairwise(("", *layout, "")):
            before[other].add(one)
            after[one].add(other)
    runs = dict[str, list[str]]()
    for axis in dict.fromkeys(itertools.chain(*problem.layouts)):
        last, *others = before[axis]
        is_alone = others or len(after[last]) > 1 or (last in problem.kept) != (axis in problem.kept)
        runs[axis] = [] if is_alone or not last else runs[last]
        runs[axis].append(axis)
    return [tuple(run) for axis, run in runs.items() if run[0] == axis]


def _renamed(problem: Problem, own: Mapping[str, Layout]) -> Problem:
    """A problem with a stand-in name for each run of axes. The stand-ins sort by where the axes first occur, so that
    their own names decide nothing."""
    stand_in = {run[0]: name for name, run in own.items()}

    def moved(layout: Iterable[str]) -> Layout:
        return tuple([stand_in[axis] for axis in layout if axis in stand_in])

    return replace(
        problem,
        layouts=tuple(map(moved, problem.layouts)),
        kept=frozenset(moved(problem.kept)),
        wanted=None if problem.wanted is None else moved(problem.wanted),
        sizes={name: math.prod(problem.sizes[axis] for axis in run) for name, run in own.items()},
        composite=frozenset(name for name, run in own.items() if len(run) > 1),
    )


def _expanded(way: Strategy, own: Mapping[str, Layout]) -> Strategy:
    """A strategy with each stand-in name replaced by the axes of its run."""

    def expanded(layout: Layout) -> Layout:
        return tuple(axis for name in layout for axis in own[name])

    batch, rows, columns, summed = map(expanded, way.groups)
    result = tuple(map(expanded, way.result))
    if way.kind in ("multiply", "sum"):
        result = tuple((axis,) for axis in (*batch, *rows))
    return replace(way, batch=batch, rows=rows, columns=columns, summed=summed, result=result)


EXHAUSTIVE = 5
"""The most operands for which every tree is considered."""

OUTER, EXACT = 10, 12
"""The most operands for which dynamic programming considers outer products (`OUTER`), and for which it finds the fewest
FLOPs (`EXACT`)."""

RANDOM, TRIALS = 14, 16
"""Above how many operands greedy search is tried with perturbed scores as well, and how often. Random networks of 60 to
80 tensors then take a quarter of the time, those of 24 to 40 take 0.76 of it, and those of 150 a tenth of the FLOPs."""

MANY = 80
"""The most operands for which several searches are tried, and their best tree is improved part by part."""

BREADTH = 4
"""The number of parts that an intermediate is cut into for that."""

PATIENCE = 20_000
"""The most pairs of intermediates that dynamic programming may consider: about a second."""


def fastest_with_vjp(problem: Problem) -> Order:
    """The order that is expected to be fastest, for a product whose backward pass is planned as well.

    Operands may be repeated along batch axes without a limit. The result is in the wanted layout.
    """
    return fastest(replace(problem, expanded=math.inf, asked=1.0))


@searched_once
def fastest(problem: Problem) -> Order:
    """The order that is expected to be fastest at a call. Invariant operands may be multiplied beforehand."""
    search, count = Search(problem), len(problem.layouts)
    seconds, order, tree = search.best_along(proposals(search))
    if 2 < count <= EXHAUSTIVE:
        better = search.exhaustive(seconds)
    elif EXHAUSTIVE < count <= MANY:
        better = search.refined(tree, BREADTH, seconds)
    else:
        return order
    return better[1] if better[0] < seconds else order


@searched_once
def fewest_flops(problem: Problem) -> Order:
    """The order with the fewest FLOPs that opt_einsum finds."""
    search, count = Search(problem), len(problem.layouts)
    if count <= EXACT:
        tree = _tree(problem, opt_einsum.DynamicProgramming("flops", search_outer=count <= 8))
    else:
        tree = min(proposals(search), key=lambda tree: search.total(tree, search.flops))
    return search.along(tree)[1]


@searched_once
def as_written(problem: Problem) -> Order:
    """The order from left to right."""
    return Search(problem).along(left_to_right(len(problem.layouts)))[1]


# ---------------------------------------------------------------------------- proposals


def proposals(search: Search) -> Sequence[Tree]:
    """Trees worth pricing."""
    problem, count = search.problem, len(search.problem.layouts)
    if count <= 2:
        return [left_to_right(count)]
    if count <= EXHAUSTIVE:
        simple = (left_to_right(count), _swept(search), _tree(problem, greedy))
        return [min(simple, key=lambda tree: search.total(tree, search.floor))]
    found: list[Tree | None] = [_swept(search)]
    if max((bits.bit_count() for bits in search.holders.values()), default=0) <= MANY:
        found.append(_tree(problem, opt_einsum.paths.get_path_fn("auto")))
    if count > RANDOM:
        trees = dict.fromkeys(_tree(problem, _perturbed(number)) for number in range(TRIALS))
        found.append(min(trees, key=lambda tree: search.total(tree, search.estimate)))
    if count <= MANY:
        least = min(search.total(tree, search.estimate) for tree in found if tree is not None)
        found.append(_programmed(search, least))
    return [tree for tree in found if tree is not None]


def _numbers(problem: Problem) -> dict[str, int]:
    """Numbers for the axes, in order of appearance, operand by operand, as opt_einsum's dynamic programming has them.

    Sets of numbers are iterated in the same order in every process. Sets of letters are not, so that ties between
    equal costs would be broken at random.
    """
    return {axis: number for number, axis in enumerate(dict.fromkeys(itertools.chain(*problem.layouts)))}


def _tree(problem: Problem, optimizer: Any) -> Tree:
    """The tree that one of opt_einsum's optimizers, or one like them, proposes."""
    numbers = _numbers(problem)
    inputs = [tuple(numbers[axis] for axis in layout) for layout in problem.layouts]
    output = tuple(number for axis, number in numbers.items() if axis in problem.kept)
    sizes = {number: problem.sizes[axis] for axis, number in numbers.items()}
    return tree_of(optimizer(inputs, output, sizes), len(inputs))


def _perturbed(seed: int) -> Callable[..., Any]:
    """Greedy search with random scores: a weight of the operands against their product, and noise at each pair.

    J. Gray and S. Kourtis, Hyper-optimized tensor network contraction, Quantum 5, 410 (2021).
    """
    draw = random.Random(seed)
    weight, noise = 3 ** draw.uniform(-1, 1), 10 ** draw.uniform(-2, 0)

    def score(both: int, first: int, second: int, *_: Any) -> float:
        grows = both / weight - weight * (first + second)
        return math.copysign(math.log1p(abs(grows)), grows) + noise * draw.gauss(0, 1)

    return functools.partial(greedy, cost_fn=score)


def _swept(search: Search) -> Tree:
    """The tree that starts at the first operand and always adds the neighbour with the smallest result.

    Neighbours share an axis. Only the shared axes that the fewest waiting operands have are considered. So
    a batch axis, which makes all operands neighbours, counts only where no other axis is left.
    """
    count = len(search.axes)
    done, waiting, tree, last = 1, (1 << count) - 2, list[tuple[int, int]](), 0
    while waiting:
        shared = [bits for axis in search.axes_of(done) if (bits := search.holders[axis] & waiting)]
        fewest = min((bits.bit_count() for bits in shared), default=0)
        near = functools.reduce(operator.or_, (bits for bits in shared if bits.bit_count() == fewest), 0)
        near = near or waiting & -waiting
        chosen = min(
            (number for number in range(count) if near >> number & 1),
            key=lambda number: search.pricing.extent(search.axes_of(done | 1 << number)),
        )
        tree.append((last, chosen))
        done, waiting, last = done | 1 << chosen, waiting & ~(1 << chosen), count + len(tree) - 1
    return tuple(tree)


def _programmed(search: Search, least: float = math.inf) -> Tree | None:
    """The fastest tree, by dynamic programming. None if it takes longer than `least` or the search is cut off."""
    left, numbers = itertools.count(PATIENCE, -1), _numbers(search.problem)
    held = [search]  # opt_einsum keeps the last functions that compare, and what they hold

    def compare(
        cost1: float, cost2: float, union: Any, sizes: Any, most: float, s1: int, s2: int, xn: Any, *more: Any
    ) -> None:
        if not next(left):
            raise _OutOfPatienceError
        both, cost = s1 | s2, cost1 + cost2
        if cost > most or (both in xn and cost >= xn[both][1]):
            return
        cost += held[0].estimate(s1, s2)
        if cost <= most and (both not in xn or cost < xn[both][1]):
            xn[both] = (frozenset(map(numbers.get, held[0].axes_of(both))), cost, more[-2:])

    outer = len(search.axes) <= OUTER
    optimizer = opt_einsum.DynamicProgramming(compare, cost_cap=least * (1 + 1e-9), search_outer=outer)
    try:
        return _tree(search.problem, optimizer)
    except _OutOfPatienceError:
        return None
    finally:
        held.clear()


class _OutOfPatienceError(Exception):
    """Dynamic programming has considered as many pairs as it may."""
