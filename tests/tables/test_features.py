"""A network's features as data: the layer alone sends what the whole network sends."""

import torch
from tests.tables.small import net
from torch import nn

from seepage.attacks.fishing.head import cut_head, find_head
from seepage.core.types import Batch, Broadcast, LocalTraining
from seepage.data import load_data
from seepage.protocol import local_update
from seepage.tables.features import classification_layer, compute_features, features_of, features_under


def test_the_layer_alone_sends_what_the_whole_network_sends():
    digits, model, index = load_data("digits"), net(), torch.arange(12)
    world = compute_features(digits, model)
    features = world.dataset.inputs
    direction = nn.functional.one_hot(torch.tensor(5), 24).double()
    head, alone = find_head(model, digits.spec), find_head(world.layer, world.dataset.spec)
    cut = {"direction": direction, "beta": 1e6, "theta": float(features[index, 5].median()) + 1e-3}
    whole, layer = cut_head(model, head, 3, **cut), cut_head(world.layer, alone, 3, **cut)
    real = local_update(Broadcast(whole), digits.batch(index), LocalTraining()).tensors
    own = Batch(features[index], digits.labels[index])
    ours = local_update(Broadcast(layer), own, LocalTraining()).tensors
    assert real[head.weight].abs().max() > 0.01  # otherwise this would compare nothing
    assert torch.allclose(real[head.weight], ours[alone.weight], atol=1e-6)
    assert torch.allclose(real[head.bias], ours[alone.bias], atol=1e-6)


def test_data_and_model_of_an_audit_belong_together():
    options = {"of": {"name": "digits"}, "network": {"name": "tests.tables.small:net"}}
    data = features_of(**options)
    layer = classification_layer(data.spec, **options)
    assert torch.allclose(layer(data.inputs[:5]), net()(load_data("digits").inputs[:5]), atol=1e-5)
    with torch.no_grad():
        layer.classify.weight.zero_()  # a copy: the next one is whole
    assert classification_layer(data.spec, **options).classify.weight.abs().max() > 0


def test_features_are_computed_once_for_a_network_and_its_data():
    digits, model = load_data("digits"), net()
    first = features_under(model, digits)
    assert features_under(net(), digits) is first  # the same weights
    with torch.no_grad():
        model[3].bias.add_(1)
    assert features_under(model, digits) is not first
