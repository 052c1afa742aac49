"""What label inference works from: the last layer's mean gradient, and the server's own probes.

Gradient and delta, mean and sum, softmax and single logit are all brought to one form here, so that the
methods see one thing only: the gradient of the *mean* loss of a softmax layer, in double precision.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from seepage.core.errors import DataError, NotApplicable
from seepage.core.types import Batch, Exchange, Knowledge, Modality, UpdateKind
from seepage.labels.gradient import SUM_LOSSES, Evidence, Probe, local_path, mean_gradient
from seepage.labels.replay import Stage
from seepage.models.hooks import watching
from seepage.models.layers import LinearLayer, output_layer, trace_linear_layers
from seepage.models.probes import dummy_inputs, run_model
from seepage.models.remembered import remembered
from seepage.protocol import training_mode

NOISE_PROBES = 256
"""Noise examples that are probed. Derived: the error of their mean prediction falls as the root of their
number, to a sixteenth of one example's."""
FEWEST_PROBES = 32
"""Noise examples that are probed whatever it costs. Derived: the same, to less than a fifth."""
PROBE_OPERATIONS = 10_400_000_000
"""Multiplications that noise probes may take. Cost: a second on one core; a ResNet-20 is probed with all of
them, wider models with fewer."""
PATH_PASSES = 2
"""Times that the way of local training is played through. Cost: the second starts from the counts of the
first; each probes the model at up to eight states."""
STAND_INS = 16
"""Noise examples that stand for the client's in a replay. Cost: time and memory."""
FEWEST_STAND_INS = 4
"""Stand-ins below which nothing is replayed. Cost: see `REPLAY_OPERATIONS`."""
STAND_IN_STEPS = 6
"""Runs forward and back of all replays together, for each local step. Cost: what they take is reckoned by
it."""
REPLAY_OPERATIONS = 40_000_000_000
"""Floating-point operations that replays of a client's training may take. Cost: seconds on one core."""


@dataclass(frozen=True)
class Probes:
    """Examples that the server runs through the model in place of the clients'."""

    inputs: Tensor
    labels: Tensor | None
    """(m,) their classes, where they are auxiliary data."""
    note: str = ""


def gather_evidence(
    exchange: Exchange, known: Knowledge, *, probes: Probes | None = None, by_signs: bool = False
) -> Evidence:
    """Traces the broadcast model, checks the update against it, and probes the last layer.

    probes: in place of the auxiliary examples, or of noise where there are none.
    by_signs: the bias gradient's signs are all that is wanted, if there are any. Then one probe does, which
    shows that the model ends in this layer.
    """
    model = exchange.broadcast.model
    layer = output_layer(trace_linear_layers(model, known.input), num_classes=known.input.num_classes)
    if not layer.per_example:
        raise NotApplicable(
            f"The last layer '{layer.name}' is applied at several positions of an example, so its gradient "
            "does not count examples: use a model with one output per example."
        )
    weight = _read(exchange.update.tensors, layer.weight, (layer.out_features, layer.in_features))
    bias = None if layer.bias is None else _read(exchange.update.tensors, layer.bias, (layer.out_features,))
    if not weight.any():
        raise NotApplicable(
            f"The update of the last layer '{layer.name}' is zero, so it carries no labels: the layer was "
            "frozen or its update was withheld."
        )
    if probes is None:
        enough = by_signs and bias is not None and exchange.update.kind is UpdateKind.GRADIENT
        probes = _one_probe(known, model) if enough else _probes(known, model)
    shown = probes
    received: dict[str, Tensor] = {name: value.detach() for name, value in model.named_parameters()}
    delta = exchange.update.tensors if exchange.update.kind is UpdateKind.DELTA else {}

    def probe_at(fraction: float, share: float) -> Probe:
        if fraction == 0:  # the same for every update of this broadcast
            key = ("received", layer.name, id(shown))
            _, probe = remembered(model, key, lambda: (shown, _probe(model, layer, received, shown.inputs)))
        else:
            probe = _probe(model, layer, _moved(received, delta, fraction), shown.inputs)
        return replace(probe, share=share)

    def probes_at(path: list[tuple[float, float]]) -> tuple[Probe, ...]:
        return tuple(probe_at(fraction, share) for fraction, share in path)

    single = layer.out_features == 1
    evidence = Evidence(
        weight=_two_rows(weight) if single else weight,
        bias=None if bias is None else _two_rows(bias) if single else bias,
        probes=probes_at([(0.0, 0.5), (1.0, 0.5)] if delta else [(0.0, 1.0)]),
        probe_labels=shown.labels,
        notes=(shown.note,) if shown.note else (),
    )
    n = exchange.update.num_examples
    if not delta or known.local is None or n is None or n < 1:
        return evidence
    for _ in range(PATH_PASSES):
        gradient = mean_gradient(evidence, exchange, known, n)
        counts = (evidence.mean_prediction() - evidence.bias_gradient(gradient)).clamp(min=0)
        path = local_path(
            evidence,
            counts / counts.sum(),
            known.local,
            max(1, round(n / max(1, len(exchange.clients)))),
            summed=known.loss in SUM_LOSSES,
            single=single,
        )
        evidence = replace(evidence, probes=probes_at(path))
    return evidence


def replay_stage(exchange: Exchange, known: Knowledge) -> Stage | None:
    """What is needed to replay local training; None where there is but one step, or at too high a cost."""
    stage = _full_stage(exchange, known)
    if stage is None:
        return None
    with FlopCounterMode(display=False) as counter, torch.no_grad(), training_mode(stage.model, False):
        stage.model(stage.inputs[:1])
    # backward costs twice what forward does
    once = 3 * STAND_IN_STEPS * len(stage.scales) * counter.get_total_flops()
    affordable = REPLAY_OPERATIONS // max(1, once)
    if affordable < FEWEST_STAND_INS:
        return None
    if stage.labels is None:
        return replace(stage, inputs=stage.inputs[: min(STAND_INS, affordable)])
    return stage if len(stage.inputs) <= affordable else None


def example_stage(exchange: Exchange, known: Knowledge) -> Stage | None:
    """A stage with as many stand-ins as one client has examples; None where several clients are summed."""
    stage = _full_stage(exchange, known)
    if stage is None or len(exchange.clients) > 1 or known.input.modality is Modality.TEXT:
        return None
    noise = dummy_inputs(
        known.input, stage.num_examples, like=stage.model, seed=known.seed, model_units=known.normalised
    )
    return replace(stage, inputs=noise, labels=None)


def _full_stage(exchange: Exchange, known: Knowledge) -> Stage | None:
    """With all probe inputs as stand-ins."""
    model, n = exchange.broadcast.model, exchange.update.num_examples
    if exchange.update.kind is not UpdateKind.DELTA or known.local is None or n is None:
        return None
    per_client = max(1, round(n / max(1, len(exchange.clients))))
    if known.local.num_steps(per_client) < 2:
        return None
    shown = _probes(known, model)
    layers = trace_linear_layers(model, known.input)
    entry = layers[0] if layers[0].reads == "input" and layers[0].per_example else None
    return Stage(
        model=model,
        layer=output_layer(layers, num_classes=known.input.num_classes),
        entry=entry,
        inputs=shown.inputs,
        labels=shown.labels,
        local=known.local,
        loss=known.loss,
        num_examples=per_client,
        sent=exchange.update.tensors,
    )


def _moved(received: Mapping[str, Tensor], delta: Mapping[str, Tensor], fraction: float) -> dict[str, Tensor]:
    """Received plus a part of the delta; parameters the client did not send stay as they were."""
    state = dict(received)
    for name in received.keys() & delta.keys():
        moved = fraction * _read(delta, name, tuple(received[name].shape))
        state[name] = received[name] + moved.to(received[name])
    return state


def _two_rows(row: Tensor) -> Tensor:
    """A single logit z under binary cross-entropy is a softmax over the logits (0, z).

    Its gradient in z is p_1 - y_1, and p_0 - y_0 = -(p_1 - y_1) gives the row of the constant logit.
    """
    return torch.cat([-row, row])


def _read(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    if name not in tensors:
        raise NotApplicable(
            f"The update holds no '{name}', the last layer's parameter: labels can be read only from an "
            "update that includes it."
        )
    tensor = tensors[name].detach().double()
    if tuple(tensor.shape) != shape:
        raise DataError(
            f"The update's '{name}' has shape {tuple(tensor.shape)} but the model's has {shape}: the update "
            "belongs to another model; pair it with the model it was computed from."
        )
    if not torch.isfinite(tensor).all():
        raise DataError(
            f"The update's '{name}' holds NaN or infinite values: local training diverged, lower its rate."
        )
    return tensor


def probed_by(known: Knowledge) -> Hashable:
    """Equal where the probes are."""
    spec = known.input
    units = spec.value_range, spec.mean, spec.std, spec.vocabulary
    return spec.shape, units, known.seed, known.normalised, id(known.auxiliary)


def _probes(known: Knowledge, model: nn.Module) -> Probes:
    """The same for every update of a model."""
    key = ("probes", probed_by(known))
    return remembered(model, key, lambda: (known, _made_probes(known, model)))[1]


def _one_probe(known: Knowledge, model: nn.Module) -> Probes:
    key = ("one probe", probed_by(known))
    return remembered(model, key, lambda: Probes(dummy_inputs(known.input, 1, like=model), None))


def _made_probes(known: Knowledge, model: nn.Module) -> Probes:
    if known.auxiliary is not None and len(known.auxiliary) > 0:
        batch: Batch = known.auxiliary
        device = dummy_inputs(known.input, 1, like=model).device
        note = f"Mean prediction measured on {len(batch)} auxiliary examples."
        return Probes(batch.inputs.to(device), batch.labels.to(device), note)
    count = max(FEWEST_PROBES, min(NOISE_PROBES, affordable_probes(known, model)))
    noise = dummy_inputs(known.input, count, like=model, seed=known.seed, model_units=known.normalised)
    kind = "random tokens" if not noise.is_floating_point() else "random noise"
    return Probes(noise, None, f"Mean prediction measured on {kind}, for there are no auxiliary data.")


def affordable_probes(known: Knowledge, model: nn.Module) -> int:
    """How many examples may be run through the model for labels: a convolution uses a weight many times."""
    with FlopCounterMode(display=False) as counter, torch.no_grad(), training_mode(model, False):
        run_model(model, dummy_inputs(known.input, 1, like=model))
    return PROBE_OPERATIONS // max(1, int(counter.get_total_flops()) // 2)


def _probe(model: nn.Module, layer: LinearLayer, state: Mapping[str, Tensor], inputs: Tensor) -> Probe:
    """Features before and probabilities behind the last layer, without touching the broadcast model."""
    with torch.no_grad(), training_mode(model, False), watching(model, layer.name) as seen:
        output = run_model(lambda x: functional_call(model, dict(state), (x,)), inputs).double()
    weight = state[layer.weight].detach().double()
    bias = torch.zeros_like(weight[:, 0]) if layer.bias is None else state[layer.bias].detach().double()
    if len(weight) == 1:
        weight, bias = torch.cat([weight * 0, weight]), torch.cat([bias * 0, bias])
        output = output.reshape(len(inputs), -1)
        output = torch.cat([output * 0, output], dim=1)
    probe = Probe(weight=weight, bias=bias, features=seen[0].double(), share=1.0)
    expected = probe.softmax(probe.features)
    if output.shape != expected.shape or not torch.allclose(output.softmax(1), expected, atol=1e-3):
        raise NotApplicable(
            f"The model's output is not that of its last linear layer '{layer.name}', so that gradient "
            "is not prediction minus label: use a model that returns this layer's output as logits."
        )
    return probe
