"""The words of paratune, its cost model, its study and its command line."""
