"""Which legal plan to try next: Optuna samplers, one file a kind."""
