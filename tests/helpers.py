"""Exact models and one way to judge samples, shared by the tests.

Goodness of fit: the whole suite may fail by chance with probability `FAILURE_RATE`; each check gets an equal share.
"""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

import paracond as pc
from paracond.experiments.faces.rows import FacesForm
from paracond.training.literal import LiteralLearner
from paracond.training.running_batch import LiteralForm, RunningForm

FAILURE_RATE = 2e-5
CHECKS = 400  # more than the suite makes
THRESHOLD = FAILURE_RATE / CHECKS
SIGMAS = -float(scipy.stats.norm.ppf(THRESHOLD / 2))
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]  # eager, and recorded


def still(name, parameters):
    """An optimiser that does not move, so that only gradients and draws are seen."""
    return torch.optim.SGD(parameters, lr=0.0, fused=True)


def sample(joint, rows, seed):
    """States of a, b and c by their joint law."""
    index = torch.multinomial(joint.flatten(), rows, replacement=True, generator=torch.Generator().manual_seed(seed))
    return dict(zip("abc", torch.unravel_index(index, joint.shape), strict=True))


def assert_fits(counts, probabilities):
    """Chi-square test of counts against exact probabilities; cells with small expectations are joined."""
    counts = np.asarray(counts, dtype=float).ravel()
    expected = np.asarray(probabilities, dtype=float).ravel() * counts.sum()
    assert np.isclose(expected.sum(), counts.sum(), rtol=1e-9)
    order = np.argsort(expected)
    counts, expected = counts[order], expected[order]
    small = np.searchsorted(np.cumsum(expected), 10) + 1
    counts = np.concatenate([[counts[:small].sum()], counts[small:]])
    expected = np.concatenate([[expected[:small].sum()], expected[small:]])
    assert len(counts) > 1, "too few draws to test anything"
    statistic = ((counts - expected) ** 2 / expected).sum()
    p_value = scipy.stats.chi2.sf(statistic, len(counts) - 1)
    assert p_value > THRESHOLD, (
        f"chi-square {statistic:.1f} with {len(counts) - 1} degrees of freedom, p = {p_value:.1e}"
    )


def assert_mean(values, expected, what="mean"):
    """A central-limit test: the mean of independent values (along the first axis) is the expected one."""
    values = torch.as_tensor(values, dtype=torch.float64)
    error = values.std(0) / math.sqrt(len(values))
    cells = max(1, error.numel())  # each coordinate is a check of its own
    limit = float(scipy.stats.t.isf(THRESHOLD / 2 / cells, len(values) - 1))
    gap = (values.mean(0) - torch.as_tensor(expected, dtype=torch.float64)).abs()
    assert bool((gap <= limit * error + 1e-12).all()), (
        f"{what}: off by {gap.max():.4g}, standard error {error.max():.2g}"
    )


class Linear(nn.Module):
    """bias + sum_j W_j encode(x_j), times a factor: the networks of a pairwise exponential family."""

    def __init__(self, bias, weights, factor=1.0):
        super().__init__()
        self.bias = nn.Parameter(bias)
        self.names = tuple(weights)
        self.weights = nn.ParameterList(weights.values())
        self.factor = factor

    def forward(self, others):
        total = self.bias + sum(
            torch.tensordot(others[name].flatten(1), weight, 1)
            for name, weight in zip(self.names, self.weights, strict=True)
        )
        return self.factor * total


class Pairwise:
    """p(x) ~ exp(sum_i b_i e_i + sum_i<j e_i W_ij e_j - x^2 / 2s^2 for real members): consistent by design.

    Exact answers come from enumerating the discrete groups; given them, a (single) real group is Gaussian.
    """

    def __init__(self, variables, seed=0, strength=1.0, alpha=None):
        generator = torch.Generator().manual_seed(seed)
        self.variables = variables
        size = {n: math.prod(f.encoding_shape) for n, f in variables.items()}
        self.bias = {n: strength * torch.randn(size[n], generator=generator, dtype=torch.float64) for n in variables}
        self.weights = {}
        for a, b in itertools.combinations(variables, 2):
            w = strength * torch.randn(size[a], size[b], generator=generator, dtype=torch.float64)
            self.weights[a, b], self.weights[b, a] = w, w.T
        self.model = pc.JointModel({n: self._conditional(n) for n in variables}, alpha).double()

    def _conditional(self, name):
        family = self.variables[name]
        factor = family.scale**2 if isinstance(family, pc.Real) else 1.0
        shape = family.encoding_shape
        weights = {
            other: self.weights[other, name].reshape(-1, *shape).clone() for other in self.variables if other != name
        }
        return pc.Conditional(family, Linear(self.bias[name].reshape(shape).clone(), weights, factor))

    def joint(self):
        """States of the discrete groups `{name: [S, *event]}`, their probabilities [S], and means of the real group."""
        discrete = [n for n, f in self.variables.items() if f.finite]
        (real,) = [n for n in self.variables if n not in discrete] or [None]
        values = [self.variables[n].values() for n in discrete]
        index = torch.cartesian_prod(*[torch.arange(len(v)) for v in values]).view(-1, len(values))
        states = {n: v[index[:, k]] for k, (n, v) in enumerate(zip(discrete, values, strict=True))}
        codes = {
            n: self.variables[n].encode(v).double().flatten(1)
            if v.ndim > 1 or self.variables[n].encoding_shape
            else v.double()[:, None]
            for n, v in states.items()
        }
        energy = sum(codes[n] @ self.bias[n] for n in discrete)
        for a, b in itertools.combinations(discrete, 2):
            energy = energy + ((codes[a] @ self.weights[a, b]) * codes[b]).sum(1)
        means = None
        if real:
            variance = self.variables[real].scale ** 2
            field = self.bias[real] + sum(codes[n] @ self.weights[n, real] for n in discrete)
            energy = energy + 0.5 * variance * (field**2).sum(1)
            means = variance * field
        return states, torch.softmax(energy, 0), means


class Table(nn.Module):
    """Logits of a categorical group, looked up by the indices of all other (categorical) groups."""

    def __init__(self, logits, axis, names):
        super().__init__()
        self.logits = nn.Parameter(logits.movedim(axis, -1).clone())
        self.names = names

    def forward(self, others):
        return self.logits[tuple(others[name].argmax(-1) for name in self.names)]


def table_model(tables, alpha=None):
    """A joint model of categorical groups a, b, c, ... with these conditionals p_i(x_i | x_-i), consistent or not."""
    names = [chr(ord("a") + i) for i in range(len(tables))]
    shape = tables[0].shape
    conditionals = {
        name: pc.Conditional(pc.Categorical(shape[i]), Table(tables[i].log(), i, [n for n in names if n != name]))
        for i, name in enumerate(names)
    }
    return pc.JointModel(conditionals, None if alpha is None else dict(zip(names, alpha, strict=True))).double()


def random_joint(shape, seed, strength=1.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(strength * torch.randn(math.prod(shape), generator=generator, dtype=torch.float64), 0).view(
        shape
    )


def random_tables(shape, seed, strength=1.0):
    """Conditionals drawn independently: inconsistent with probability one (unless there is one group)."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.softmax(strength * torch.randn(*shape, generator=generator, dtype=torch.float64), i)
        for i in range(len(shape))
    ]


def state_index(finite, state):
    """The flat index of every row's joint state."""
    index = torch.zeros(len(next(iter(state.values()))), dtype=torch.long)
    for name in finite.names:
        values = finite.values[name]
        equal = (state[name].unsqueeze(1).to(values.dtype) == values.unsqueeze(0)).reshape(len(index), len(values), -1)
        index = index * len(values) + equal.all(2).long().argmax(1)
    return index


def on_cpu(state):
    return {name: value.cpu() for name, value in state.items()}


def learner_of(
    model,
    data,
    *,
    form="running",
    scan="no-repeat",
    skip_redrawn=True,
    draw="before",
    steps=1,
    by="model",
    warm=(),
    parallel=False,
    slow=None,
    init_rows=(),
    **options,
):
    """A `Learner` (with `draw="after"`, a `LiteralLearner`) from one flat list of options."""
    chosen = {"running": RunningForm, "literal": LiteralForm}.get(form, lambda *_: form)(scan, skip_redrawn)
    if slow is not None or init_rows:
        chosen = FacesForm(scan, skip_redrawn, slow, tuple(init_rows))
    options.setdefault("completion", pc.CompletionOptions(steps, by, tuple(warm), parallel))
    kind = pc.Learner if draw == "before" else LiteralLearner
    return kind(model, data, form=chosen, **options)
