"""Flower and NVIDIA FLARE: recorders for apps that run there. Each module needs its extra."""
