"""Pictures that a class looks like: no examples, and never claimed to be."""
