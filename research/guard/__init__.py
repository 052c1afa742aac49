"""How the guard's thresholds are made and measured: `python -m research.guard.calibrate`."""
