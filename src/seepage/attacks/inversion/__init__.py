"""What a search for matching inputs is composed of."""
