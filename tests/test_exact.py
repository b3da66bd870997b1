"""The oracle against plain definitions, written out with dense matrices and explicit loops."""

import itertools
import time

import pytest
import torch
from helpers import Pairwise, random_joint, random_tables, table_model

import paracond as pc
from paracond import exact
from paracond.exact import GibbsKernel, MatrixKernel

SHAPE = (2, 3, 2)
ALPHA = [0.5, 0.2, 0.3]


def written_out(tables, alpha):
    """eq:gibbs_transition term by term: K[from, to] = sum_i alpha_i p_i(to_i | to_-i) [to_-i = from_-i]."""
    states = list(itertools.product(*[range(k) for k in tables[0].shape]))
    matrix = torch.zeros(len(states), len(states), dtype=torch.float64)
    for a, old in enumerate(states):
        for b, new in enumerate(states):
            for i, weight in enumerate(alpha):
                if all(old[j] == new[j] for j in range(len(old)) if j != i):
                    matrix[a, b] += weight * tables[i][new]
    return matrix


def test_kernel_matrix_is_the_definition():
    tables = random_tables(SHAPE, 0)
    kernel = GibbsKernel(tables, ALPHA)
    torch.testing.assert_close(kernel.matrix(), written_out(tables, ALPHA), rtol=0, atol=1e-14)
    torch.testing.assert_close(kernel.matrix().sum(1), torch.ones(12, dtype=torch.float64))
    torch.testing.assert_close(kernel.matrix().diag(), kernel.stay.flatten())


def test_gibbs_scores_equal_the_dense_ones():
    p, q = GibbsKernel(random_tables(SHAPE, 0), ALPHA), GibbsKernel(random_tables(SHAPE, 1), [0.2, 0.2, 0.6])
    dense_p, dense_q = MatrixKernel(p.matrix()), MatrixKernel(q.matrix())
    weights = random_joint(SHAPE, 2)
    torch.testing.assert_close(q.push(weights).flatten(), dense_q.push(weights.flatten()))
    torch.testing.assert_close(q.forward_score(weights), dense_q.forward_score(weights.flatten()))
    torch.testing.assert_close(q.backward_score(weights, p), dense_q.backward_score(weights.flatten(), dense_p))


def test_limiting_distribution_and_its_reverse():
    kernel = GibbsKernel(random_tables(SHAPE, 3), ALPHA)
    p = exact.limiting(kernel)
    torch.testing.assert_close(p.flatten(), torch.linalg.matrix_power(kernel.matrix(), 4096)[0])
    reverse = exact.reverse(kernel)
    torch.testing.assert_close(reverse.transition.sum(1), torch.ones(12, dtype=torch.float64))
    torch.testing.assert_close(exact.limiting(reverse), p.flatten())
    flow = p.flatten()[:, None] * kernel.matrix()
    torch.testing.assert_close(p.flatten()[:, None] * reverse.transition, flow.T)


def test_detailed_balance_gap_is_the_divergence_from_the_reverse_kernel():
    kernel = GibbsKernel(random_tables(SHAPE, 4), ALPHA)
    p, forward, reverse = exact.limiting(kernel).flatten(), kernel.matrix(), exact.reverse(kernel).transition
    divergence = (p[:, None] * (torch.xlogy(forward, forward) - torch.xlogy(forward, reverse))).sum()
    assert exact.detailed_balance_gap(kernel) == pytest.approx(float(divergence), abs=1e-12)
    assert exact.detailed_balance_gap(kernel) == pytest.approx(
        exact.detailed_balance_gap(MatrixKernel(forward)), abs=1e-12
    )


@pytest.mark.parametrize("bits", [2, 6])
def test_mixing_rate_of_independent_bits(bits):
    """Two independent groups, redrawn with probability alpha: the slowest mode decays by 1 - min(alpha)."""
    shape = (2**bits, 2**bits)
    joint = random_joint(shape[:1], 0)[:, None] * random_joint(shape[1:], 1)[None]
    kernel = GibbsKernel(exact.conditionals(joint), [0.7, 0.3])
    assert exact.mixing_rate(kernel) == pytest.approx(0.7, abs=1e-9)


def test_a_reducible_chain_is_refused():
    with pytest.raises(pc.InputError, match="every state from every other"):
        exact.limiting(MatrixKernel(torch.eye(4, dtype=torch.float64)))


def test_a_large_reducible_chain_is_refused_too():
    size = 64
    copies = torch.eye(size, dtype=torch.float64)
    with pytest.raises(pc.InputError, match="unique"):
        exact.limiting(GibbsKernel([copies, copies], [0.5, 0.5]))


def test_enumeration_of_a_model_reads_its_conditionals():
    tables = random_tables(SHAPE, 5)
    finite = exact.enumerate_model(table_model(tables, ALPHA))
    for ours, given in zip(finite.kernel.tables, tables, strict=True):
        torch.testing.assert_close(ours, given)
    assert list(finite.kernel.alpha) == pytest.approx(ALPHA)
    assert finite.names == ("a", "b", "c")


def test_enumeration_of_groups_with_several_coordinates():
    pair = Pairwise({"u": pc.Binary(3), "c": pc.Categorical(3), "w": pc.Binary((2, 1))}, seed=0)
    finite = exact.enumerate_model(pair.model)
    _, p, _ = pair.joint()
    torch.testing.assert_close(finite.limiting().flatten(), p)
    assert exact.consistency_gap(finite.kernel) < 1e-8
    given = {"u": pc.Observed(torch.tensor([1.0, 0.0, 1.0]), torch.tensor([True, False, True]))}
    fits = (finite.states["u"][:, 0] == 1) & (finite.states["u"][:, 2] == 1)
    torch.testing.assert_close(finite.posterior(given).flatten(), p * fits / (p * fits).sum())
    clamped, left = finite.clamped(given)
    assert left["u"].tolist() == [[1, 0, 1], [1, 1, 1]]
    # For a consistent model the clamped chain's limit is the posterior.
    torch.testing.assert_close(exact.limiting(clamped).flatten(), (p * fits / (p * fits).sum())[fits])
    torch.testing.assert_close(finite.marginal(finite.limiting(), "c"), finite.limiting().sum([0, 2]))


@pytest.mark.parametrize(
    "variables",
    [{f"b{i}": pc.Binary(1) for i in range(16)}, {"u": pc.Binary(8), "v": pc.Binary(8)}],
    ids=["16 groups", "2 groups"],
)
def test_two_to_the_sixteenth_states_in_seconds(variables):
    pair = Pairwise(variables, seed=1, strength=0.3)
    began = time.perf_counter()
    finite = exact.enumerate_model(pair.model)
    p = finite.limiting()
    gap = exact.detailed_balance_gap(finite.kernel)
    data = torch.full(p.shape, 1 / p.numel(), dtype=torch.float64)
    bound = exact.lower_bound(data, finite.kernel, finite.kernel, 4)
    assert time.perf_counter() - began < 60  # about 5 s on an idle machine; the margin is for a busy one
    _, joint, _ = pair.joint()
    torch.testing.assert_close(p.flatten(), joint, rtol=1e-6, atol=1e-12)
    assert abs(gap) < 1e-9
    assert float(bound) == pytest.approx(float(exact.likelihood(data, finite.kernel)), abs=1e-6)
    with pytest.raises(pc.InputError, match="would not fit"):
        finite.kernel.matrix()


def test_too_many_states_are_refused():
    with pytest.raises(pc.InputError, match="too many to enumerate"):
        exact.enumerate_model(Pairwise({"u": pc.Binary(9), "v": pc.Binary(9)}).model)
    with pytest.raises(pc.InputError, match="no finite set of values"):
        exact.enumerate_model(Pairwise({"u": pc.Binary(2), "v": pc.Real(2, scale=1.0)}).model)
