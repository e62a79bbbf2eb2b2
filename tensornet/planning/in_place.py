"""In-place updates and buffer reuse: sums written into one of their terms.

The result of a product is new memory, and no derivative needs its value. A sum that reads it may be written into that
memory, if nothing else reads it. The same holds for a tensor that is a copy or a view of such a result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..device.cost_model import IN_CACHE
from ..language.expression import Call, Ref, axes_of_index, is_scalar
from ..ops.protocols import names_in
from ..ops.table import FUNCTIONS, Element
from ..sizes import evaluate, product
from .plans import AnyStep
from .steps import Step
from .target import Target

__all__ = ["is_whole", "overwriting"]

WRITTEN = frozenset({"added", "subtracted"})
"""The operations that a backend must support to write sums in place."""


def overwriting(
    steps: Sequence[AnyStep], outputs: Container[str], values: Mapping[str, Any], target: Target
) -> tuple[AnyStep, ...]:
    """The steps with large sums written into one of their terms, where nothing else reads the term.

    Args:
        steps: the steps, in order.
        outputs: the tensors that are needed after all of them.
        values: the value of every named size.
        target: the target of the plan.
    """
    if not target.supported >= WRITTEN:
        return tuple(steps)
    reads = Counter(name for step in steps for name in step.reads)
    once = {name for name, count in reads.items() if count == 1 and name not in outputs}
    own = dict[str, Step]()
    found = list[AnyStep]()
    for step in steps:
        if isinstance(step, Step):
            written = int(product(evaluate(size, values) for size in step.shapes[0])) * target.itemsize
            into = next(_terms(step, own), None) if written >= IN_CACHE else None
            if into is not None:
                saved = min(step.seconds, target.profile.fresh(written))
                step = replace(step, into=into, seconds=step.seconds - saved)
            if step.equation.name in once and _is_own(step, own):
                own[step.equation.name] = step
        found.append(step)
    return tuple(found)


def _is_own(step: Step, own: Container[str]) -> bool:
    """Whether a result has memory of its own, or is all of such a tensor, and no derivative needs its value."""
    if step.element < Element.WIDE or not step.equation.left:  # a scalar may have no memory
        return False
    if step.multiplied is not None:
        return True
    match step.equation.right:
        case Ref() as ref:
            return ref.name in own and is_whole(ref)
        case Call("add"):
            return True
        case Call(function, (Ref() as ref,)) if FUNCTIONS[function].axes == "moved":
            return ref.name in own and is_whole(ref)
    return False


def _terms(step: Step, own: Mapping[str, Step]) -> Iterator[str]:
    """The terms that a sum can be written into: those of the same size, layout and element type."""
    match step.equation.right:
        case Call("add", terms) if not any(map(is_scalar, terms)):
            for term in terms:
                if isinstance(term, Ref) and term.name in own and is_whole(term):
                    alike = axes_of_index(term.index) == axes_of_index(step.equation.left)
                    if alike and own[term.name].element is step.element:
                        yield term.name


def is_whole(ref: Ref) -> bool:
    """Whether every element of a tensor is read, exactly once."""
    axes = [axis for entry in ref.index if isinstance(entry, str | tuple) for axis in names_in(entry)]
    return len(set(axes)) == len(axes) and all(isinstance(entry, str | tuple) for entry in ref.index)
