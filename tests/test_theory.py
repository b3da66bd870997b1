"""The paper's theorem and propositions, as properties of random small models (Hypothesis)."""

import math

import pytest
import torch
from helpers import random_joint, random_tables
from hypothesis import given, settings
from hypothesis import strategies as st

from paracond import exact
from paracond.exact import GibbsKernel, MatrixKernel

SHAPES = st.sampled_from([(2, 2), (3, 2), (2, 3, 2), (2, 2, 2, 2), (4, 3)])
SEEDS = st.integers(0, 2**31)
STRENGTHS = st.sampled_from([0.3, 1.0, 2.0])
settings.register_profile("paracond", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("paracond")


def weights(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(torch.randn(len(shape), generator=generator, dtype=torch.float64), 0).tolist()


def common_joint_residual(tables):
    """How far log p_i(x) = phi(x) - psi_i(x_-i) is from solvable in phi and psi: zero iff a joint exists.

    Independent of any Markov chain: a plain linear least-squares problem for positive conditionals.
    """
    shape, size = tables[0].shape, tables[0].numel()
    index = torch.arange(size).view(shape)
    rows, target = [], []
    for i, table in enumerate(tables):
        rest = index.select(i, 0).flatten()
        phi = torch.eye(size, dtype=torch.float64)
        lowest = index.index_select(i, torch.tensor([0])).expand(shape).flatten()
        psi = torch.zeros(size, len(tables) * size, dtype=torch.float64)
        psi[torch.arange(size), i * size + lowest] = -1
        assert len(rest) == size // shape[i]
        rows.append(torch.cat([phi, psi], 1))
        target.append(table.log().flatten())
    matrix, right = torch.cat(rows), torch.cat(target)
    solution = torch.linalg.lstsq(matrix, right.unsqueeze(1), driver="gelsd").solution
    return float((matrix @ solution - right.unsqueeze(1)).abs().max())


@given(SHAPES, SEEDS, STRENGTHS)
def test_kernels_are_stochastic_and_limits_stationary(shape, seed, strength):
    kernel = GibbsKernel(random_tables(shape, seed, strength), weights(shape, seed))
    p = exact.limiting(kernel)
    torch.testing.assert_close(kernel.matrix().sum(1), torch.ones(p.numel(), dtype=torch.float64))
    torch.testing.assert_close(kernel.push(p), p, rtol=1e-9, atol=1e-12)


@given(SHAPES, SEEDS, STRENGTHS)
def test_theorem_1_consistent_conditionals_balance(shape, seed, strength):
    """Consistent => detailed balance, the limit is the joint and has the model's conditionals, whatever alpha is."""
    joint = random_joint(shape, seed, strength)
    tables = exact.conditionals(joint)
    assert common_joint_residual(tables) < 1e-9
    kernel = GibbsKernel(tables, weights(shape, seed))
    p = exact.limiting(kernel)
    torch.testing.assert_close(p, joint, rtol=1e-8, atol=1e-12)
    flow = p.flatten()[:, None] * kernel.matrix()
    assert float((flow - flow.T).abs().max()) < 1e-12
    assert abs(exact.detailed_balance_gap(kernel)) < 1e-10
    assert exact.consistency_gap(kernel) < 1e-8


@given(SHAPES, SEEDS, STRENGTHS)
def test_theorem_1_balance_needs_consistency(shape, seed, strength):
    """Not consistent => no detailed balance, and the limiting conditionals are not the model's."""
    tables = random_tables(shape, seed, strength)
    assert common_joint_residual(tables) > 1e-6
    kernel = GibbsKernel(tables, weights(shape, seed))
    p = exact.limiting(kernel)
    flow = p.flatten()[:, None] * kernel.matrix()
    assert float((flow - flow.T).abs().max()) > 1e-9
    assert exact.detailed_balance_gap(kernel) > 0
    assert exact.consistency_gap(kernel) > 1e-8


@given(SHAPES, SEEDS, st.integers(1, 6))
def test_proposition_kl_form_of_the_bound(shape, seed, n):
    """prop:KL: eq:chain equals eq:chain_kl, and both are under L; the KL terms here come from an explicit reverse."""
    p, q = (
        GibbsKernel(random_tables(shape, seed), weights(shape, seed)),
        GibbsKernel(random_tables(shape, seed + 1), weights(shape, seed + 1)),
    )
    data = random_joint(shape, seed + 2)
    bound = exact.lower_bound(data, p, q, n)
    laws, forward, reverse = exact.trajectory(q, data, n), q.matrix(), exact.reverse(p).transition
    divergence = (torch.xlogy(forward, forward) - torch.xlogy(forward, reverse)).sum(1)
    total = sum((law.flatten() * divergence).sum() for law in laws[:n])
    torch.testing.assert_close(bound, exact.likelihood(data, p) - total, rtol=0, atol=1e-10)
    assert float(bound) <= float(exact.likelihood(data, p)) + 1e-12


@given(SHAPES, SEEDS, st.integers(1, 6))
def test_the_bound_is_tight_for_the_reverse_kernel(shape, seed, n):
    p = GibbsKernel(random_tables(shape, seed), weights(shape, seed))
    data = random_joint(shape, seed + 2).flatten()
    dense = MatrixKernel(p.matrix())
    bound = exact.lower_bound(data, dense, exact.reverse(p), n)
    torch.testing.assert_close(bound, exact.likelihood(data, dense), rtol=0, atol=1e-10)


def transition(logits, alpha):
    """eq:gibbs_transition from logits of the conditionals, [from, to]; it can be differentiated."""
    tables = [torch.softmax(t, i) for i, t in enumerate(logits)]
    size = tables[0].numel()
    rows = [
        sum(a * t * r.sum(i, keepdim=True) for i, (a, t) in enumerate(zip(alpha, tables, strict=True))).flatten()
        for r in torch.eye(size, dtype=torch.float64).view(size, *tables[0].shape)
    ]
    return torch.stack(rows)


def omitted_norms(shape, seed, steps):
    """|grad sum q_n(x) log p_theta(x)|_1 with q = p, for n = 1, ..., steps, and the eigenvalues of p, largest first."""
    logits = [t.log().requires_grad_() for t in random_tables(shape, seed)]
    matrix = transition(logits, weights(shape, seed))
    size = len(matrix)
    system = torch.eye(size, dtype=torch.float64) - matrix + 1
    log_p = torch.linalg.solve(system.T, torch.ones(size, dtype=torch.float64)).log()
    law, norms = random_joint(shape, seed + 2).flatten(), []
    for _ in range(steps):
        grads = torch.autograd.grad((law * log_p).sum(), logits, retain_graph=True)
        norms.append(float(torch.cat([g.flatten() for g in grads]).abs().sum()))
        law = law @ matrix.detach()
    values = torch.linalg.eigvals(matrix.detach())
    return norms, values[values.abs().argsort(descending=True)]


@given(st.sampled_from([(2, 2), (3, 2), (2, 2, 2)]), SEEDS)
@settings(max_examples=15)
def test_proposition_zero_bounds_the_omitted_gradient(shape, seed):
    """P:zero with q = p: |grad sum q_n(x) log p_theta(x)| <= C rate^n, rate the kernel's second eigenvalue."""
    norms, values = omitted_norms(shape, seed, 41)
    rate = float(values[1].abs())
    constant = 3 * max(norms[0], norms[10] / rate**10)  # non-normal kernels may rise before they fall
    for n in (20, 40):
        assert norms[n] <= constant * (rate + 0.01) ** n + 1e-11


@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (2, 2, 2)])
def test_proposition_zero_the_omitted_gradient_falls_like_the_second_eigenvalue(shape):
    """Where that is real and the third is far from it, so that it alone is left before rounding."""
    compared = 0
    for seed in range(40):
        norms, values = omitted_norms(shape, seed, 60)
        second, third = float(values[1].abs()), float(values[2].abs())
        usable = sum(norm > 1e-9 for norm in norms)
        if float(values[1].imag.abs()) > 1e-12 or (third / second) ** (usable // 2) > 1e-3:
            continue
        first = usable // 2
        fitted = (norms[usable - 1] / norms[first]) ** (1 / (usable - 1 - first))
        assert fitted == pytest.approx(second, rel=0.01)
        compared += 1
    assert compared >= 5


@given(SHAPES, SEEDS, STRENGTHS)
def test_proposition_hat_f_orders_the_approximations(shape, seed, strength):
    """Prop:hatF, q = p, n -> infinity: F-hat - L_B -> H, F - L_B -> I, so L_B <= F <= F-hat."""
    kernel = GibbsKernel(random_tables(shape, seed, strength), weights(shape, seed))
    p = exact.limiting(kernel)
    n = math.ceil(math.log(1e-12) / math.log(exact.mixing_rate(kernel)))  # where q_n is the limit, to rounding
    data = random_joint(shape, seed + 2)
    bound, f, f_hat = (fn(data, kernel, kernel, n) for fn in (exact.lower_bound, exact.f, exact.f_hat))
    entropy = -torch.xlogy(p, p).sum()
    pair = p.flatten()[:, None] * kernel.matrix()
    information = torch.xlogy(pair, pair).sum() + 2 * entropy
    torch.testing.assert_close(f_hat - bound, entropy, rtol=0, atol=1e-10)
    torch.testing.assert_close(f - bound, information, rtol=0, atol=1e-10)
    assert float(bound) <= float(f) + 1e-10 <= float(f_hat) + 2e-10


@given(SHAPES, SEEDS, STRENGTHS)
def test_pseudo_likelihood_is_the_chain_of_length_one(shape, seed, strength):
    """Example 2: for n = 1 and q = p, the gradient of E log p(x_1 | x_2), x_2 ~ q(. | x_1), is that of the mean of
    log p_i(x_i | x_-i)."""
    logits = [t.log().requires_grad_() for t in random_tables(shape, seed, strength)]
    alpha, data = weights(shape, seed), random_joint(shape, seed + 1)
    matrix = transition(logits, alpha)
    pairs = data.flatten()[:, None] * matrix.detach()
    chain = (pairs * torch.where(pairs > 0, matrix.T, 1.0).log()).sum()
    tables = [torch.softmax(t, i) for i, t in enumerate(logits)]
    pseudo = sum(a * (data * t.log()).sum() for a, t in zip(alpha, tables, strict=True))
    for ours, theirs in zip(*(torch.autograd.grad(value, logits) for value in (chain, pseudo)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
