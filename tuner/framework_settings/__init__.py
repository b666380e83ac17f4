"""Settings of one framework, beside the knobs: what there is, what it defaults to, what is legal."""
