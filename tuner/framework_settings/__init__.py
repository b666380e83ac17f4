"""Settings of one framework, beside the knobs: what there is, its default, what is legal."""
