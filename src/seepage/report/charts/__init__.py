"""Every picture of every page: its places are computed here, and `templates/charts.html.j2` draws them."""
