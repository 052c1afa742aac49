"""From features that were read exactly to the pictures behind them."""
