"""Where rows come from and where they go: the contract, and what keeps it."""
