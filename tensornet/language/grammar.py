"""The grammar of the language, by section; error messages refer to the sections."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..ops.record import Example

__all__ = ["FORMS", "NAMED", "SECTIONS", "STARTS", "WORDS", "Section", "anchor_of"]

STARTS = {
    "std": "normal numbers of this deviation",
    "value": "this number everywhere",
    "identity": "this number where an input meets the output that it is, 0 elsewhere",
    "near_identity": "the identity times this number, with normal numbers of a hundredth beside it",
    "orthogonal": "rows, or columns where there are fewer, that are orthogonal and this long",
    "kaiming": "normal numbers of the deviation √(2 / inputs), times this number",
    "xavier": "normal numbers of the deviation √(2 / (inputs + outputs)), times this number",
}
"""The meaning of `parameter(kind=number)`, by kind. Inputs are the positions along the axes that are summed where the
parameter is read and that come with data or with a factor before it. Outputs are the positions along its other axes,
except those that come with data and are kept: each position along these has a matrix of its own."""

NAMED = {
    "zeros": ("value", 0.0),
    "ones": ("value", 1.0),
    **{kind: (kind, 1.0) for kind in STARTS if kind not in ("std", "value")},
}
"""The kinds of start that have a name in `init=`."""

WORDS = ", ".join(map(repr, NAMED))
"""These names, as an error message lists them."""


@dataclass(frozen=True)
class Section:
    """A part of the grammar.

    Attributes:
        title: its heading.
        text: its content, in Markdown.
        examples: layers that illustrate it.
    """

    title: str
    text: str
    examples: tuple[Example, ...] = ()

    @property
    def anchor(self) -> str:
        """The anchor of its heading, for links to the page."""
        return anchor_of(self.title)


def anchor_of(title: str) -> str:
    """The Markdown anchor of a heading: lower case, with `-` for a space."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


_FOUR, _SQUARE = (1.0, 2.0, 3.0, 4.0), ((1.0, 2.0), (3.0, 4.0))

FORMS = (
    ("x[b,i]", "an axis, by its name; what the left lacks is summed", Example.of("y[b] = x[b,i]", x=_SQUARE)),
    ("x[i,i]", "a diagonal", Example.of("y[i] = x[i,i]", x=_SQUARE)),
    ("x[...,c]", "any leading axes", Example.of("y[...,c] = 2 * x[...,c]", x=_SQUARE)),
    ("x[(h,d)]", "one dimension as two axes", Example.of("y[h,d] = x[(h,d)]", x=_FOUR, h=2)),
    ("y[(i,j)]", "two axes as one dimension", Example.of("y[(i,j)] = x[i,j]", x=_SQUARE)),
    ("x[(f,0)]", "every second element, by pairs", Example.of("y[f] = x[(f,1)] - x[(f,0)]", x=_FOUR, f=2)),
    ("x[b,-1]", "one position, from the end where negative", Example.of("y[b] = x[b,-1]", x=_SQUARE)),
    (
        "x[1:], x[:-1]",
        "a slice, along the axis that `x` has there; here neighbouring pairs, (t, t+1)",
        Example.of("x[t:4]: input\ny[t] = x[1:] * x[:-1]", x=_FOUR),
    ),
    ("x[2*p]", "every second position", Example.of("y[p] = x[2*p]", x=_FOUR)),
    ("x[p+u]", "a window of `u` positions", Example.of("y[p] = x[p+u] * w[u]", x=_FOUR, w=(0.5, 0.5))),
    ("x[n-1-t]", "from the end to the front", Example.of("y[t] = x[n-1-t]", x=_FOUR, n=4)),
    ("B[j-i+n-1]", "by distance", Example.of("y[i,j] = B[j-i+n-1]", B=(1.0, 2.0, 3.0), n=2, i=2, j=2)),
    ("E[k[n],c]", "a gather, at the positions in `k`", Example.of("y[n,c] = E[k[n],c]", k=(1, 0), E=_SQUARE)),
    (
        "y[k[n]] +=",
        "a scatter, to the positions in `k`",
        Example.of("y[v] = 0\ny[k[n]] += 1", k=(2, 0, 2), v=3),
    ),
    ("h[t-1]", "the position before, of what recurs", Example.of("h[t] = 0.5 * h[t-1] + x[t]", x=_FOUR)),
)
"""What stands in brackets: its form, its meaning, an example."""

SECTIONS = (
    Section(
        "Lines",
        """A layer is a text of equations, one a line, `name[axes] = expression`; later lines read what earlier ones
define. The grammar is Python's, read by `ast`, and nothing in it is run: `#` begins a comment, a line goes on
inside of brackets.

```
block       := { equation | addition | declaration | definition | call }
equation    := name[left] = expression
addition    := name[left] += expression
start       := name[axis, …, -1, …] = expression | name[axis, …, +1, …] = expression
declaration := name[axes]: input | parameter | parameter(kind=number) | constant
             | name: output
             | axis: size
definition  := def name(x, …): block
call        := name, … = name(x, …, scope='blocks.0')
left        := axis | (axis, …), separated by commas
expression  := name | name[entry, …] | number | pi | inf | axis
             | - + ~ expression | expression (+ - * / // % **) expression
             | expression (== != < <= > >=) expression | expression (& |) expression
             | function(expression, …, keyword=…) | function[axis, …](expression, …, keyword=…)
entry       := axis | integer | (entry, …) | ... | start:stop:step | expression of positions
             | t-1 | t+1, of what recurs
```""",
    ),
    Section(
        "Names",
        """A name that no line defines is an input if `inputs=` lists it, a constant if `constants=` holds it, else a
parameter. A name in brackets, and one alone that is an axis, is an axis. A bare name of a tensor stands for it
with the axes that it was defined or declared with, else those that it is first read with; `x[b,j,c]` reads the same
tensor under other axes. Of a tensor that is neither defined nor declared, each axis of the bare name is on the left or
in another factor: what is to be summed alone is written, `x[b,k]` or `sum[k](x)`. A parameter without axes is a
number; where no gradient would reach one, under a root and among positions it is declared, `s[()]: parameter`, since a
size was more likely meant. Every line must be read by an output: the last line is the output, or those that `outputs=`
names.""",
        (Example.of("h[b,i] = 2 * x[b,i]\ny[b,i] = h + 1", x=((1.0, 2.0),)),),
    ),
    Section(
        "Axes",
        """In brackets stand, for each dimension: the name of an axis; `(h,d)`, a composite axis, row-major; an integer,
from the end where negative; a tensor of positions, `E[t[b,n],c]`, which is a gather; a sum of axes in numbers,
`x[b,2*p+u]`, a window, whose `p` is as long as fits; a slice; `...`, any leading axes, the same throughout the line.
Inside of such a sum an axis of the equation says where it is, any other name is a size: `P[t + s,c]` is a window where
the equation has an axis `s`, and reads `s` positions on where it has none. Where numbers are given for all sizes,
that of `p` too, a window may be shorter than fits, and reads a part, as `table[t-s+511]` of a longer table. Where some
are open it reaches from end to end; to read less there, tell the positions in a line of their own,
`at[t] = index(t) + s`, and read `P[at[t],c]`. Rotary positions read the pairs of a composite, `x[(f,0)]` and
`x[(f,1)]`, and a bias by distance a table, `B[j - i + n - 1]`.
On the left stand axes and composites.
Tensors in an expression align by the names of their axes, never by position; the sizes of
one axis agree wherever it is read in an equation.""",
        (
            Example.of("y[h,d] = x[(h,d)]", x=(1.0, 2.0, 3.0, 4.0), h=2),
            Example.of("y[n,c] = E[t[n],c]", t=(2, 0), E=((1.0, 2.0), (3.0, 4.0), (5.0, 6.0))),
            Example.of("y[p] = x[2*p + u]", x=(1.0, 2.0, 3.0, 4.0), u=2),
            Example.of(
                "y[f] = x[(f,0)] * c[f] - x[(f,1)] * s[f]",
                x=(1.0, 2.0, 3.0, 4.0),
                c=(1.0, 0.0),
                s=(0.0, 1.0),
                f=2,
            ),
            Example.of(
                "y[i,j] = s[i,j] + B[j - i + n - 1]",
                s=((0.0, 0.0), (0.0, 0.0)),
                B=(1.0, 2.0, 3.0),
                n=2,
                i=2,
                j=2,
            ),
        ),
    ),
    Section(
        "Sums",
        """In a product, an axis that is not on the left is summed, in the innermost product that holds every occurrence
of it. An axis that is on the left is summed nowhere: the scores in `softmax[m](q[n,e] * k[m,e]) * v[m,d]` need a letter
that the left lacks. Each term of a sum is a product of its own, and a lone tensor on the right may lose axes too. An
axis that is in one factor only, inside of a function, belongs to no product: `sum[i](…)` says where it is summed. So
it does where two products could sum an axis, as in `(U[i]*x[i]) * (V[i]*x[i])`, which is refused.
Products are multiplied in the order that takes least, through lines too: `a * sum[i](x[i])` may be
`sum[i](a*x[i])`, which an infinite `a` makes NaN where `x` has both signs, and `sum[i](a*x[i])` may be
`a * sum[i](x[i])`, which is infinite. A sum may be multiplied out, `(x[i] + u) * a` as `x[i]*a + u*a`, which is NaN
where `a` and one of the two are infinite; and a softmax whose axis nothing else has in a term counts as 1 there,
whatever it is of.""",
        (
            Example.of("y[b] = x[b,i] * w[i]", x=((1.0, 2.0), (3.0, 4.0)), w=(10.0, 1.0)),
            Example.of("y[b] = exp(sum[i](x[b,i])) * 2", x=((0.0, 0.0), (1.0, -1.0))),
        ),
    ),
    Section(
        "Additions",
        """`y[b,e[b,t],c] += …` adds to a tensor at positions that another tells, after a line that starts it, such as
`y[b,v,c] = 0`; what is told twice is added twice, and what has no axis of the positions is added at each of them:
`y[t[n]] += 1` counts. A position that the axis does not have is an error, as where one is read. What is NaN or
infinite changes the rows that it is added to, and no others.""",
        (
            Example.of("y[v] = 0\ny[t[n]] += x[n]", t=(2, 0, 2), x=(1.0, 2.0, 3.0), v=4),
            Example.of("y[v] = 0\ny[t[n]] += 1", t=(2, 0, 2), v=4),
        ),
    ),
    Section(
        "Recurrences",
        """An equation may read itself, or one below it, one position before, `h[b,t-1,p]`, or after, `h[b,t+1,p]`: it
is computed position by position, and what does not recur before that; a linear one may be an associative scan,
where what is infinite may become NaN. `h[b,-1,o] = …` says where it starts, one step before the first position, and
`h[b,+1,o] = …` one step after the last, of what is read at `t+1`; without that it starts at 0. A bare name there that
nothing gives axes has those of the state. Farther back is `t-2`, with a start at -2 as well; `D[i-1,j-1]` is a step
along two axes. A step is under an axis of the left or the state's own, and under any axis of the line where it goes
back, or where a start on that side is given: otherwise, as in `h[t-1,j+1] * W[k,j]`, a state is read in windows as any
tensor is. On the right `h[b,-1,o]` is the last position, the state to go on from.
`previous[t](a, start)` and `following[t](a, start)` say the same, of any tensor. Weights in factors read a
state in parts, `h[b,t-1,(p,k)]`, whatever parts it is made or starts in; the sizes of the parts are given.""",
        (
            Example.of("h[b,-1] = s[b]\nh[b,t] = 0.5 * h[b,t-1] + x[b,t]", x=((1.0, 0.0, 0.0),), s=(8.0,)),
            Example.of(
                "h[-1,m] = s[m]\n"
                "z[t,g,(o,q)] = x[t,g,(o,q)] + h[t-1,(p,k)] * C[g,o,p,r] * D[r,q,k]\n"
                "c[t,m] = sigmoid(z[t,0,m]) * c[t-1,m] + sigmoid(z[t,1,m]) * tanh(z[t,2,m])\n"
                "h[t,m] = sigmoid(z[t,3,m]) * tanh(c[t,m])",
                x=(
                    ((0.0, 0.0), (0.0, 0.0), (1.0, 2.0), (0.0, 0.0)),
                    ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
                ),
                s=(1.0, -1.0),
                C=((((1.0,), (0.0,)),), (((0.0,), (1.0,)),), (((1.0,), (1.0,)),), (((2.0,), (0.0,)),)),
                D=(((1.0,), (-1.0,)),),
                **{"o": 1, "q": 2, "p": 2, "k": 1},
            ),
        ),
    ),
    Section(
        "Declarations",
        """`x[b,i]: input`, `W[o,i]: parameter`, `m[i,j]: constant` and `h: output` give a tensor its kind, its axes and
their order; `n: k + 1` in brackets gives an axis its size, of which a line without such an axis
speaks by the name. They stand beside `inputs=`, `outputs=` and `constants=` of `tensornet.layer`, and say the same in
the text.""",
        (Example.of("x[i:2]: input\ny[i] = 3 * x", x=(1.0, 2.0)),),
    ),
    Section(
        "Starts",
        "How a parameter starts follows from the equations, so that deviations are kept; `init=` of `tensornet.layer`"
        " and of `tensornet.init` says it otherwise: by a standard deviation, an array, or a name of "
        + ", ".join(f"`{name}`" for name in NAMED)
        + ". In a text it is `W[o,i]: parameter(kind=number)`:\n\n"
        + "\n".join(f"- `{kind}`: {what}" for kind, what in STARTS.items())
        + "\n\nInputs are the positions along the axes that are summed where the parameter is read and come with data"
        " or with a factor before it, outputs those along its other axes but those that come with data and are kept:"
        " for each position along these it is a matrix of its own.",
    ),
    Section(
        "Sizes",
        """Sizes follow from arrays and from what is given, in any line: `tensornet.layer(…, i=8)`, `i: 8` as a line, an
integer, a sympy expression or a text such as `"4*D + 1"`, of `+ - * / // **`, `floor`, `ceiling`, `Max` and `Min`. A
size that nobody gives is open, and formulas are in it. Outside of brackets the name of an axis alone is its size; where
it is along the axis says `index(d)`.""",
        (Example.of("y[b] = x[b,d] / sqrt(d)", x=((1.0, 1.0, 1.0, 1.0),)),),
    ),
    Section(
        "Elements",
        """Elements are truth values, positions, or numbers of the working type, which is the one floating type of the
arrays that are given. Positions and counts are integers, computed with in 64 bits: they stay exact under `+ - *`,
`//`, `%` and small powers, until they meet numbers of the working type. Beside numbers a truth value is the number
0 or 1. Complex arrays are taken where functions say so.""",
        (Example.of("y[i] = x[i] * (index(i) // 2)", x=(1.0, 1.0, 1.0, 1.0)),),
    ),
    Section(
        "Blocks",
        """`def name(x, …):`, with lines of its own indented below, defines a block; `y = name(x, scope='first')` calls
it. The scope stands before the names of its parameters, so that each scope has its own and equal scopes share. A block
may call blocks that are defined before it. What it is given has its axes before it is called, an input by
`x[b,i]: input`; its last line is what it gives, or the tensors of `z: output` lines, in their order. Its axes are its
own, as long as those of what it is given; other sizes stand in it as lines, `r: 4`, or are given by their names to
the whole text.

A block of one position makes one after another where its call has brackets, `h[b,t,p] = cell(x[b,t,i], h[b,t-1,p])`:
what it gives at a position it is given at the next. It stands in the text as its equations do, along the axis of the
step.""",
        (
            Example.of(
                "x[b,i]: input\ndef double(x):\n    y[b,i] = 2 * x[b,i]\nz = double(x, scope='one')",
                x=((1.0, 2.0),),
            ),
            Example.of(
                "def cell(x, h):\n    x[b]: input\n    h[b]: input\n    z[b] = x[b] + 0.5 * h[b]\n"
                "h[b,t] = cell(x[b,t], h[b,t-1])",
                x=((1.0, 0.0, 0.0),),
            ),
        ),
    ),
    Section(
        "Functions",
        """A function maps elements, `gelu(x)`, or runs over the axes in its brackets, `softmax[j](s)`; those that move
elements name axes by keyword, `roll(x, i=1)`. `tensornet functions` lists them, and `tensornet functions NAME` tells
all of one. In derivatives `a`, `b`, … are the operands, `y` is the result, `g` the gradient that comes in, `j` the axes
that the function runs over and `n` how many positions these have.""",
    ),
    Section(
        "Functions of your own",
        """`tensornet.register("cube", derivative="3 * g * a ** 2", numpy=lambda a: a**3)` adds a function to the
language,
in every process that runs it; with `computes="y[b,i] = …"` it is a kernel, which the planner puts where a program
says that equation.""",
    ),
)
"""The sections, in the order of the page."""
