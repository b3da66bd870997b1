"""Section 3 for any kernel: its gradient estimates against enumeration, its choices of q, and what it learns."""

import itertools
import math
from functools import partial

import pytest
import torch
from helpers import assert_fits, assert_mean, random_joint, random_tables, still, table_model

import paracond as pc
from paracond import exact
from paracond.baselines import harmonium
from paracond.theory import noise_kernels as noise
from paracond.theory.kernels import FactorKernel, JointKernel, Kernel, KernelLearner, LogLinear, objective, sequence

BITS = 3
STATES = pc.Binary(BITS).values().double()


def log_linear(seed=0, strength=0.5, symmetric=False, size=BITS):
    torch.manual_seed(seed)
    network = LogLinear("z", size).double()
    for parameter in network.parameters():
        parameter.data.normal_(0, strength)
    if symmetric:
        network.symmetrise()
    return FactorKernel("z", pc.Conditional(pc.Binary(size), network))


def matrix(kernel, states=STATES):
    """The kernel over all states, [from, to]."""
    rows = [kernel.log_prob({"z": states}, {"z": state.expand_as(states)}).exp() for state in states]
    return exact.MatrixKernel(torch.stack(rows).detach())


def law(seed=1):
    return torch.softmax(torch.randn(2**BITS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), 0)


def gradients(kernel, value):
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, list(kernel.parameters()))])


def expected_gradient(kernel, q, data, n):
    """grad of sum_k E log p(x_k | x_k+1), by enumeration: the learned part of F-hat."""
    weights = torch.stack(exact.trajectory(q, data, n)[:n]).sum(0)
    pairs = weights[:, None] * q.transition  # of (x_k, x_k+1), summed over k
    scores = [kernel.log_prob({"z": STATES}, {"z": state.expand_as(STATES)}) for state in STATES]  # [x_k+1][x_k]
    return gradients(kernel, (torch.stack(scores).T * pairs).sum())


# --- kernels ----------------------------------------------------------------------------------------------------


def test_the_log_linear_kernel_is_the_definition():
    kernel = log_linear()
    network, spins = kernel.conditional.network, 2 * STATES - 1
    energy = (spins @ network.weight.T + network.bias) @ spins.T  # [from, to]
    torch.testing.assert_close(matrix(kernel).transition, torch.softmax(energy, 1).detach(), rtol=1e-12, atol=1e-12)
    drawn = kernel.sample({"z": STATES[3].expand(40_000, -1)}, torch.Generator().manual_seed(0))["z"]
    index = (drawn @ torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64)).long()
    assert_fits(torch.bincount(index, minlength=8), matrix(kernel).transition[3])
    entropy = -torch.special.xlogy(matrix(kernel).transition, matrix(kernel).transition).sum(1)
    torch.testing.assert_close(kernel.entropy({"z": STATES}).detach(), entropy, rtol=1e-10, atol=1e-12)


def test_detailed_balance_holds_iff_the_matrix_is_symmetric():
    assert abs(exact.detailed_balance_gap(matrix(log_linear(symmetric=True)))) < 1e-12
    assert exact.detailed_balance_gap(matrix(log_linear())) > 1e-3
    kernel = log_linear(symmetric=True)
    assert kernel.reverse() is kernel
    with pytest.raises(pc.InputError, match="the reverse of a FactorKernel is not known"):
        log_linear().reverse()


def test_the_joint_kernel_is_the_gibbs_kernel():
    shape = (2, 3)
    model = table_model(random_tables(shape, 0), (0.3, 0.7))
    finite, kernel = exact.enumerate_model(model), JointKernel(model)
    size = math.prod(shape)
    pairs = [(i, j) for i in range(size) for j in range(size)]
    before, after = ({n: v[[p[k] for p in pairs]] for n, v in finite.states.items()} for k in (0, 1))
    found = kernel.log_prob(after, before).exp().view(size, size)
    torch.testing.assert_close(found.detach(), finite.kernel.matrix(), rtol=1e-12, atol=1e-12)
    first = {n: v[:1].expand(30_000) for n, v in finite.states.items()}
    drawn = kernel.sample(first, model.generator(0))
    assert_fits(torch.bincount(drawn["a"] * 3 + drawn["b"], minlength=6), finite.kernel.matrix()[0])


def test_algorithm_1_is_this_one_with_the_choice_of_the_group_made_known():
    """E grad log p(x | x') of the mixture = sum_i alpha_i grad log p_i(x_i | x_-i), exactly: where the redrawn
    group falls on its old value, the mixture weighs the groups by the chance that it was them."""
    model = table_model(random_tables((2, 3), 3), (0.3, 0.7))
    finite, kernel, q = exact.enumerate_model(model), JointKernel(model), random_joint((2, 3), 4).flatten()
    transition = finite.kernel.matrix()
    pairs = [(i, j) for i in range(6) for j in range(6)]
    before, after = ({n: v[[p[k] for p in pairs]] for n, v in finite.states.items()} for k in (0, 1))
    scores = kernel.log_prob(before, after)
    weights = torch.tensor([float(q[i] * transition[i, j]) for i, j in pairs], dtype=torch.float64)
    mixture = gradients(kernel, (weights * scores.nan_to_num(neginf=0.0)).sum())
    each = [a * (q * model(n, finite.states).log_prob(finite.states[n])).sum() for n, a in model.alpha.items()]
    torch.testing.assert_close(mixture, gradients(kernel, sum(each)), rtol=1e-10, atol=1e-10)


def test_the_joint_kernel_of_a_gaussian_rbm_by_hand():
    """If x changed, the density of x alone; if y changed, its probability alone; if nothing did, only y's: a Real group
    is redrawn to its old value with probability zero. All moves together have probability one."""
    model = harmonium.gaussian_rbm(1, 2, scale=0.7).double()
    weight, a, b = model.conditional("x").network.weight, *(model.conditional(n).network.bias for n in "xy")
    for k, parameter in enumerate((weight, a, b)):
        parameter.data = torch.linspace(-1 + 0.3 * k, 1, parameter.numel(), dtype=torch.float64).view_as(parameter)
    kernel, ys = JointKernel(model), pc.Binary(2).values().double()
    x, y = torch.tensor([[0.4]], dtype=torch.float64), ys[1:2]
    logits = b + (x * weight)[0]
    to_y = (ys * logits - torch.nn.functional.softplus(logits)).sum(1).detach()
    mean = 0.49 * (a + (weight * y).sum())
    line = torch.linspace(-6, 6, 4001, dtype=torch.float64)[:, None]
    to_x = (-0.5 * (line - mean) ** 2 / 0.49 - math.log(0.7 * math.sqrt(2 * math.pi)))[:, 0].detach()
    before = {"x": x, "y": y}
    found = kernel.log_prob({"x": x.expand(4, -1), "y": ys}, {n: v.expand(4, -1) for n, v in before.items()})
    torch.testing.assert_close(found.detach(), to_y + math.log(0.5), rtol=0, atol=1e-10)
    rows = {n: v.expand(len(line), -1) for n, v in before.items()}
    density = kernel.log_prob({"x": line, "y": rows["y"]}, rows).detach()
    torch.testing.assert_close(density, to_x + math.log(0.5), rtol=0, atol=1e-10)
    whole = found.exp().sum() + density.exp().sum() * (line[1, 0] - line[0, 0])
    assert float(whole.detach()) == pytest.approx(1, abs=1e-10)
    both = kernel.log_prob({"x": x + 1, "y": 1 - y}, before)
    assert float(both.detach()) == -math.inf


def test_a_consistent_joint_kernel_is_its_own_reverse():
    torch.manual_seed(0)
    model = harmonium.rbm(2, 2).double()
    for parameter in model.parameters():
        parameter.data.normal_()
    assert abs(exact.detailed_balance_gap(exact.enumerate_model(model).kernel)) < 1e-12
    kernel = JointKernel(model, reversible=True)
    assert kernel.reverse() is kernel
    data = {"x": torch.ones(20, 2), "y": torch.zeros(20, 2)}
    KernelLearner(kernel, data, q="reverse", batch_size=20).fit(3)
    with pytest.raises(pc.InputError, match="the reverse of a JointKernel is not known"):
        KernelLearner(JointKernel(model), data, q="reverse")


# --- gradients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["literal", "running"])
def test_the_learner_follows_the_gradient_of_the_bound(form):
    """With a step so small that the kernel stays, the mean of many updates is the expected gradient; "running" weighs
    the steps of a chain by the chance that it lasts so long."""
    kernel, n = log_linear(), 3
    q, data, rows = matrix(kernel), law(), 200_000
    index = torch.multinomial(data, rows, replacement=True, generator=torch.Generator().manual_seed(2))
    options = {"batch_size": rows, "form": form, "optimiser": partial(still, "kernel")}
    learner = KernelLearner(kernel, {"z": STATES[index]}, chain_length=n, **options)
    empirical = torch.bincount(index, minlength=8).double() / rows
    if form == "literal":
        before, after = learner._pairs(n)
        expected = expected_gradient(kernel, q, empirical, n) / n
    else:
        for _ in range(60):
            before, after = learner._pairs(n)
        laws = exact.trajectory(q, empirical, 80)
        ages = torch.stack([(1 / n) * (1 - 1 / n) ** k * r for k, r in enumerate(laws)]).sum(0)
        expected = expected_gradient(kernel, q, ages, 1)
    codes = torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64)
    cells = ((before["z"] @ codes) * 8 + after["z"] @ codes).long()
    each = torch.stack(  # the gradient of every possible pair
        [
            gradients(kernel, kernel.log_prob({"z": a[None]}, {"z": b[None]}).sum())
            for a, b in itertools.product(STATES, STATES)
        ]
    )
    # Pairs of one sequence depend on each other: average over it first.
    values = each[cells].view(n, rows, -1).mean(0) if form == "literal" else each[cells]
    assert_mean(values - expected, 0.0)


class Reverse(Kernel):
    """The exact reverse of a kernel over all states."""

    def __init__(self, kernel):
        super().__init__()
        self.transition = exact.reverse(matrix(kernel)).transition

    def _index(self, state):
        return (state["z"] @ torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64)).long()

    def sample(self, previous, generator):
        chosen = torch.multinomial(self.transition[self._index(previous)], 1, generator=generator)
        return {"z": STATES[chosen[:, 0]]}

    def log_prob(self, following, previous):
        return self.transition[self._index(previous), self._index(following)].log()


def limit(kernel):
    """The limiting distribution, so that it can be differentiated."""
    scores = [kernel.log_prob({"z": STATES}, {"z": state.expand_as(STATES)}) for state in STATES]
    system = torch.eye(8, dtype=torch.float64) - torch.stack(scores).exp() + 1
    return torch.linalg.solve(system.T, torch.ones(8, dtype=torch.float64))


@pytest.mark.parametrize("symmetric", [False, True])
def test_with_the_reverse_kernel_the_gradient_lacks_the_omitted_term_alone(symmetric):
    """The tight case: for every n, grad L - g is the gradient of the omitted term, exactly, and falls like
    |lambda_2|^n. (The reverse of a symmetric kernel is the kernel itself.)"""
    kernel, data = log_linear(3, symmetric=symmetric), law()
    q = matrix(kernel) if symmetric else exact.reverse(matrix(kernel))
    likelihood = gradients(kernel, (data * limit(kernel).log()).sum())
    sizes = {}
    for n in (1, 2, 5, 40):
        remainder = likelihood - expected_gradient(kernel, q, data, n)
        omitted = gradients(kernel, (exact.trajectory(q, data, n)[n] * limit(kernel).log()).sum())
        torch.testing.assert_close(remainder, omitted, rtol=0, atol=1e-10)
        sizes[n] = float(remainder.norm())
    assert sizes[1] > 1e-3
    assert sizes[40] <= 10 * sizes[1] * exact.mixing_rate(q) ** 39 + 1e-12


def test_a_reversible_kernel_is_its_own_reverse():
    """Symmetric W: q = "reverse" and q = "forward" draw the same sequences."""
    data = {"z": STATES.repeat(10, 1)}
    batches = []
    for q in ("forward", "reverse"):
        kernel = log_linear(symmetric=True)
        symmetrise = kernel.conditional.network.symmetrise
        learner = KernelLearner(kernel, data, q=q, batch_size=50, after_update=symmetrise)
        learner.fit(20)
        batches.append(learner.batch["z"])
        assert kernel.conditional.network.asymmetry() == 0
    assert torch.equal(*batches)


# --- learning ---------------------------------------------------------------------------------------------------


def spread(kernel, data):
    return exact.kl(data, exact.limiting(matrix(kernel)).flatten())


@pytest.mark.parametrize("q", ["forward", "reverse", "exact reverse"])
def test_every_choice_of_q_learns_the_limit(q):
    """The target is the limit of a symmetric log-linear kernel, so it can be reached."""
    target = exact.limiting(matrix(log_linear(5, symmetric=True)))
    index = torch.multinomial(target, 100_000, replacement=True, generator=torch.Generator().manual_seed(0))
    kernel = log_linear(7, 0.3, symmetric=q == "reverse")
    network = kernel.conditional.network
    before = spread(kernel, target)
    options = {"after_update": network.symmetrise} if q == "reverse" else {}
    rate = pc.schedules.cosine(0.02, 1e-4, 1200)
    learner = KernelLearner(
        kernel,
        {"z": STATES[index]},
        q="forward" if q == "exact reverse" else q,
        chain_length=6,
        batch_size=1000,
        learning_rate=rate,
        **options,
    )
    for _ in range(1200):
        if q == "exact reverse":
            learner.q = Reverse(kernel)
        learner.step()
    assert spread(kernel, target) < 0.01 < before
    if q == "forward":
        assert network.asymmetry() < 0.4 * log_linear(7, 0.3).conditional.network.asymmetry()


def test_a_fixed_kernel_leaves_a_gap_that_grows_linearly():
    """Example 1: with a q that only adds noise, L - L_B = n sum Q_n KL(q || p^r), which grows at a constant rate."""
    flip = 0.2
    distance = (STATES[:, None] - STATES[None]).abs().sum(2)
    noise = exact.MatrixKernel(flip**distance * (1 - flip) ** (BITS - distance))
    kernel, data = matrix(log_linear(2)), law()
    likelihood = exact.likelihood(data, kernel)
    reverse = exact.reverse(kernel).transition
    divergence = torch.xlogy(noise.transition, noise.transition / reverse).sum(1)

    def gap(n):
        return float(likelihood - exact.lower_bound(data, kernel, noise, n))

    for n in (1, 2, 5):
        along = sum(float(q @ divergence) for q in exact.trajectory(noise, data, n)[:n])
        assert gap(n) == pytest.approx(along, abs=1e-10)
    rate = float(divergence.mean())  # the limit of the noise is uniform; q_80 is within 0.6^80 of it
    assert rate > 0
    assert gap(100) - gap(80) == pytest.approx(20 * rate, abs=1e-10)


# --- the objective ----------------------------------------------------------------------------------------------


def test_the_objective_is_the_oracles():
    kernel, data, n, chains = log_linear(4), law(), 6, 60_000
    q = matrix(kernel)
    index = torch.multinomial(data, chains, replacement=True, generator=torch.Generator().manual_seed(0))
    found = objective(kernel, kernel, {"z": STATES[index]}, n, torch.Generator().manual_seed(1))
    for k in range(n):
        assert_mean(found.f[:, k], float(exact.f(data, q, q, k + 1)))
        assert_mean(found.f_hat[:, k], float(exact.f_hat(data, q, q, k + 1)))
    slope, error = found.slope()
    line = torch.stack([exact.f(data, q, q, k + 1) for k in range(n)])
    centred = torch.arange(n, dtype=torch.float64) - (n - 1) / 2
    assert abs(slope - float(line @ centred / centred.square().sum())) < 5 * error


def test_at_detailed_balance_the_objective_does_not_grow():
    kernel = log_linear(6, symmetric=True)
    limit = exact.limiting(matrix(kernel))
    index = torch.multinomial(limit, 20_000, replacement=True, generator=torch.Generator().manual_seed(0))
    slope, error = objective(kernel, kernel, {"z": STATES[index]}, 20, torch.Generator().manual_seed(1)).slope()
    assert abs(slope) < 5 * error
    skewed = log_linear(6)
    slope, error = objective(skewed, skewed, {"z": STATES[index]}, 20, torch.Generator().manual_seed(1)).slope()
    assert slope < -20 * error


def test_sequences_begin_at_their_start():
    kernel = log_linear()
    states = sequence(kernel, {"z": STATES}, 4, torch.Generator().manual_seed(0))
    assert len(states) == 5 and torch.equal(states[0]["z"], STATES)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"form": "short"}, "form must be one of running, literal, found 'short'"),
        ({"q": "backward"}, 'q must be "forward", "reverse" or a kernel'),
        ({"batch_size": 0}, "batch_size must be a whole number, at least 1"),
        ({"learning_rate": "fast"}, "learning_rate must be a number or a function of the step"),
        ({"chain_length": None}, "chain_length must be a number or a function of the step"),
        ({"q": "reverse"}, "the reverse of a FactorKernel is not known"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(pc.InputError, match=message):
        KernelLearner(log_linear(), {"z": STATES}, **options)
    learner = KernelLearner(log_linear(), {"z": STATES}, chain_length=lambda step: 0.5)
    with pytest.raises(pc.InputError, match=r"chain_length must be at least 1, found 0\.5 at step 0"):
        learner.step()


@pytest.mark.parametrize(
    "data, message",
    [
        (STATES, "data must be a dictionary by the names of groups, found Tensor"),
        ({"z": STATES[:0]}, "the data is empty"),
        ({}, "values of at least one group are needed"),
        ({"z": 2 * STATES - 1}, "'z' is binary: every observed value must be 0 or 1, found -1"),
        ({"z": STATES[:, :2]}, r"'z' must have shape \[batch, 3\], found \[8, 2\]"),
        ({"z": STATES / 0}, "'z' has NaN or infinite values"),
        ({"y": STATES}, "the kernel's only group is 'z', found 'y'"),
        ({"z": STATES, "y": STATES[:3]}, "groups differ in their number of rows"),
        (pc.Data({"z": STATES}, {"z": STATES > 0}), "'z' has missing values: a kernel takes none"),
    ],
)
def test_data_are_checked(data, message):
    with pytest.raises(pc.InputError, match=message):
        KernelLearner(log_linear(), data)
    with pytest.raises(pc.InputError, match=message):
        objective(log_linear(), log_linear(), data, 3, torch.Generator())


def test_data_of_joint_kernels_are_checked():
    kernel = JointKernel(table_model(random_tables((2, 3), 0)))
    with pytest.raises(pc.InputError, match="'b' is missing: a kernel takes whole states"):
        KernelLearner(kernel, {"a": torch.zeros(4).long()})
    with pytest.raises(pc.InputError, match="'b' has classes 0 to 2, found 3"):
        KernelLearner(kernel, {"a": torch.zeros(4).long(), "b": torch.full((4,), 3)})
    with pytest.raises(pc.InputError, match="unknown variable 'c'"):
        KernelLearner(kernel, {n: torch.zeros(4).long() for n in "abc"})


def test_data_may_be_of_any_type_that_has_the_values():
    """Booleans, float32 or Data: the same learning."""
    ends = []
    for data in ({"z": STATES > 0}, {"z": STATES.float()}, pc.Data({"z": STATES})):
        kernel = log_linear()
        KernelLearner(kernel, data, batch_size=20).fit(3)
        ends.append(kernel.conditional.network.weight.detach())
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[0], ends[2])


def test_what_is_no_kernel_is_refused():
    with pytest.raises(pc.InputError, match="kernel must be a Kernel, found LogLinear"):
        KernelLearner(LogLinear("z", BITS), {"z": STATES})
    with pytest.raises(pc.InputError, match="no parameter requires a gradient: call"):
        KernelLearner(log_linear().requires_grad_(False), {"z": STATES})
    kernel = log_linear()
    kernel.log_prob = lambda following, previous: torch.zeros(8, 1, requires_grad=True)
    with pytest.raises(
        pc.InputError, match=r"log_prob of FactorKernel must have one number per row, \[8\], found \[8, 1\]"
    ):
        KernelLearner(kernel, {"z": STATES}, batch_size=8).step()


def test_the_reverse_must_last():
    """A symmetric initial kernel is not enough: without a constraint the first update ends it."""
    with pytest.raises(pc.InputError, match="updates end the symmetry"):
        KernelLearner(log_linear(symmetric=True), {"z": STATES}, q="reverse")


def test_the_rate_is_the_optimisers_unless_one_is_given():
    def rate(**options):
        learner = KernelLearner(log_linear(), {"z": STATES}, **options)
        learner.step()
        return learner.optimiser.param_groups[0]["lr"]

    assert rate() == 1e-3
    assert rate(optimiser=lambda p: torch.optim.SGD(p, lr=0.5)) == 0.5
    assert rate(optimiser=lambda p: torch.optim.SGD(p, lr=0.5), learning_rate=0.25) == 0.25
    assert rate(learning_rate=pc.schedules.linear(0.5, 0.0, 10)) == 0.5


def test_draws_carry_no_gradient():
    class WeakCall(Reverse):
        def sample(self, previous, generator):
            return {"z": super().sample(previous, generator)["z"] * torch.ones((), requires_grad=True)}

    for form in ("running", "literal"):
        learner = KernelLearner(log_linear(), {"z": STATES}, q=WeakCall(log_linear()), form=form)
        assert not any(state["z"].requires_grad for state in learner._pairs(2))


def test_an_objective_needs_lengths_and_chains():
    kernel, generator = log_linear(), torch.Generator().manual_seed(0)
    with pytest.raises(pc.InputError, match="n must be a whole number, at least 1, found 0"):
        objective(kernel, kernel, {"z": STATES}, 0, generator)
    found = objective(kernel, kernel, {"z": STATES}, 3, generator)
    assert len(found.slope(2)) == 2
    for first in (3, 4):
        with pytest.raises(pc.InputError, match="a slope needs two lengths and two chains"):
            found.slope(first)
    with pytest.raises(pc.InputError, match="first must be a whole number, at least 1"):
        found.slope(0)
    with pytest.raises(pc.InputError, match="and 1 chains"):
        objective(kernel, kernel, {"z": STATES[:1]}, 3, generator).slope()


def test_a_loss_that_is_not_finite_stops():
    kernel = log_linear()
    kernel.conditional.network.bias.data.fill_(float("nan"))
    learner = KernelLearner(kernel, {"z": STATES})
    weight = kernel.conditional.network.weight.detach().clone()
    with pytest.raises(pc.NonFiniteError, match="the loss of 'z' is not finite at step 0"):
        learner.step()
    assert torch.equal(kernel.conditional.network.weight, weight)


def test_noise_must_be_noise():
    with pytest.raises(pc.InputError, match="the chance of a flip must be between 0 and 1, found 1"):
        noise.Flips("z", 1.0)
