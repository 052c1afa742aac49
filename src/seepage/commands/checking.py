"""Commands of the client's side: guard, gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from seepage.commands.app import app
from seepage.endings import Code, ends_well
from seepage.options import Json


@app.command()
@ends_well
def guard(
    weights: Annotated[Path, typer.Argument(help="Received weights: .safetensors, .pt or TorchScript.")],
    previous: Annotated[
        list[Path] | None,
        typer.Option(help="Weights of an earlier round; may be repeated, the oldest first."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model the weights belong to (name or package.module:function).")
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option(
            help="Data (name or path) to run it on, public or your own; needs --model. With several "
            "--previous, losses are compared on it."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Client side: is this received model a trap?

    Exit code 0: clean. 1: suspicious or trap. 2: could not be checked, in whole or in part: a file that
    cannot be read, or layers that are stored flat, transposed, packed or under another name.
    """
    from seepage.core.types import Verdict
    from seepage.guardian import guard_file
    from seepage.record.refs import plain

    found = guard_file(weights, previous=previous, builder=model, sample=sample)
    print(json.dumps(plain(found.to_dict()), indent=2) if as_json else found.text())
    if found.verdict is Verdict.NOT_CHECKED:
        raise typer.Exit(Code.COULD_NOT_RUN)
    if found.verdict is not Verdict.CLEAN:
        raise typer.Exit(Code.ABOVE)


@app.command()
@ends_well
def gate(
    model: Annotated[str, typer.Argument(help="The model (name or package.module:function).")],
    data: Annotated[str, typer.Option(help="Your private batch (name or path). It stays here.")],
    weights: Annotated[Path | None, typer.Option(help="Received weights: .safetensors, .pt.")] = None,
    update: Annotated[
        Path | None, typer.Option(help="What is to be sent (tensors by parameter name); else the gradient.")
    ] = None,
    threshold: Annotated[float, typer.Option(help="Share of the batch that may be recovered.")] = 0.0,
    limit: Annotated[int, typer.Option(help="Examples of the data that are the batch, the first ones.")] = 64,
    quick: Annotated[bool, typer.Option("--quick", help="One pass alone, no attack is run.")] = False,
    as_json: Json = False,
) -> None:
    """Client side: which of my examples would this update give away, and what should I change?

    Exit code 0: measured, and no more than the threshold. 1: more. 2: could not run. 3: not measured.
    """
    from seepage.gating import gate_file
    from seepage.record.refs import plain

    found = gate_file(
        model, data=data, weights=weights, update=update, threshold=threshold, limit=limit, quick=quick
    )
    print(json.dumps(plain(found.to_dict()), indent=2) if as_json else found.text())
    codes = {"pass": Code.BELOW, "block": Code.ABOVE, "not measured": Code.NOT_MEASURED}
    raise typer.Exit(codes[found.answer])
