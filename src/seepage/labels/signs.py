"""Label counts after steps of Adam, which leaves little more than signs of what the last layer learnt.

The gradient of the weight from feature j to class c is the mean over the batch of (p_c - y_c) f_j, that of
the bias the mean of p_c - y_c (Zhao et al. 2020, eq. 4).
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.core.errors import NotApplicable
from seepage.labels.gradient import Evidence

_BISECTIONS = 60
"""Halvings of the interval that v lies in. Derived: beyond the digits of a double."""
_WIDEST = 100.0
"""The largest v. Derived: with it a share just above 1/2 stands for thousands of examples."""


def sign_counts(evidence: Evidence, num_examples: int) -> Tensor:
    """(C,) real-valued counts that sum to `num_examples`, where every step takes all of them.

    With k of n examples in class c its weights rise where these hold more than p_c n times the mean feature.
    Were the features of examples independent with a deviation of v times their mean, that would be the share

        q_c = Phi((k_c - p_c n) / (v sqrt(k_c)))

    of all features; so k_c follows from q_c, and v from the counts' sum, which is n.

    >>> from seepage.labels.gradient import Probe
    >>> weight = torch.tensor([[0.1, 0.1], [-0.1, -0.1], [-0.1, -0.1]]).double()
    >>> zeros = torch.zeros(3, 2).double()
    >>> probe = Probe(weight=zeros, bias=zeros[:, 0], features=torch.ones(4, 2).double(), share=1.0)
    >>> seen = Evidence(weight=weight, bias=weight[:, 0], probes=(probe,), probe_labels=None, notes=())
    >>> sign_counts(seen, 2)
    tensor([2., 0., 0.], dtype=torch.float64)
    """
    expected = _predicted(evidence) * num_examples
    feature, weights = _mean_feature(evidence)
    share = (evidence.weight * feature.sign() > 0).double() @ weights
    absent = share <= 0 if evidence.bias is None else (share <= 0) & (evidence.bias <= 0)
    if bool(absent.all()):
        raise NotApplicable(
            "Label counts cannot be read: no output's weights rose, as at least one does after local "
            "training; check what kind of update this is."
        )
    features = float(1 / weights.square().sum().clamp(min=1e-30))
    normal = torch.special.ndtri(share.clamp(0.5 / features, 1 - 0.5 / features))

    def counts(deviation: float) -> Tensor:
        root = (deviation * normal + (deviation**2 * normal.square() + 4 * expected).sqrt()) / 2
        return torch.where(absent, torch.zeros_like(root), root.square())

    low, high = 0.0, _WIDEST  # at 0 the classes that are there have p_c n, which is n at most in all
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if float(counts(middle).sum()) < num_examples else (low, middle)
    found = counts(low)
    return found * (num_examples / found.sum())


def mini_batch_counts(evidence: Evidence, num_examples: int, *, batch: int, way: float) -> Tensor:
    """The same where steps take mini-batches, drawn at random.

    batch: examples of one. way: how far a weight goes whose gradient keeps its sign, the sum of the rates.
    Adam moves a bias by the mean of its gradients over their root mean square. Over mini-batches of b with a
    share s_c of class c these have mean p_c - s_c and variance s_c (1 - s_c) / b, so it goes a part

        u_c = (s_c - p_c) / sqrt((s_c - p_c)^2 + s_c (1 - s_c) / b)

    of the way: a quadratic equation for s_c.

    >>> from seepage.labels.gradient import Probe
    >>> s, p, b = torch.tensor([0.5, 0.3, 0.2]).double(), torch.full((3,), 1 / 3).double(), 4
    >>> rise = (s - p) / ((s - p).square() + s * (1 - s) / b).sqrt()
    >>> zeros = torch.zeros(3, 2).double()
    >>> probe = Probe(weight=zeros, bias=zeros[:, 0], features=torch.ones(4, 2).double(), share=1.0)
    >>> seen = Evidence(weight=zeros, bias=rise, probes=(probe,), probe_labels=None, notes=())
    >>> torch.allclose(mini_batch_counts(seen, 10, batch=b, way=1.0), 10 * s)
    True
    """
    p = _predicted(evidence)
    rise = evidence.bias
    if rise is None:
        feature, weights = _mean_feature(evidence)
        rise = (evidence.weight * feature.sign()) @ weights
    squared = (rise / way).square().clamp(max=1.0)
    apart = (1 - squared) * batch
    a, b, c = apart + squared, 2 * p * apart + squared, p.square() * apart
    root = (b.square() - 4 * a * c).clamp(min=0).sqrt()
    shares = (b + torch.where(rise > 0, root, -root)) / (2 * a).clamp(min=1e-30)
    return shares * (num_examples / shares.sum().clamp(min=1e-30))


def _predicted(evidence: Evidence) -> Tensor:
    """(C,) mean prediction of the received model: Adam's steps are short."""
    received = evidence.probes[0]
    return received.softmax(received.features).mean(0)


def _mean_feature(evidence: Evidence) -> tuple[Tensor, Tensor]:
    """(d,) and the weight of each feature: one that is never on says nothing."""
    feature = evidence.probes[0].features.mean(0)
    return feature, feature.abs() / feature.abs().sum().clamp(min=1e-30)
