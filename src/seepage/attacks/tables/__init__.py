"""Tables: whole rows read from the span of a gradient, or searched for."""
