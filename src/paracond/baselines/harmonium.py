"""Exponential-family harmoniums and contrastive divergence (appendix, ex:EF).

Two groups with statistics psi(x) and xi(y), and base measures h (for a Real group of fixed sigma exp(-x^2 / 2 sigma^2),
else 1), have the joint

    p_W(x, y) = h(x) h(y) exp(<psi(x), W xi(y)> + <psi(x), a> + <xi(y), b>) / Z,

eq:ef_harmonium with the biases written out (append 1 to psi and to xi, and a and b are the last column and row of W).
Both conditionals have natural parameters that are affine in the other group's statistics,

    p(x | y): a + W xi(y),        p(y | x): b + W^T psi(x),

so a harmonium is a `JointModel` whose two networks share W. It is consistent whatever W is, and can be asked, saved and
learned like any other. Statistics are the encodings of the families: x itself, or one-hot for a Categorical group.

Along the chain (x_1, y_1), ..., (x_n, y_n) that redraws the groups in turn, the stochastic gradients of Algorithm 1
(eq:ef_stgrad, the redrawn value being the draw) cancel but for the ends, which is contrastive divergence (eq:cd):

    g = psi(x_1) (x) xi(y_1) - psi(x_n) (x) xi(y_n).

`ContrastiveDivergence` computes g by matrix products. At both ends xi(y) is replaced by its mean given x where y is not
observed: the same expectation, with less variance. A persistent chain does not begin at the data but goes on from where
the last update left it (particles), and so follows the model: g is then a stochastic gradient of the likelihood itself.

One group sums out in closed form, with any fixed value y_0:

    F(x) = -log sum_y Z p(x, y) = -log Z p(x, y_0) + log p(y_0 | x)        (free energy),
    log p(x_d | x_-d) = -log sum_v exp(F(x) - F(x with x_d = v)),         log p(x) = -F(x) - log Z.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paracond.conditional import Conditional
from paracond.data import Data, InputError, as_count, as_numbers, named, shown, true_or_false
from paracond.distributions import Distribution
from paracond.families import Binary, Categorical, Family, Real, Shape
from paracond.initializers import random_state
from paracond.model import JointModel, require_model
from paracond.networks import Network
from paracond.runtime.nonfinite import NonFiniteError
from paracond.training.former import Former
from paracond.training.parts import made_optimiser
from paracond.training.schedules import Schedule, as_schedule, set_rate
from paracond.training.stepwise import Stepwise

Optimiser = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
DEVIATION = 0.01  # of the first weights
ROWS = 1024  # whose pseudo-likelihood is computed at a time: what they need stays in the cache


# --- models -----------------------------------------------------------------------------------------------------


class Side(Network):
    """One group's parameters given the `other`, whose statistics have this size: factor (bias + W xi).

    `transposed` is the side of y, with W^T. `factor` takes natural parameters to a mean: sigma^2 for a Real group.
    """

    def __init__(self, other: str, inputs: int, output: Sequence[int], transposed: bool, factor: float = 1.0):
        super().__init__()
        self.other, self.reads, self.output = other, (other,), tuple(output)
        self.transposed, self.factor = transposed, factor
        outputs = math.prod(output)
        self.weight = nn.Parameter(DEVIATION * torch.randn((inputs, outputs) if transposed else (outputs, inputs)))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, others: Mapping[str, Tensor]) -> Tensor:
        return self.output_of(self.natural(_flat(others[self.other])))

    def natural(self, codes: Tensor) -> Tensor:
        """Natural parameters `[batch, outputs]` given the other group's statistics `[batch, inputs]`."""
        return torch.addmm(self.bias, codes, self.weight if self.transposed else self.weight.T)

    def output_of(self, natural: Tensor) -> Tensor:
        scaled = natural if self.factor == 1 else self.factor * natural
        return scaled.view(-1, *self.output)


def harmonium(variables: Mapping[str, Family]) -> JointModel:
    """The harmonium of two groups, x and y in this order: Binary, Categorical, or Real with a number as its scale.

    If both are Real, p exists only where sigma_x sigma_y |W| < 1 (spectral norm), which nothing here ensures.
    """
    variables = named("variables", variables)
    if len(variables) != 2:
        raise InputError(f"a harmonium has two groups, found {', '.join(variables) or 'none'}")
    for name, family in variables.items():
        _check_linear(name, family)
    (x, first), (y, second) = variables.items()
    networks = {x: _side(first, y, second, transposed=False), y: _side(second, x, first, transposed=True)}
    networks[y].weight = networks[x].weight
    return JointModel({name: Conditional(family, networks[name]) for name, family in variables.items()})


def rbm(visible: int | Shape, hidden: int | Shape) -> JointModel:
    """The restricted Boltzmann machine: binary x and y."""
    return harmonium({"x": Binary(visible), "y": Binary(hidden)})


def gaussian_rbm(visible: int | Shape, hidden: int | Shape, scale: float = 1.0) -> JointModel:
    """Real x, of this standard deviation given the binary y."""
    return harmonium({"x": Real(visible, scale=scale), "y": Binary(hidden)})


def _check_linear(name: str, family: Family) -> None:
    fixed = isinstance(family, Real) and not isinstance(family.scale, str)
    if not fixed and not isinstance(family, (Binary, Categorical)):
        raise InputError(
            f"{name!r} of variables must be Binary, Categorical or Real with a number as its scale, "
            f"found {shown(family)}"
        )


def _side(family: Family, other: str, read: Family, transposed: bool) -> Side:
    factor = float(family.scale) ** 2 if isinstance(family, Real) else 1.0
    return Side(other, math.prod(read.encoding_shape), family.output_shape, transposed, factor)


# --- one side, and both -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Group:
    """A group of a harmonium, on flat statistics `[batch, size]`."""

    name: str
    family: Family
    side: Side

    def given(self, codes: Tensor) -> Distribution:
        """The conditional given the other group's statistics."""
        return self.family.distribution(self.side.output_of(self.side.natural(codes)))

    def codes(self, value: Tensor) -> Tensor:
        """Statistics of stored values, or of one coordinate of them (`[batch, 1 or classes]`)."""
        return _flat(self.family.encode(value)).to(self.side.bias.dtype)

    def log_base(self, value: Tensor) -> Tensor:
        """log h, `[batch]`."""
        if not isinstance(self.family, Real):
            return torch.zeros(len(value), dtype=self.side.bias.dtype, device=value.device)
        return -0.5 * _flat(value).square().sum(1) / self.side.factor

    def log_partition(self, natural: Tensor) -> Tensor:
        """A(eta) = log sum_x h(x) exp<psi(x), eta>, `[batch]`; that is <psi(x_0), eta> - log p(x_0) if h(x_0) = 1."""
        zero = self.family.store(torch.zeros(1, *self.family.event_shape, device=natural.device), natural.dtype)
        distribution = self.family.distribution(self.side.output_of(natural))
        return natural @ self.codes(zero)[0] - distribution.log_prob(zero.expand(len(natural), *zero.shape[1:]))

    @property
    def coordinates(self) -> int:
        return math.prod(self.family.event_shape)

    @property
    def alternatives(self) -> int:
        """How many values a coordinate has."""
        if not self.family.finite:
            raise InputError(f"{self.name!r} has no finite set of values: it is {self.family}")
        return self.family.classes if isinstance(self.family, Categorical) else 2


def groups(model: JointModel) -> tuple[Group, Group]:
    """x and y of a harmonium; refuses other models."""
    require_model(model)
    found = [(name, model.conditional(name).network) for name in model.names]
    sides = [Group(name, model.variables[name], side) for name, side in found if isinstance(side, Side)]
    if len(sides) != 2 or sides[0].side.weight is not sides[1].side.weight:
        raise InputError(f"not a harmonium: the networks of {', '.join(model.names)} must be two sides of one weight")
    return sides[0], sides[1]


# --- what is known exactly --------------------------------------------------------------------------------------


def free_energy(model: JointModel, x: Tensor) -> Tensor:
    """F(x) = -log sum_y Z p(x, y), `[rows]`; it can be differentiated."""
    visible, hidden = groups(model)
    return _free_energy(visible, hidden, _known(model, visible, x))


def log_normaliser(model: JointModel) -> Tensor:
    """log Z, by enumeration of the group that has fewer values (at most 2^16); it can be differentiated."""
    visible, hidden = groups(model)
    pairs = [pair for pair in ((visible, hidden), (hidden, visible)) if pair[0].family.finite]
    if not pairs:
        raise InputError(f"log Z needs a finite group, found {visible.family} and {hidden.family}")
    fewest, other = min(pairs, key=lambda pair: pair[0].coordinates * math.log(pair[0].alternatives))
    return torch.logsumexp(-_free_energy(fewest, other, fewest.family.values().to(model.device)), 0)


def log_likelihood(model: JointModel, x: Tensor) -> Tensor:
    """log p(x) = -F(x) - log Z, `[rows]`, exactly; for models that `log_normaliser` can enumerate."""
    return -free_energy(model, x) - log_normaliser(model)


@torch.no_grad()
def pseudo_likelihood(model: JointModel, x: Tensor) -> Tensor:
    """The mean over all coordinates d of log p(x_d | x_-d), y summed out, `[rows]`; x must be finite.

    Times the number of coordinates, it is what scikit-learn's `BernoulliRBM.score_samples` estimates by one of them.
    """
    visible, hidden = groups(model)
    value = _known(model, visible, x)
    return torch.cat([_pseudo_likelihood(visible, hidden, rows) for rows in value.split(ROWS)])


def _known(model: JointModel, group: Group, x: Tensor) -> Tensor:
    """Values of a group, all of which are known, as they are stored."""
    value = as_numbers("x", x)
    if value.ndim and not len(value):
        raise InputError("x must have at least one row, found none")
    return model.validate({group.name: value})[0][group.name]


def _free_energy(group: Group, other: Group, value: Tensor) -> Tensor:
    codes = group.codes(value)
    return -(group.log_base(value) + codes @ group.side.bias + other.log_partition(other.side.natural(codes)))


def _pseudo_likelihood(visible: Group, hidden: Group, value: Tensor) -> Tensor:
    natural = hidden.side.natural(visible.codes(value))
    now = hidden.log_partition(natural)
    columns = _flat(value).T
    weights = visible.side.weight.view(
        len(columns), -1, natural.shape[1]
    )  # [coordinates, statistics of each, size of y]
    biases = visible.side.bias.view(len(columns), -1)
    total = torch.zeros_like(now)
    for column, weight, bias in zip(columns, weights, biases, strict=True):
        gaps = [torch.zeros_like(now)]  # F(x) - F(x with this coordinate moved on, cyclically)
        for shift in range(1, visible.alternatives):
            moved = (column + shift).remainder(visible.alternatives)
            change = visible.codes(moved) - visible.codes(column)
            gaps.append(hidden.log_partition(torch.addmm(natural, change, weight)) - now + change @ bias)
        total -= torch.stack(gaps).logsumexp(0)
    return total / len(columns)


# --- learning ---------------------------------------------------------------------------------------------------


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The default optimiser."""
    return torch.optim.SGD(parameters, lr=0.1)


@dataclass(frozen=True, eq=False)
class Info:
    """One update: `norm` is that of the gradient, a tensor."""

    step: int
    norm: Tensor


class ContrastiveDivergence(Stepwise[Info, JointModel]):
    """CD-k with k = `sweeps`, or persistent CD. `for info in learner.run(steps)`, or `learner.fit(steps)`.

    The data have x, and y or not; what they have is observed in every row (for missing values see `Learner`). Batches
    are drawn without replacement, pass by pass. `optimiser(parameters)` makes the optimiser; `learning_rate`, a number
    or a function of the step, overrides its own. With `persistent`, `learner.particles` is a state of as many rows as a
    batch, which every update carries on by k sweeps.
    """

    def __init__(
        self,
        model: JointModel,
        data: Data,
        *,
        sweeps: int = 1,
        persistent: bool = False,
        batch_size: int = 100,
        learning_rate: float | Schedule | None = None,
        optimiser: Optimiser = sgd,
        seed: int = 0,
    ):
        sweeps, batch_size = as_count("sweeps", sweeps), as_count("batch_size", batch_size)
        true_or_false("persistent", persistent)
        if not isinstance(data, Data):
            raise InputError(f"contrastive divergence takes Data(values), found {type(data).__name__}")
        self.model = model
        self.x, self.y = groups(model)
        self.sweeps, self.persistent = sweeps, persistent
        self.values = self._observed(data)
        self.batch_size = min(batch_size, len(data))
        self.rate = None if learning_rate is None else as_schedule("learning_rate", learning_rate)
        self.generator = model.generator(seed)
        self.particles = random_state(model, self.batch_size, self.generator) if persistent else {}
        self.parameters = self.x.side.weight, self.x.side.bias, self.y.side.bias
        self._make_gradients()
        learned = [parameter for parameter in self.parameters if parameter.requires_grad]
        if not learned:
            raise InputError("no parameter requires a gradient: call model.requires_grad_(True)")
        self.optimiser = made_optimiser(optimiser, learned)
        self.former = Former(learned, self.optimiser)
        self.order = torch.empty(0, dtype=torch.long)
        self.step_count = 0

    def _make_gradients(self) -> None:
        """Those of all parameters, parts of one vector: its norm is one call, which counts where batches are small."""
        sizes = [parameter.numel() for parameter in self.parameters]
        self.gradient = torch.zeros(sum(sizes), dtype=self.model.dtype, device=self.model.device)
        parts = zip(self.parameters, self.gradient.split(sizes), strict=True)
        self.gradients = [part.view_as(parameter) for parameter, part in parts]

    def _observed(self, data: Data) -> dict[str, Tensor]:
        """The values of the groups that are observed: x, and perhaps y."""
        values, masks = self.model.validate(data.state, data.mask)
        seen = {name: value for name, value in values.items() if bool(masks[name].all())}
        partly = [name for name in values if name not in seen and bool(masks[name].any())]
        if partly or self.x.name not in seen:
            wrong = (partly or [self.x.name])[0]
            raise InputError(f"{wrong!r} has missing values: contrastive divergence takes none, a Learner does")
        return seen

    @property
    def result(self) -> JointModel:
        return self.model

    @torch.no_grad()
    def step(self) -> Info:
        """One update from one batch."""
        if self.rate is not None:
            set_rate(self.optimiser, self.rate(self.step_count))
        psi, xi, start = self._first()
        last, law = self._last(start)
        norm = self._contrast(psi, xi, self.x.codes(last), _flat(law.mean))
        if not math.isfinite(float(norm)):
            raise NonFiniteError(self.x.name, self.step_count, "the gradient")
        if not self.former.step():
            raise NonFiniteError(self.x.name, self.step_count, "a parameter")
        if self.persistent:
            self.particles = {self.x.name: last, self.y.name: law.sample(self.generator)}
        self.step_count += 1
        return Info(self.step_count, norm)

    def _first(self) -> tuple[Tensor, Tensor, Tensor]:
        """psi(x_1) and xi(y_1) (or its mean given x_1) of the next batch, and the y from which the chain goes on."""
        rows = self._next_rows()
        psi = self.x.codes(self.values[self.x.name].index_select(0, rows))
        if self.y.name in self.values:
            y = self.values[self.y.name].index_select(0, rows)
            return psi, self.y.codes(y), self.particles.get(self.y.name, y)
        law = self.y.given(psi)
        if self.persistent:
            return psi, _flat(law.mean), self.particles[self.y.name]
        return psi, _flat(law.mean), law.sample(self.generator)

    def _last(self, y: Tensor) -> tuple[Tensor, Distribution]:
        """x_n, k sweeps after y, and p(y_n | x_n)."""
        x, law = self._sweep(y)
        for _ in range(self.sweeps - 1):
            x, law = self._sweep(law.sample(self.generator))
        return x, law

    def _sweep(self, y: Tensor) -> tuple[Tensor, Distribution]:
        x = self.x.given(self.y.codes(y)).sample(self.generator)
        return x, self.y.given(self.x.codes(x))

    def _contrast(self, psi: Tensor, xi: Tensor, last_psi: Tensor, last_xi: Tensor) -> Tensor:
        """Minus eq:cd, averaged over the batch, as the gradients of W, a and b; returns their norm."""
        rows = len(psi)
        weight, a, b = self.gradients
        torch.mm(last_psi.T, last_xi, out=weight)
        torch.addmm(weight, psi.T, xi, beta=1 / rows, alpha=-1 / rows, out=weight)
        torch.sub(last_psi.mean(0), psi.mean(0), out=a)
        torch.sub(last_xi.mean(0), xi.mean(0), out=b)
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return torch.linalg.vector_norm(self.gradient)

    def _next_rows(self) -> Tensor:
        """The next batch. Rows left at the end of a pass that fill no batch are skipped."""
        if len(self.order) < self.batch_size:
            count = len(self.values[self.x.name])
            self.order = torch.randperm(count, generator=self.generator, device=self.model.device)
        rows, self.order = self.order[: self.batch_size], self.order[self.batch_size :]
        return rows


def _flat(codes: Tensor) -> Tensor:
    return codes.reshape(len(codes), -1)
