"""The micro-batch of a file that speaks of batches, and what to say where its batch is another."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.importing.imported import ImportTarget
from tuner.importing.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTriple:
    """DeepSpeed's three batch sizes, None where the file leaves one out."""

    train: int | None
    micro: int | None
    accumulation: int | None


def micro_batch_of(
    triple: BatchTriple, data_parallel: int, settings: Settings, *, num_gpus: int
) -> int:
    """The micro-batch by DeepSpeed's arithmetic (rules DS-01, DS-02 and DS-05), without floors.

    Raises:
        UserError: the sizes contradict one another, or do not divide.
    """
    train, micro, steps = triple.train, triple.micro, triple.accumulation
    if train is None:
        if micro is None:
            raise settings.error(
                "train_micro_batch_size_per_gpu",
                "or train_batch_size must be given (rule DS-05), got neither",
            )
        return micro
    if micro is not None:
        _must_agree(train, micro, steps, data_parallel, settings, num_gpus)
        return micro
    split = (steps or 1) * data_parallel
    if train % split:
        raise settings.error(
            "train_batch_size",
            f"must be a multiple of accumulation * data-parallel ranks ({steps or 1} * "
            f"{data_parallel}; rule DS-02), got {train}",
        )
    return train // split


def _must_agree(  # the three sizes, and what they are judged against
    train: int,
    micro: int,
    steps: int | None,
    data_parallel: int,
    settings: Settings,
    num_gpus: int,
) -> None:
    if steps is None:
        if train % (micro * data_parallel):
            raise settings.error(
                "train_batch_size",
                "must be a multiple of micro-batch * data-parallel ranks "
                f"({micro} * {data_parallel}; rule DS-02), got {train}",
            )
        return
    product = micro * steps * data_parallel
    if train != product:
        ranks, rest = divmod(train, micro * steps)
        hint = f"; it is right on {ranks} data-parallel ranks" if ranks and not rest else ""
        raise settings.error(
            "train_batch_size",
            "must be micro-batch * accumulation * data-parallel ranks "
            f"({micro} * {steps} * {data_parallel} = {product} on the job's {num_gpus} GPUs; rule "
            f"DS-01), got {train}{hint}",
        )


def batch_notes(target: ImportTarget, said: int | None, *, of: str) -> list[str]:
    """That the job's global batch is trained, where the file says another."""
    job = target.workload.global_batch_sequences
    if said is None or said == job:
        return []
    return [
        f"{of} is {said} sequences, the job's global batch {job}: the job's is trained, with the "
        "file's micro-batch"
    ]


def length_notes(target: ImportTarget, said: int | None, *, of: str) -> list[str]:
    """That the job's sequence length is trained, where the file says another."""
    job = target.workload.seq_len
    if said is None or said == job:
        return []
    return [f"{of} is {said} tokens, the job's sequences have {job}: the job's length is trained"]
