"""An attack, a defense and a metric for seepage, in a package of their own."""
