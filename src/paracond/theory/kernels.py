"""Learning the limiting distribution of any kernel (section 3).

A kernel p_theta(x | x') is anything that can be drawn from and scored. Its limiting distribution p_theta(x) is fitted
to data by ascending, for sequences x_1 ~ data, x_k+1 ~ q(. | x_k) of another kernel q,

    g = sum_k grad log p_theta(x_k | x_k+1),      k = 1, ..., n                                        (eq:stoch-est)

the gradient of F-hat, all of the lower bound L_B (eq:chain) but a term that vanishes with n if q has the limiting
distribution p_theta. Three choices of q:

- "forward": p_theta itself, with its present parameters, as the paper proposes. It drives p_theta to detailed balance;
- "reverse": p_theta's reverse, where that can be drawn from. The bound is then tight: for every n the gradient of the
  likelihood is g and the gradient of the omitted term E log p_theta(x_n+1), which vanishes for large n;
- any fixed kernel, such as one that only adds noise (denoising diffusion: see `noise_kernels`).

Gibbs kernels of joint models (eq:gibbs_transition) are one case (`JointKernel`). `Learner` (Algorithm 1) is the form of
this for them, with missing data, and with the choice of the group known to the learner.

Along n, the objective is estimated by (appendix B.1, `objective`)

    F-hat(n) = sum_k E [log p(x_k | x_k+1) - log q(x_k+1 | x_k)],    F(n) = F-hat(n) + E log q(x_n+1 | x_n).

At detailed balance F does not grow with n, once q_n is the limit.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paracond.chain import Chain
from paracond.conditional import Conditional
from paracond.data import (
    Data,
    InputError,
    State,
    as_count,
    at_least,
    one_of,
    require_a,
    row_count,
    seeded,
    shown,
    take,
    true_or_false,
    wide,
)
from paracond.model import JointModel, require_model
from paracond.networks import Network
from paracond.runtime.nonfinite import NonFiniteError
from paracond.training.former import Former
from paracond.training.parts import made_optimiser
from paracond.training.schedules import Schedule, as_schedule, set_rate
from paracond.training.stepwise import Stepwise

Optimiser = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
FORMS = ("running", "literal")
MOST_STEPS = 100_000  # of a sequence, all of which is kept
MOST_SIZE = 2**14  # of the matrix of a `LogLinear`


class Kernel(nn.Module, ABC):
    """The base class of kernels p(x | x'), for states of named groups."""

    @abstractmethod
    def sample(self, previous: State, generator: torch.Generator) -> State:
        """Draw the next state of every row, without gradient."""

    @abstractmethod
    def log_prob(self, following: State, previous: State) -> Tensor:
        """Return log p(following | previous), `[batch]`."""

    def validate(self, state: State) -> State:
        """Convert whole states to the types of the kernel. A kernel that knows its families refuses bad values."""
        return state

    def entropy(self, previous: State) -> Tensor | None:
        """Return the entropy of p(. | previous), `[batch]`, or None where it is not known."""
        return None

    def reverse(self) -> Kernel:
        """Return the kernel p^r(x' | x) = p(x | x') p(x') / p(x)."""
        raise InputError(f"the reverse of a {type(self).__name__} is not known; use q='forward' or a kernel")


class FactorKernel(Kernel):
    """The kernel p(x | x') = family(network(x')) of one group: its coordinates are independent given the last state."""

    def __init__(self, name: str, conditional: Conditional):
        super().__init__()
        require_a(str, name=name)
        require_a(Conditional, conditional=conditional)
        self.name, self.conditional = name, conditional

    def validate(self, state: State) -> State:
        if list(state) != [self.name]:
            raise InputError(f"the kernel's only group is {self.name!r}, found {', '.join(map(repr, state))}")
        family, value = self.conditional.family, state[self.name]
        family.check_shape(self.name, value)
        family.check_known(self.name, value.flatten())
        parameter = next(self.parameters(), torch.empty(0))
        return {self.name: family.store(value.to(parameter.device), parameter.dtype)}

    def _given(self, previous: State):
        encoded = self.conditional.family.encode(previous[self.name])
        parameter = next(self.parameters(), encoded)
        return self.conditional({self.name: encoded.to(parameter.dtype)})

    @torch.no_grad()
    def sample(self, previous: State, generator: torch.Generator) -> State:
        return {self.name: self._given(previous).sample(generator)}

    def log_prob(self, following: State, previous: State) -> Tensor:
        return self._given(previous).log_prob(following[self.name])

    def entropy(self, previous: State) -> Tensor:
        entropy = self._given(previous).entropy
        return entropy.reshape(len(entropy), -1).sum(1)

    def reverse(self) -> Kernel:
        network = self.conditional.network
        if isinstance(network, LogLinear) and network.asymmetry() == 0:
            return self  # detailed balance
        return super().reverse()


class LogLinear(Network):
    """The network of p(z | z') ~ exp <W s' + b, s>, with s = 2 z - 1 (eq:art_mat); in detailed balance iff W = W'."""

    def __init__(self, name: str, size: int):
        super().__init__()
        require_a(str, name=name)
        size = as_count("size", size, most=MOST_SIZE)
        self.name, self.reads = name, (name,)
        self.weight = nn.Parameter(torch.zeros(size, size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, others) -> Tensor:
        return 2 * nn.functional.linear(2 * others[self.name] - 1, self.weight, self.bias)

    @torch.no_grad()
    def asymmetry(self) -> float:
        """Return |W - W^T|, the Frobenius norm."""
        return float((self.weight - self.weight.T).norm())

    @torch.no_grad()
    def symmetrise(self) -> None:
        """Set W to (W + W^T) / 2."""
        self.weight.copy_((self.weight + self.weight.T) / 2)


class JointKernel(Kernel):
    """The kernel of a joint model, p(x | x') = sum_i alpha_i p_i(x_i | x'_-i) [x_-i = x'_-i] (eq:gibbs_transition).

    A Real group is redrawn to its old value with probability zero. So where it has changed, `log_prob` is a log
    density, and where it has not, its term is left out. `reversible`: the conditionals belong to one joint for all
    parameters, as in a harmonium. The chain is then in detailed balance (theorem T1) and its own reverse.
    """

    def __init__(self, model: JointModel, reversible: bool = False):
        super().__init__()
        require_model(model)
        true_or_false("reversible", reversible)
        self.model, self.reversible = model, reversible

    def validate(self, state: State) -> State:
        missing = [name for name in self.model.names if name not in state]
        if missing:
            raise InputError(f"{missing[0]!r} is missing: a kernel takes whole states (a Learner completes them)")
        return self.model.whole_state(state)

    def sample(self, previous: State, generator: torch.Generator) -> State:
        rows = row_count(previous)
        return Chain(self.model, generator=generator, scan="random", per_row=True, batch=rows).step(previous)[0]

    def log_prob(self, following: State, previous: State) -> Tensor:
        model, terms = self.model, []
        same = {n: (following[n] == previous[n]).reshape(row_count(previous), -1).all(1) for n in model.names}
        for name in model.names:
            others = torch.stack([same[n] for n in model.names if n != name] or [torch.ones_like(same[name])]).all(0)
            possible = others if model.variables[name].finite else others & ~same[name]
            moved = model(name, previous).log_prob(following[name]) + math.log(model.alpha[name])
            terms.append(torch.where(possible, moved, -torch.inf))
        return torch.stack(terms).logsumexp(0)

    def reverse(self) -> Kernel:
        return self if self.reversible else super().reverse()


def whole_states(kernel: Kernel, data: Data | Mapping[str, Tensor]) -> State:
    """Convert examples to states of the kernel. Missing values are refused."""
    require_a(Kernel, kernel=kernel)
    data = data if isinstance(data, Data) else Data(data)
    missing = [name for name, mask in data.mask.items() if not bool(mask.all())]
    if missing:
        raise InputError(f"{missing[0]!r} has missing values: a kernel takes none, a Learner does")
    return kernel.validate(data.state)


def _scores(kernel: Kernel, following: State, previous: State) -> Tensor:
    """Return log p(following | previous), which must be a number per row."""
    scores, rows = kernel.log_prob(following, previous), row_count(previous)
    if scores.shape != (rows,):
        raise InputError(
            f"log_prob of {type(kernel).__name__} must have one number per row, [{rows}], found {list(scores.shape)}"
        )
    return scores


# --- learning ---------------------------------------------------------------------------------------------------


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Make the default optimiser."""
    return torch.optim.Adam(parameters, lr=1e-3)


@dataclass(frozen=True, eq=False)
class KernelInfo:
    """One update. `loss` is minus the mean of log p(x_k | x_k+1), a tensor."""

    step: int
    loss: Tensor


class KernelLearner(Stepwise[KernelInfo, Kernel]):
    """Learns the limiting distribution of a kernel, in place: `kernel = KernelLearner(kernel, data).fit(steps)`.

    q: the kernel of the sequences: "forward", "reverse" or a fixed kernel (see the head of this module).
    chain_length: n, the length of sequences; a number or a function of the step. So is `learning_rate`.
    form: "literal" draws whole sequences of n steps from the data and then updates once, by the mean over them.
        "running" continues one batch, of which a random share 1/n is replaced by fresh examples after each step: n is
        then the mean length, and an update costs the same for every n.
    after_update: called after each update, for constraints such as `LogLinear.symmetrise`.
    """

    def __init__(
        self,
        kernel: Kernel,
        data: Data | Mapping[str, Tensor],
        *,
        q: str | Kernel = "forward",
        chain_length: float | Schedule = 4,
        batch_size: int = 256,
        form: str = "running",
        learning_rate: float | Schedule | None = None,
        optimiser: Optimiser = adam,
        after_update: Callable[[], None] | None = None,
        seed: int = 0,
    ):
        batch_size = as_count("batch_size", batch_size)
        one_of("form", form, FORMS)
        if not (isinstance(q, Kernel) or (isinstance(q, str) and q in ("forward", "reverse"))):
            raise InputError(f'q must be "forward", "reverse" or a kernel, found {shown(q)}')
        self.kernel, self.data, self.q = kernel, whole_states(kernel, data), q
        self.chain_length = as_schedule("chain_length", chain_length)
        self.rate = None if learning_rate is None else as_schedule("learning_rate", learning_rate)
        self.batch_size, self.form, self.after_update = batch_size, form, after_update
        self._check_reverse()
        learned = [parameter for parameter in kernel.parameters() if parameter.requires_grad]
        if not learned:
            raise InputError("no parameter requires a gradient: call kernel.requires_grad_(True)")
        self.optimiser = made_optimiser(optimiser, learned)
        self.former = Former(learned, self.optimiser)
        device = next(iter(self.data.values())).device
        self.generator = seeded(seed, device)
        self.step_count = 0
        self.batch = self._fresh(batch_size)

    def _check_reverse(self) -> None:
        """Check that the reverse exists, if q is the reverse, and that updates preserve it."""
        if self.q != "reverse":
            return
        self.kernel.reverse()
        if isinstance(self.kernel, FactorKernel) and self.after_update is None:
            raise InputError("updates end the symmetry that q='reverse' needs; give after_update=network.symmetrise")

    @property
    def result(self) -> Kernel:
        return self.kernel

    def step(self) -> KernelInfo:
        """Do one update."""
        length = self.chain_length(self.step_count)
        if not length >= 1:
            raise InputError(f"chain_length must be at least 1, found {length} at step {self.step_count}")
        if self.form == "literal" and length > MOST_STEPS:
            raise InputError(f"chain_length of whole sequences must be at most {MOST_STEPS:,}, found {length:g}")
        if self.rate is not None:
            set_rate(self.optimiser, self.rate(self.step_count))
        before, after = self._pairs(length)
        loss = -_scores(self.kernel, before, after).mean()
        if not bool(loss.isfinite()):
            raise NonFiniteError(", ".join(before), self.step_count, "the loss")
        self.optimiser.zero_grad()
        loss.backward()
        if not self.former.step():
            raise NonFiniteError(", ".join(before), self.step_count, "a parameter")
        if self.after_update is not None:
            self.after_update()
        self.step_count += 1
        return KernelInfo(self.step_count, loss.detach())

    @torch.no_grad()
    def _pairs(self, length: float) -> tuple[State, State]:
        """Return x_k and x_k+1, of whole sequences or of the running batch."""
        if self.form == "literal":
            states = _sequence(self._drawn_from(), self._fresh(self.batch_size), round(length), self.generator)
            return _joined(states[:-1]), _joined(states[1:])
        before = self.batch
        after = self._drawn_from().sample(before, self.generator)
        chance = torch.rand(self.batch_size, generator=self.generator, device=self.generator.device)
        fresh = self._fresh(self.batch_size)
        self.batch = {n: torch.where(wide(chance < 1 / length, v), fresh[n], v) for n, v in after.items()}
        return before, after

    def _drawn_from(self) -> Kernel:
        if isinstance(self.q, Kernel):
            return self.q
        return self.kernel if self.q == "forward" else self.kernel.reverse()

    def _fresh(self, rows: int) -> State:
        index = torch.randint(row_count(self.data), (rows,), generator=self.generator, device=self.generator.device)
        return take(self.data, index)


@torch.no_grad()
def sequence(q: Kernel, first: State, n: int, generator: torch.Generator) -> list[State]:
    """Draw x_2, ..., x_n+1 after x_1 = first; all of them are returned."""
    require_a(Kernel, q=q)
    return _sequence(q, whole_states(q, first), as_count("n", n, 0), generator)


def _sequence(q: Kernel, first: State, n: int, generator: torch.Generator) -> list[State]:
    states = [first]
    for _ in range(n):
        states.append(q.sample(states[-1], generator))
    return states


# --- the objective along n --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Objective:
    """F and F-hat for n = 1, ..., N and every chain, `[chains, N]`."""

    f: Tensor
    f_hat: Tensor

    def slope(self, first: int = 1) -> tuple[float, float]:
        """Return the least-squares slope of F along n = first, ..., N, and its standard error over chains."""
        at_least({"first": (first, 1)})
        chains, last = self.f.shape
        if last - first < 1 or chains < 2:
            raise InputError(
                f"a slope needs two lengths and two chains, found n = {first} to {last} and {chains} chains"
            )
        values = self.f[:, first - 1 :]
        n = torch.arange(values.shape[1], dtype=values.dtype, device=values.device)
        centred = n - n.mean()
        slopes = values @ centred / centred.square().sum()
        return float(slopes.mean()), float(slopes.std() / len(slopes) ** 0.5)


@torch.no_grad()
def objective(p: Kernel, q: Kernel, data: Data | Mapping[str, Tensor], n: int, generator: torch.Generator) -> Objective:
    """Estimate F and F-hat of `p` up to n, along chains of `q` from each example. The last term of F is exact given
    x_n, where the entropy of q is known."""
    require_a(Kernel, p=p, q=q)
    states = _sequence(q, whole_states(p, data), as_count("n", n), generator)
    gains, lasts = [], []
    for before, after in itertools.pairwise(states):
        forward, entropy = _scores(q, after, before), q.entropy(before)
        gains.append(_scores(p, before, after) - forward)
        lasts.append(forward if entropy is None else -entropy)
    f_hat = torch.stack(gains, 1).double().cumsum(1)
    return Objective(f_hat + torch.stack(lasts, 1).double(), f_hat)


def _joined(states: list[State]) -> State:
    return {name: torch.cat([state[name] for state in states]) for name in states[0]}
