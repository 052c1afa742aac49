"""Two sites, one round, in FLARE's simulator: with FLARE's PercentilePrivacy, and our recorder behind it.

python job.py recorded/
"""

import sys
from pathlib import Path

from network import Network
from nvflare.app_common.filters import PercentilePrivacy
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import TransferType
from nvflare.recipe import SimEnv

from seepage.integrations.nvflare import RecordExchanges


def main(folder: str) -> None:
    recipe = FedAvgRecipe(
        name="digits",
        model=Network(),
        min_clients=2,
        num_rounds=1,
        train_script="client.py",
        params_transfer_type=TransferType.DIFF,
    )
    recipe.add_client_output_filter(PercentilePrivacy(percentile=10, gamma=0.01), tasks=["train"])
    recipe.add_client_output_filter(RecordExchanges(folder=str(Path(folder).resolve())), tasks=["train"])
    recipe.execute(SimEnv(num_clients=2))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "recorded")
