PAPERS: dict = {}
