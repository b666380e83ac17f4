"""What a plan should cost in bytes and seconds, from shapes and datasheets alone."""
