"""The command line: one module a command; the only place that sees every package."""
