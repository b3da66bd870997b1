"""Inconsistent finite models that mix slowly, and the exact limits of their tours.

Each conditional is drawn by itself. The limit then depends on the rate, the warm-up, the scan and the beginning, so a
wrong one of these is seen.
"""

import math

import torch
from helpers import SIGMAS
from torch import nn

import paracond as pc
from paracond import exact

VARIABLES = {"a": pc.Binary(2), "b": pc.Categorical(3), "c": pc.Binary()}
REGENERATIONS = [pc.Regeneration(rate, warmup) for rate, warmup in ((1, 0), (1, 2), (0.4, 0), (0.3, 1), (0.02, 5))]
SCANS = ["systematic", "random"]


class Wired(nn.Module):
    """bias + sum_j W_j encode(x_j) of all other groups, with weights of its own."""

    def __init__(self, variables, name, generator, strength):
        super().__init__()
        size = math.prod(variables[name].output_shape)
        normal = lambda *shape: strength * torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
        self.shape, self.others = variables[name].output_shape, [n for n in variables if n != name]
        self.bias = nn.Parameter(normal(size))
        self.weights = nn.ParameterList(normal(math.prod(variables[n].encoding_shape), size) for n in self.others)

    def forward(self, others):
        rows = [others[n].reshape(len(others[n]), -1) @ w for n, w in zip(self.others, self.weights, strict=True)]
        return (self.bias + sum(rows)).view(-1, *self.shape)


def wired(variables=VARIABLES, seed=0, strength=1.5, context=None, alpha=None):
    """A joint model of conditionals drawn each by itself."""
    generator = torch.Generator().manual_seed(seed)
    names = [name for name in variables if name not in (context or {})]
    parts = {n: pc.Conditional(variables[n], Wired(variables, n, generator, strength)) for n in names}
    return pc.JointModel(parts, alpha, context).double()


MODEL = wired(alpha={"a": 0.5, "b": 0.2, "c": 0.3})
FINITE = exact.enumerate_model(MODEL)

QUESTIONS = {  # by what is given
    "nothing": {},
    "a group": {"b": torch.tensor(2)},
    "a coordinate": {"a": pc.Observed(torch.tensor([1.0, 0.0]), torch.tensor([True, False]))},
    "a coordinate and a group": {
        "a": pc.Observed(torch.tensor([0.0, 1.0]), torch.tensor([False, True])),
        "c": torch.tensor(1.0),
    },
    "another group": {"c": torch.tensor(0.0)},
}


def batched(model, questions):
    """Questions as rows of one batch, each with masks of its own."""
    given = {}
    for name, family in model.variables.items():
        known = [question.get(name) for question in questions]
        if all(k is None for k in known):
            continue
        zero = family.store(torch.zeros(family.event_shape), torch.float64)
        nowhere = pc.Observed(zero, torch.zeros(family.event_shape, dtype=torch.bool))
        parts = [nowhere if k is None else k if isinstance(k, pc.Observed) else pc.Observed(k) for k in known]
        masks = [torch.ones(family.event_shape, dtype=torch.bool) if p.mask is None else p.mask for p in parts]
        given[name] = pc.Observed(torch.stack([p.value.to(zero.dtype) for p in parts]), torch.stack(masks))
    return given


def limit_of(finite, given, regeneration, scan="systematic", begin=None):
    """The limit of clamped tours over all states: zero where they contradict what is given."""
    kernel, (_, left) = finite.tours(given, regeneration, scan, begin), finite.clamped(given)
    p = exact.limiting(kernel)
    for axis, name in enumerate(finite.names):
        values = finite.values[name]
        places = [int((values == v).reshape(len(values), -1).all(1).nonzero()) for v in left[name]]
        shape = list(p.shape)
        shape[axis] = len(values)
        p = torch.zeros(shape, dtype=p.dtype).index_copy(axis, torch.tensor(places), p)
    return p


def encoded_mean(finite, model, p, name):
    """E[encode(x_name)]."""
    return torch.tensordot(
        finite.marginal(p, name), model.variables[name].encode(finite.values[name]).to(torch.float64), 1
    )


def assert_near(found, error, expected, what):
    """Within so many of its own standard errors."""
    gap = (found - expected).abs()
    assert bool((gap <= SIGMAS * error + 1e-7).all()), f"{what}: off by {(gap / error).max():.1f} standard errors"


def with_init(seed=1):
    """a has a p_0 of independent bits that depend on the class b."""
    model = wired(seed=seed)
    init = pc.initializers.pca(VARIABLES, "a", ["b"], rank=1).double()
    with torch.no_grad():
        init.directions.zero_()
        init.means.copy_(torch.tensor([[0.5, 0.5], [0.4, -0.3], [-0.3, 0.1], [0.1, 0.5]]))
    parts = {n: pc.Conditional(VARIABLES[n], model.conditional(n).network, init if n == "a" else None) for n in "abc"}
    return pc.JointModel(parts).double()
