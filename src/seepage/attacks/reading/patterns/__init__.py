"""Reading by the alphabet and by activation patterns, where no backward signal can be foretold."""
