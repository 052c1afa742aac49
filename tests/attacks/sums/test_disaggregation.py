"""Sums taken apart, against the clients' own updates."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.attacks.sums.test_model_inconsistency import clients_of, dense, misses, played, told

from seepage.attacks.sums.disaggregation import gradient_disaggregation, taken_apart
from seepage.attacks.sums.separate import participation_by_counts, separated
from seepage.core.errors import NotApplicable
from seepage.core.types import Broadcast, LocalTraining
from seepage.protocol import local_update


@pytest.mark.parametrize("local", [LocalTraining(), LocalTraining(algorithm="fedavg", lr=0.1)])
def test_the_updates_of_clients_of_any_size_come_out_of_their_sums(local: LocalTraining) -> None:
    batches, known, attack = clients_of(2, 5, 4, 3), told(local), gradient_disaggregation()
    seen = played(attack, batches, known)
    assert [e.clients for e in seen.exchanges] == [(0, 1, 2, 3), (1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2)]
    for one, batch in zip(taken_apart(seen.exchanges), batches, strict=True):
        own = local_update(Broadcast(dense()), batch, local)
        assert one.update.num_examples == own.num_examples
        for name, tensor in own.tensors.items():
            assert torch.allclose(one.update.tensors[name], tensor, rtol=1e-4, atol=1e-6)
    found = attack.run(seen.exchanges, known)
    far = misses(found.values, batches)
    assert bool((far.amin(dim=0) < 1e-3).all())
    # off a grid weight differences are too coarse to be vouched for
    assert found.claimed is not None
    assert int(found.claimed.sum()) >= 12 or local.algorithm == "fedavg"
    assert bool((far.amin(dim=1)[found.claimed] < 1e-3).all())


def test_other_batches_in_each_round_are_noticed() -> None:
    attack, known = gradient_disaggregation(), told(LocalTraining())
    seen = list(played(attack, clients_of(3, 3, 3), known).exchanges)
    others = list(played(attack, clients_of(3, 3, 3, seed=1), known).exchanges)
    with pytest.raises(NotApplicable, match="contradict each other"):
        attack.run([*seen[:2], *others[2:]], known)
    smaller = replace(seen[1], update=replace(seen[1].update, num_examples=5))
    with pytest.raises(NotApplicable, match="contradict each other"):
        attack.run([seen[0], smaller, *seen[2:]], known)


def test_a_demand_that_all_take_part_prevents_it_and_so_do_two_clients() -> None:
    attack, known = gradient_disaggregation(), told(LocalTraining())
    with pytest.raises(NotApplicable, match="they demand 3"):
        played(attack, clients_of(2, 2, 2), known, minimum_honest=3)
    with pytest.raises(NotApplicable, match="three clients or more"):
        played(attack, clients_of(2, 2), known)
    with pytest.raises(NotApplicable, match="target_client"):
        played(attack, clients_of(2, 2, 2), known, deny=["choose_clients"])


def test_too_few_rounds_are_refused() -> None:
    with pytest.raises(NotApplicable, match="tell only 2 of 3 clients apart"):
        separated(torch.ones(2, 5), torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]))


@pytest.mark.parametrize("seed", range(4))
def test_who_took_part_is_found_by_counts_alone(seed: int) -> None:
    """Lam et al. 2021: 40 rounds, 8 clients, half of them in each round, counts of every 10 rounds."""
    generator = torch.Generator().manual_seed(seed)
    took_part = (torch.rand(40, 8, generator=generator) < 0.5).double()
    each = torch.randn(8, 60, generator=generator)
    sums = (took_part.float() @ each).float()  # as clients send them
    windows = [range(start, start + 10) for start in range(0, 40, 10)]
    counts = torch.stack([took_part[list(window)].sum(dim=0) for window in windows], dim=1)
    found = participation_by_counts(sums, windows, counts)
    assert torch.equal(found, took_part)
    assert torch.allclose(separated(sums, found)[0].float(), each, atol=1e-4)
    wrong = counts.clone()
    wrong[0, 0] = (wrong[0, 0] + 5) % 10
    with pytest.raises(NotApplicable, match="patterns of participation explain the sums"):
        participation_by_counts(sums, windows, wrong)
    with pytest.raises(NotApplicable, match="more rounds than clients"):
        participation_by_counts(sums[:8], [range(8)], counts[:, :1])
