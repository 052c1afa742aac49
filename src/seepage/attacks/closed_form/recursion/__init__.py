"""Layer-by-layer inversion in closed form."""
