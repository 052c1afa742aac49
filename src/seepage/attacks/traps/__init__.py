"""Making models that give data away: traps, and ways to carry the input to them."""
