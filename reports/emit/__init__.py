"""Launch files in the words of the tools that people start training with: one module a format."""
