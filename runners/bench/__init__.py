"""The program that every rank runs: the only importer of torch, DeepSpeed and Megatron-Core."""
