"""Taking a residual apart in which no neuron is alone, each find checked by the network."""
